"""The peer of gpu_decode: the same decoder through ONNX Runtime's CUDA provider, and through onnxruntime-genai.

    python -m benchmarks.gpu_ort [--context 1024] [--out FILE.json] [--no-genai]

The model is Gemma-3-4B-shaped with random fp16 weights (benchmarks/gpu_model.py), batch 1, one captured graph a token.
Several ways of writing the graph are timed and the fastest is the peer's figure. ms/token and the bound are defined as
in gpu_decode: bytes of weights and K/V that a token must read over the copy bandwidth of the same run. Logits are
compared with the fp32 reference before anything is timed.
"""

from __future__ import annotations

import argparse
import gc
import importlib.util
import json
import statistics
import sys
import tempfile
import time
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import torch

from benchmarks.gpu_model import HEAD_DIM, Model, Reference, random_model
from benchmarks.gpu_ort_graph import NOWHERE, GraphPlan, decode_graph
from benchmarks.progress import Report, head
from cockpit.device.cuda_decode import DecodeShape
from models.errors import CockpitError

CAPACITY = 2048
TOKENS = 40
ROUNDS = 7
TOLERANCE = 5e-2
PLANS = (
    GraphPlan(rows=True, fused_norms=True),
    GraphPlan(rows=False, fused_norms=True),
    GraphPlan(rows=True, fused_norms=False),
    GraphPlan(rows=True, fused_norms=False, choose=False),
    GraphPlan(rows=True, fused_norms=False, as_inputs=True),
)
_TORCH = {"fp16": torch.float16, "fp32": torch.float32}


def weights_of(model: Model, plan: GraphPlan, capacity: int) -> dict[str, torch.Tensor]:
    """The model's numbers as `weight_shapes` names them, on the model's own device."""
    kind = _TORCH[plan.kind]
    out: dict[str, torch.Tensor] = {}

    def put(name: str, values: torch.Tensor, matrix: bool = False) -> None:
        turned = values.t() if matrix and not plan.rows else values
        out[name] = turned.to(kind).contiguous()

    for index, layer in enumerate(model.layers):
        at = f"layers.{index}."
        both = layer.gate_up.data.view(*layer.gate_up.shape)
        for name, values in (
            ("qkv", layer.qkv.data.view(*layer.qkv.shape)),
            ("o", layer.o.data.view(*layer.o.shape)),
            ("gate", both[0::2]),
            ("up", both[1::2]),
            ("down", layer.down.data.view(*layer.down.shape)),
        ):
            put(at + name, values, matrix=True)
        for name, values in zip(("norm_in", "norm_attention", "norm_ffn", "norm_out"), layer.norms, strict=True):
            put(at + name, values)
        for name, values in zip(("norm_q", "norm_k"), layer.qk_norms, strict=True):
            put(at + name, values)
    embedding = model.embedding.data.view(*model.embedding.shape)
    put("embedding", embedding)
    if not plan.rows:
        put("head", embedding, matrix=True)
    put("norm_final", model.final_norm)
    for flag, scope in ((False, "local"), (True, "global")):
        put(f"cos_{scope}", model.rope[flag][:capacity, :, 0])
        put(f"sin_{scope}", model.rope[flag][:capacity, :, 1])
    return out


