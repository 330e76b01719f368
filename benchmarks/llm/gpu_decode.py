"""Batch-1 decode of a Gemma-3-4B-shaped model (random weights) as a share of the bandwidth bound of this GPU.

    python -m benchmarks gpu_decode [--formats fp16,int8,int4] [--context 1024] [--torch] [--sweep] [--json]
    python -m benchmarks gpu_decode --formats "" --checkpoint FOLDER      # Gemma 3 270M's real weights instead

Bound: bytes of weights and K/V that a token must read, over the copy bandwidth measured in the same run (bytes read
plus bytes written). Every format is compared with an fp32 reference on fresh random inputs before it is timed.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from dataclasses import asdict, replace
from pathlib import Path
from typing import Any

from benchmarks.llm.gpu_check import lane_library, open_lanes
from cockpit.device.cuda.device import CudaDevice
from cockpit.device.cuda.driver import BoundDriver
from cockpit.device.cuda_decode.session import (
    TUNED,
    DecodeKernels,
    DecodeSession,
    DecodeShape,
    DecodeTuning,
    Format,
    build_decode_kernels,
)
from models.errors import DeviceUnavailable

CAPACITY = 2048


def bandwidth_gb_s(driver: BoundDriver, device: CudaDevice, stream: int) -> dict[str, float]:
    """Device-to-device copy (read + written bytes) and a read-only kernel, medians of 15, GB/s."""
    size = 4 << 30
    a, b, out = driver.allocate(size), driver.allocate(size), driver.allocate(16)
    read = driver.kernel(lane_library(driver, device), "stream_read")
    driver.check(driver.api.cuMemsetD32Async(a, 0x3C9D51E7, size // 4, stream))

    def copy() -> None:
        driver.check(driver.api.cuMemcpyDtoDAsync(b, a, size, stream))

    def stream_read() -> None:
        grid = (device.units * 4, 1, 1)
        arguments = (a.to_bytes(8, "little"), (size // 16).to_bytes(8, "little"), out.to_bytes(8, "little"))
        driver.launch(read, grid, 512, stream, *arguments)

    result = {}
    for name, work, moved in (("copy", copy, 2 * size), ("read", stream_read, size)):
        times = timed(driver, stream, work, 15)
        result[name] = moved / statistics.median(times) / 1e6
    for address in (a, b, out):
        driver.free(address)
    return result


def timed(driver: BoundDriver, stream: int, work: Any, rounds: int, warm: int = 3) -> list[float]:
    """Milliseconds of `work` on the device, `rounds` times."""
    began, ended = driver.event(), driver.event()
    for _ in range(warm):
        work()
    times = []
    for _ in range(rounds):
        driver.record(began, stream)
        work()
        driver.record(ended, stream)
        driver.wait_event(ended)
        times.append(driver.elapsed_ms(began, ended))
    return times


def token_ms(session: DecodeSession, context: int, tokens: int = 40, rounds: int = 7) -> float:
    """Milliseconds per token: median over rounds of `tokens` replays from the same position."""
    driver = session.driver

    def burst() -> None:
        for _ in range(tokens):
            session.replay()

    times = []
    for _ in range(rounds + 1):
        session.seek(7, context)
        times += timed(driver, session.stream, burst, 1, warm=0)
    return statistics.median(times[1:]) / tokens


def measure(
    driver: BoundDriver, device: CudaDevice, stream: int, format: Format, arguments: Any, copy: float
) -> dict[str, Any]:
    from benchmarks.harness.random_model import compare, fill_cache, random_model

    shape = DecodeShape()
    model = random_model(shape, format, CAPACITY, time.time_ns() % 1_000_000)
    weights, sms = model.weights(), device.units
    result: dict[str, Any] = {"format": format}
    moved = shape.weight_bytes(format) + shape.kv_bytes(arguments.context + 20)
    bound_ms = moved / copy / 1e6

    def run(kernels: DecodeKernels, stream: int, sms: int) -> float:
        session = DecodeSession(driver, kernels, weights, stream, sms, CAPACITY).open()
        fill_cache(session, 5)
        ms = token_ms(session, arguments.context)
        session.close()
        return ms

    if arguments.sweep:
        result["sweep"] = sweep(driver, device, format, lambda kernels: run(kernels, stream, sms), bound_ms)
        best = min(result["sweep"], key=lambda row: row["ms"])
        tuning = DecodeTuning(**best["tuning"])
    else:
        tuning = TUNED[format]
    kernels = build_decode_kernels(driver, device.facts.capability, shape, format, tuning)
    session = DecodeSession(driver, kernels, weights, stream, sms, CAPACITY).open(want_logits=True)
    fill_cache(session, time.time_ns() % 1_000_000)
    result["check"] = compare(session, model, 1234, arguments.context, 2, quantise=False)
    if format in ("int8", "int4"):
        fill_cache(session, time.time_ns() % 1_000_000)
        result["check_same_rounding"] = compare(session, model, 4321, arguments.context, 2, quantise=True)
    result["kernels"] = kernel_us(driver, session, shape, copy)
    session.close()
    ms = run(kernels, stream, sms)
    again = run(kernels, stream, sms)
    result |= {"ms_per_token": ms, "ms_again": again, "tokens_per_s": 1000 / ms, "bytes": moved}
    result |= {"bound_ms": bound_ms, "share": bound_ms / ms, "tuning": vars_of(tuning)}
    result["lanes"] = {
        name: {
            "sms": device.lanes[name].units,
            "ms": (lane_ms := run(kernels, device.lanes[name].stream, device.lanes[name].units)),
            "share": bound_ms / lane_ms,
        }
        for name in ("navigation:2", "dialogue:1", "navigation:1")
    }
    if arguments.torch and format == "fp16":
        from benchmarks.peers.torch import torch_decode

        result["torch"] = torch_decode(model, arguments.context, CAPACITY)
        result["torch"]["share"] = bound_ms / result["torch"]["ms_per_token"]
    return result


def kernel_us(driver: BoundDriver, session: DecodeSession, shape: DecodeShape, copy: float) -> dict[str, Any]:
    """Microseconds of each kernel of a layer in a chain of its own kind over all layers, and its bandwidth bound."""
    launch, out = session.driver.launch, {}
    for kind, matrix in (
        ("qkv", "qkv"),
        ("attention", None),
        ("o_proj", "o"),
        ("gate_up", "gate_up"),
        ("down", "down"),
    ):
        wanted = session.kernels.functions[kind]

        def only(kernel: Any, *arguments: Any, wanted: Any = wanted, **options: Any) -> None:
            if kernel is wanted:
                launch(kernel, *arguments, **options)

        driver.launch = only  # type: ignore[method-assign]
        graph = driver.capture(session.stream, session.launch_token)
        driver.launch = launch  # type: ignore[method-assign]
        session.seek(7, 1024)
        times = timed(driver, session.stream, lambda graph=graph: driver.replay(graph, session.stream), 9)
        size = getattr(session.weights.layers[0], matrix).size_bytes if matrix else 0
        out[kind] = {"us": 1000 * statistics.median(times) / shape.layers, "bound_us": size / copy / 1e3}
    return out


def vars_of(tuning: DecodeTuning) -> dict[str, Any]:
    return asdict(tuning)


def sweep(driver: BoundDriver, device: CudaDevice, format: Format, run: Any, bound_ms: float) -> list[dict[str, Any]]:
    """Block sizes first, then the attention's shape with the best of them."""
    rows: list[dict[str, Any]] = []
    built: dict[tuple[int, ...], DecodeKernels] = {}

    def attempt(tuning: DecodeTuning) -> float:
        key = (tuning.block, tuning.attention_batch)
        if key not in built:
            built[key] = build_decode_kernels(driver, device.facts.capability, DecodeShape(), format, tuning)
        ms = run(replace(built[key], tuning=tuning))
        rows.append({"tuning": vars_of(tuning), "ms": ms})
        print(f"  {format} {ms:.3f} ms {100 * bound_ms / ms:.1f} % {vars_of(tuning)}", file=sys.stderr, flush=True)
        return float(ms)

    base = DecodeTuning()
    blocks = [replace(base, block=block) for block in (640, 768, 1024)]
    best = min((base, replace(base, early=False), *blocks), key=attempt)
    for change in ({"splits": 4}, {"splits": 16}, {"splits": 24}, {"attention_batch": 2}, {"attention_batch": 8}):
        known = min(row["ms"] for row in rows)
        candidate = replace(best, **change)
        if attempt(candidate) < known:
            best = candidate
    return rows


