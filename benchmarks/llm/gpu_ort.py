"""The peer of gpu_decode: the same decoder through ONNX Runtime's CUDA provider, and through onnxruntime-genai.

    python -m benchmarks gpu_ort [--context 1024] [--out FILE.json] [--no-genai]

The model is Gemma-3-4B-shaped with random fp16 weights (benchmarks/harness/random_model.py), batch 1, one captured
graph a token. Several ways of writing the graph are timed and the fastest is the peer's figure. ms/token and the bound
are defined as in gpu_decode: bytes of weights and K/V that a token must read over the copy bandwidth of the same run.
Logits are compared with the fp32 reference before anything is timed."""

from __future__ import annotations

import gc
import importlib.util
import json
import statistics
import sys
import time
from collections.abc import Sequence
from functools import partial
from typing import Any

import torch

from benchmarks.gemma.session import DecodeShape
from benchmarks.harness.gpu import CAPACITY, bandwidth_gb_s, open_lanes, timed
from benchmarks.harness.random_model import Model, random_model
from benchmarks.harness.report import Report, command_line, head, report_options
from benchmarks.peers.ort_graph import GraphPlan
from benchmarks.peers.ort_session import Stepper, compare, weights_of
from cockpit.device.cuda.driver import BoundDriver
from models.errors import CockpitError

TOKENS = 40
ROUNDS = 7
PLANS = (
    GraphPlan(rows=True, fused_norms=True),
    GraphPlan(rows=False, fused_norms=True),
    GraphPlan(rows=True, fused_norms=False),
    GraphPlan(rows=True, fused_norms=False, choose=False),
    GraphPlan(rows=True, fused_norms=False, as_inputs=True),
)


def token_ms(stepper: Stepper, driver: Any, stream: int, context: int, captured: bool) -> dict[str, float]:
    """As gpu_decode.token_ms: median over rounds of TOKENS tokens from one position, on the device and on the wall."""

    def burst() -> None:
        for _ in range(TOKENS):
            stepper.run(captured)

    times, walls = [], []
    for _ in range(ROUNDS + 1):
        stepper.seek(7, context)
        began = time.perf_counter()
        times += timed(driver, stream, burst, 1, warm=0)
        walls.append((time.perf_counter() - began) * 1000)
    return {
        "ms_per_token": statistics.median(times[1:]) / TOKENS,
        "wall_ms_per_token": statistics.median(walls[1:]) / TOKENS,
    }


def measure(report: Report, context: int, with_genai: bool) -> None:
    driver = BoundDriver()
    device = open_lanes(driver)
    device.session_settings("dialogue:2")  # finds CUDA's libraries for ONNX Runtime, or says what is missing
    stream = driver.whole_device_stream()
    bandwidth = bandwidth_gb_s(driver, device, stream)
    shape = DecodeShape()
    moved = shape.weight_bytes("fp16") + shape.kv_bytes(context + TOKENS // 2)
    bound_ms = moved / bandwidth["copy"] / 1e6
    report.put(context=context, copy_gb_s=bandwidth["copy"], bytes=moved, bound_ms=bound_ms)
    report.say(f"copy {bandwidth['copy']:.0f} GB/s, bound {bound_ms:.3f} ms/token")
    model = random_model(shape, "fp16", CAPACITY, time.time_ns() % 1_000_000)
    rows: list[dict[str, Any]] = []
    for number, plan in enumerate(PLANS):
        if report.over(0.6):
            report.say(f"time is up: {plan.name} and what follows are left out")
            break
        work = partial(_one, report, plan, model, driver, stream, context, bound_ms)
        report.attempt(f"plan {number}", work)
        if (row := report.values.get(f"plan {number}")) is not None:
            rows.append(row)
            report.put(rows=rows, best=min(rows, key=lambda each: each["ms_per_token"]))
        gc.collect()
        torch.cuda.empty_cache()
    model.layers.clear()
    del model, work
    gc.collect()
    torch.cuda.empty_cache()
    if with_genai:
        report.put(genai=_genai(report, context, bound_ms))


def _one(
    report: Report, plan: GraphPlan, model: Model, driver: Any, stream: int, context: int, bound_ms: float
) -> dict[str, Any]:
    """One way of writing the graph, checked and timed."""
    weights = weights_of(model, plan, CAPACITY)
    torch.cuda.synchronize()
    stepper = Stepper(model.shape, plan, weights, CAPACITY, stream).open()
    stepper.fill(1)
    stepper.seek(7, context)
    stepper.step()  # ONNX Runtime runs a graph several times within the run that captures it
    row: dict[str, Any] = {"plan": plan.name, "elsewhere": stepper.elsewhere()}
    row |= compare(stepper, model, context)
    row |= token_ms(stepper, driver, stream, context, captured=True)
    plain = token_ms(stepper, driver, stream, context, captured=False)
    row |= {"share": bound_ms / row["ms_per_token"], "without_graph_ms": plain["ms_per_token"]}
    report.say(
        f"{plan.name}: {row['ms_per_token']:.3f} ms/token, {100 * row['share']:.1f} % of the bound, without a graph "
        f"{row['without_graph_ms']:.3f}, rel. error {row['rel_error']:.1e}, not on CUDA: {row['elsewhere'] or 'none'}"
    )
    return row


def _genai(report: Report, context: int, bound_ms: float) -> dict[str, Any]:
    """onnxruntime-genai's row, or why there is none."""
    if importlib.util.find_spec("onnxruntime_genai") is None:
        return {"absent": "onnxruntime_genai is not installed here"}
    from benchmarks.peers.ort_genai import genai_apart

    try:
        row = genai_apart(context, TOKENS, ROUNDS, max(60.0, report.budget_s - report.elapsed_s))
    except RuntimeError as error:
        report.say(f"onnxruntime-genai: {error}")
        return {"absent": str(error)}
    row["share"] = bound_ms / row["ms_per_token"]
    report.say(f"onnxruntime-genai: {row['ms_per_token']:.3f} ms/token, {100 * row['share']:.1f} % of the bound")
    return row


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--no-genai", dest="genai", action="store_false")
    report_options(parser, 140.0)
    options = parser.parse_args(arguments)
    report = Report(options.out, options.budget_s)
    report.put(**head())
    try:
        measure(report, options.context, options.genai)
    except CockpitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(report.values) if options.json else table(report.values))
    return 0


def table(values: dict[str, Any]) -> str:
    lines = [
        f"{values['gpu']}, {values['date']}, ONNX Runtime {values['onnxruntime']}; copy "
        f"{values['copy_gb_s']:.0f} GB/s; context {values['context']}; bound {values['bound_ms']:.3f} ms",
        "| ONNX Runtime CUDA, fp16 | ms/token | share of bound | without a graph, ms | rel. error |",
        "|---|---|---|---|---|",
    ]
    for row in values.get("rows", []):
        lines.append(
            f"| {row['plan']} | {row['ms_per_token']:.3f} | {100 * row['share']:.1f} % | "
            f"{row['without_graph_ms']:.3f} | {row['rel_error']:.1e} |"
        )
    genai = values.get("genai", {"absent": "not asked for"})
    if "absent" in genai:
        lines.append(f"| onnxruntime-genai: not run ({genai['absent']}) | | | | |")
    else:
        lines.append(f"| {genai['how']} | {genai['ms_per_token']:.3f} | {100 * genai['share']:.1f} % | | |")
    return "\n".join(lines + [f"failed: {name}: {why}" for name, why in values.get("failed", {}).items()])