class Stepper:
    """One session of `decode_graph` with its buffers. stream: of CUDA, None runs on the CPU (tests)."""

    def __init__(
        self,
        shape: DecodeShape,
        plan: GraphPlan,
        weights: dict[str, torch.Tensor],
        capacity: int,
        stream: int | None = None,
    ) -> None:
        self.shape = shape
        self.plan = plan
        self.capacity = capacity
        self.device = "cpu" if stream is None else "cuda"
        self._weights = weights
        self._given = {} if plan.as_inputs else {n: ort.OrtValue.from_dlpack(t) for n, t in weights.items()}
        self._stream = stream
        self._buffers: dict[str, torch.Tensor] = {}
        self.cache: tuple[torch.Tensor, torch.Tensor]
        self.session: ort.InferenceSession
        self._binding: ort.IOBinding
        self._options: dict[bool, ort.RunOptions] = {}

    def open(self) -> Stepper:
        """Load the graph, allocate and bind. Raises what ONNX Runtime raises for a graph it cannot run."""
        options = ort.SessionOptions()
        options.log_severity_level = 3
        # The graph is written fused; the optimiser would read weights from the file instead of those handed in.
        options.graph_optimization_level = ort.GraphOptimizationLevel.ORT_DISABLE_ALL
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for name, value in self._given.items():
            options.add_initializer(name, value)
        providers: list[Any] = ["CPUExecutionProvider"]
        if self._stream is not None:
            chosen = {"user_compute_stream": str(self._stream), "enable_cuda_graph": "1", "use_tf32": "0"}
            providers = [("CUDAExecutionProvider", chosen)]
        graph = decode_graph(self.shape, self.plan, self.capacity).SerializeToString()
        with tempfile.TemporaryDirectory() as folder:
            # ONNX Runtime wants the file of external weights to be there even where none is read from it.
            (Path(folder) / NOWHERE).touch()
            (Path(folder) / "model.onnx").write_bytes(graph)
            self.session = ort.InferenceSession(f"{folder}/model.onnx", options, providers=providers)
        kind, s = _TORCH[self.plan.kind], self.shape
        sizes = (s.layers, 1, s.kv_heads, self.capacity, HEAD_DIM)
        self.cache = tuple(torch.zeros(sizes, dtype=kind, device=self.device) for _ in range(2))  # type: ignore[assignment]
        self._buffers = {
            "input_ids": torch.zeros((1, 1), dtype=torch.int64, device=self.device),
            "seqlens_k": torch.zeros(1, dtype=torch.int32, device=self.device),
            "logits": torch.zeros((1, s.vocab), dtype=kind, device=self.device),
        }
        self._binding = self.session.io_binding()
        for name in ("input_ids", "seqlens_k"):
            self._bind(name, self._buffers[name])
        self._bind("logits", self._buffers["logits"], output=True)
        if self.plan.choose:  # over the inputs: the next step reads what this one wrote
            self._bind("next_ids", self._buffers["input_ids"], output=True)
            self._bind("next_seqlens", self._buffers["seqlens_k"], output=True)
        for index in range(s.layers):
            for part, tensor in zip(("key", "value"), self.cache, strict=True):
                self._bind(f"past.{index}.{part}", tensor[index])
                self._bind(f"present.{index}.{part}", tensor[index], output=True)
        if self.plan.as_inputs:
            for name, tensor in self._weights.items():
                self._bind(name, tensor)
        for captured in (True, False):
            options_of_run = self._options[captured] = ort.RunOptions()
            if self.device == "cuda":
                options_of_run.add_run_config_entry("disable_synchronize_execution_providers", "1")
                options_of_run.add_run_config_entry("gpu_graph_id", "1" if captured else "-1")
        return self

    def _bind(self, name: str, tensor: torch.Tensor, output: bool = False) -> None:
        bind = self._binding.bind_output if output else self._binding.bind_input
        dtype = {torch.float16: np.float16, torch.float32: np.float32, torch.int64: np.int64, torch.int32: np.int32}
        bind(name, self.device, 0, dtype[tensor.dtype], tuple(tensor.shape), tensor.data_ptr())

    def fill(self, seed: int) -> tuple[torch.Tensor, torch.Tensor]:
        """Random keys and values everywhere, so that any position can be decoded from. (layers, kv, capacity, 256)."""
        generator = torch.Generator(device=self.device).manual_seed(seed)
        for cache in self.cache:
            cache.normal_(0, 1, generator=generator)
        self._settle()
        return self.cache[0][:, 0], self.cache[1][:, 0]

    def seek(self, token: int, position: int) -> None:
        self._buffers["input_ids"].fill_(token)
        self._buffers["seqlens_k"].fill_(position)
        self._settle()

    def run(self, captured: bool = True) -> None:
        """Queue one token."""
        self.session.run_with_iobinding(self._binding, self._options[captured])

    def step(self) -> torch.Tensor:
        """One token to its end: logits (vocab,) float32."""
        self.run()
        self._settle()
        return self._buffers["logits"][0].float()

    @property
    def token(self) -> int:
        self._settle()
        return int(self._buffers["input_ids"])

    @property
    def position(self) -> int:
        self._settle()
        return int(self._buffers["seqlens_k"])

    def elsewhere(self) -> dict[str, int]:
        """Op type -> nodes that are not on the provider asked for."""
        counts: dict[str, int] = {}
        for part in self.session.get_provider_graph_assignment_info():
            if part.ep_name != self.session.get_providers()[0]:
                for node in part.get_nodes():
                    counts[node.op_type] = counts.get(node.op_type, 0) + 1
        return counts

    def _settle(self) -> None:
        if self.device == "cuda":
            torch.cuda.synchronize()


def compare(stepper: Stepper, model: Model, context: int, steps: int = 2) -> dict[str, Any]:
    """Logits of `steps` tokens against fp32 over the same weights and cache."""
    keys, values = stepper.fill(time.time_ns() % 1_000_000)
    reference = Reference(model, keys.half(), values.half(), quantise=False)
    errors, token = [], 1234 % model.shape.vocab
    stepper.seek(token, context)
    for step in range(steps):
        got, want = stepper.step().double(), reference.step(token, context + step).double()
        errors.append(float((got - want).norm() / want.norm()))
        token = int(got.argmax())
        if stepper.plan.choose and stepper.token != token:
            raise AssertionError(f"the graph chose token {stepper.token}, its logits say {token}")
        if not stepper.plan.choose:
            stepper.seek(token, context + step + 1)
    if not max(errors) < TOLERANCE:
        raise ValueError(f"logits differ from fp32 by {max(errors):.2e} of their norm: not the same decoder")
    return {"rel_error": max(errors), "steps": steps}


def token_ms(stepper: Stepper, driver: Any, stream: int, context: int, captured: bool) -> dict[str, float]:
    """As gpu_decode.token_ms: median over rounds of TOKENS tokens from one position, on the device and on the wall."""
    from benchmarks.gpu_decode import timed

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
    from benchmarks.gpu_check import open_lanes
    from benchmarks.gpu_decode import bandwidth_gb_s
    from cockpit.device.cuda_driver import BoundDriver

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
    from benchmarks.gpu_ort_genai import genai_apart

    try:
        row = genai_apart(context, TOKENS, ROUNDS, max(60.0, report.budget_s - report.elapsed_s))
    except RuntimeError as error:
        report.say(f"onnxruntime-genai: {error}")
        return {"absent": str(error)}
    row["share"] = bound_ms / row["ms_per_token"]
    report.say(f"onnxruntime-genai: {row['ms_per_token']:.3f} ms/token, {100 * row['share']:.1f} % of the bound")
    return row


def main() -> int:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument("--no-genai", dest="genai", action="store_false")
    parser.add_argument("--budget-s", type=float, default=140.0, help="start nothing more after about this (140)")
    parser.add_argument("--out", type=Path, help="write results here as they come")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    report = Report(arguments.out, arguments.budget_s)
    report.put(**head())
    try:
        measure(report, arguments.context, arguments.genai)
    except CockpitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(report.values) if arguments.json else table(report.values))
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


if __name__ == "__main__":
    raise SystemExit(main())