def main() -> int:
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--formats", default="fp16,int8,int4")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument(
        "--torch", action="store_true", help="also time torch (compiled layers, static cache, CUDA graph)"
    )
    parser.add_argument(
        "--checkpoint", type=Path, help="also time real weights: a folder of models/build/llm_kernels.py"
    )
    parser.add_argument("--sweep", action="store_true", help="try launch settings first")
    parser.add_argument("--json", action="store_true")
    arguments = parser.parse_args()
    try:
        driver = BoundDriver()
        device = open_lanes(driver)
    except DeviceUnavailable as error:
        print(error, file=sys.stderr)
        return error.exit_code
    stream = driver.whole_device_stream()
    bandwidth = bandwidth_gb_s(driver, device, stream)
    report: dict[str, Any] = {
        "device": device.name,
        "driver": subprocess.run(
            ["nvidia-smi", "--query-gpu=driver_version", "--format=csv,noheader"],
            capture_output=True,
            text=True,
            check=False,
        ).stdout.strip(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(sys.argv),
        "context": arguments.context,
        "copy_gb_s": bandwidth["copy"],
        "read_gb_s": bandwidth["read"],
        "formats": {},
    }
    for format in filter(None, arguments.formats.split(",")):
        report["formats"][format] = measure(driver, device, stream, format, arguments, bandwidth["copy"])
    if arguments.checkpoint:
        from benchmarks.llm.gpu_checkpoint import measure_checkpoint

        folder, context = arguments.checkpoint, arguments.context
        row = measure_checkpoint(driver, device, stream, folder, context, bandwidth["copy"])
        report["checkpoint"] = row
        if arguments.torch:
            from benchmarks.harness.random_model import checkpoint_model
            from benchmarks.peers.torch import torch_decode

            row["torch"] = torch_decode(checkpoint_model(folder, CAPACITY), context, CAPACITY)
            row["torch"]["share"] = row["bound_ms"] / row["torch"]["ms_per_token"]
    if arguments.json:
        print(json.dumps(report))
    else:
        print(table(report))
    return 0


def table(report: dict[str, Any]) -> str:
    lines = [
        f"{report['device']}, driver {report['driver']}, {report['date']}; copy {report['copy_gb_s']:.0f} GB/s, "
        f"read-only {report['read_gb_s']:.0f} GB/s; context {report['context']}",
        "| weights | ms/token | tokens/s | GB/token | bound ms | share of bound | rel. error | same rounding |",
        "|---|---|---|---|---|---|---|---|",
    ]
    shown = dict(report["formats"])
    if "checkpoint" in report:
        shown[f"{report['checkpoint']['folder']} {report['checkpoint']['format']}"] = report["checkpoint"]
    for name, row in shown.items():
        error = f"{row['check']['rel_error']:.1e}" if "check" in row else "-"
        same = row.get("check_same_rounding", {}).get("rel_error")
        lines.append(
            f"| {name} | {row['ms_per_token']:.3f} | {row['tokens_per_s']:.0f} | {row['bytes'] / 1e9:.3f} | "
            f"{row['bound_ms']:.3f} | {100 * row['share']:.1f} % | {error} | "
            f"{'-' if same is None else f'{same:.1e}'} |"
        )
        peers = {f"{name}, {row['torch']['how']}": row["torch"]} if "torch" in row else {}
        lanes = {f"{name}, lane {lane} ({value['sms']} SMs)": value for lane, value in row["lanes"].items()}
        for label, value in (peers | lanes).items():
            ms = value.get("ms_per_token", value.get("ms"))
            lines.append(f"| {label} | {ms:.3f} | {1000 / ms:.0f} | | | {100 * value['share']:.1f} % | | |")
    return "\n".join(lines)


if __name__ == "__main__":
    raise SystemExit(main())
