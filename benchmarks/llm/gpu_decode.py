"""Batch-1 decode of a Gemma-3-4B-shaped model (random weights) as a share of the bandwidth bound of this GPU.

    python -m benchmarks gpu_decode [--formats fp16,int8,int4] [--context 1024] [--torch] [--sweep] [--json]

Bound: bytes of weights and K/V that a token must read, over the copy bandwidth measured in the same run (bytes read
plus bytes written). Every format is compared with an fp32 reference on fresh random inputs before it is timed.
"""

from __future__ import annotations

import argparse
import json
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from typing import Any

from benchmarks.gemma.session import (
    TUNED,
    DecodeKernels,
    DecodeSession,
    DecodeShape,
    DecodeTuning,
    Format,
    build_decode_kernels,
)
from benchmarks.harness.gpu import CAPACITY, bandwidth_gb_s, kernel_us, open_lanes, token_ms
from benchmarks.harness.report import command_line, gpu_driver
from cockpit.device.cuda.device import CudaDevice
from cockpit.device.cuda.driver import BoundDriver
from models.errors import DeviceUnavailable


def measure(
    driver: BoundDriver, device: CudaDevice, stream: int, format: Format, options: argparse.Namespace, copy: float
) -> dict[str, Any]:
    from benchmarks.harness.random_model import compare, fill_cache, random_model

    shape = DecodeShape()
    model = random_model(shape, format, CAPACITY, time.time_ns() % 1_000_000)
    weights, sms = model.weights(), device.units
    result: dict[str, Any] = {"format": format}
    moved = shape.weight_bytes(format) + shape.kv_bytes(options.context + 20)
    bound_ms = moved / copy / 1e6

    def run(kernels: DecodeKernels, stream: int, sms: int) -> float:
        session = DecodeSession(driver, kernels, weights, stream, sms, CAPACITY).open()
        fill_cache(session, 5)
        ms = token_ms(session, options.context)
        session.close()
        return ms

    if options.sweep:
        result["sweep"] = sweep(driver, device, format, lambda kernels: run(kernels, stream, sms), bound_ms)
        best = min(result["sweep"], key=lambda row: row["ms"])
        tuning = DecodeTuning(**best["tuning"])
    else:
        tuning = TUNED[format]
    kernels = build_decode_kernels(driver, device.facts.capability, shape, format, tuning)
    session = DecodeSession(driver, kernels, weights, stream, sms, CAPACITY).open(want_logits=True)
    fill_cache(session, time.time_ns() % 1_000_000)
    result["check"] = compare(session, model, 1234, options.context, 2, quantise=False)
    if format in ("int8", "int4"):
        fill_cache(session, time.time_ns() % 1_000_000)
        result["check_same_rounding"] = compare(session, model, 4321, options.context, 2, quantise=True)
    result["kernels"] = kernel_us(driver, session, shape, copy)
    session.close()
    ms = run(kernels, stream, sms)
    again = run(kernels, stream, sms)
    result |= {"ms_per_token": ms, "ms_again": again, "tokens_per_s": 1000 / ms, "bytes": moved}
    result |= {"bound_ms": bound_ms, "share": bound_ms / ms, "tuning": asdict(tuning)}
    result["lanes"] = {
        name: {
            "sms": device.lanes[name].units,
            "ms": (lane_ms := run(kernels, device.lanes[name].stream, device.lanes[name].units)),
            "share": bound_ms / lane_ms,
        }
        for name in ("navigation:2", "dialogue:1", "navigation:1")
    }
    if options.torch and format == "fp16":
        from benchmarks.peers.torch import torch_decode

        result["torch"] = torch_decode(model, options.context, CAPACITY)
        result["torch"]["share"] = bound_ms / result["torch"]["ms_per_token"]
    return result


def sweep(driver: BoundDriver, device: CudaDevice, format: Format, run: Any, bound_ms: float) -> list[dict[str, Any]]:
    """Block sizes first, then the attention's shape with the best of them."""
    rows: list[dict[str, Any]] = []
    built: dict[tuple[int, ...], DecodeKernels] = {}

    def attempt(tuning: DecodeTuning) -> float:
        key = (tuning.block, tuning.attention_batch)
        if key not in built:
            built[key] = build_decode_kernels(driver, device.facts.capability, DecodeShape(), format, tuning)
        ms = run(replace(built[key], tuning=tuning))
        rows.append({"tuning": asdict(tuning), "ms": ms})
        print(f"  {format} {ms:.3f} ms {100 * bound_ms / ms:.1f} % {asdict(tuning)}", file=sys.stderr, flush=True)
        return float(ms)

    base = DecodeTuning()
    blocks = [replace(base, block=block) for block in (640, 768, 1024)]
    best = min((base, replace(base, early=False), *blocks), key=attempt)
    changes: tuple[dict[str, Any], ...] = ({"splits": 4}, {"splits": 16}, {"splits": 24})
    changes += ({"attention_batch": 2}, {"attention_batch": 8})
    for change in changes:
        known = min(row["ms"] for row in rows)
        candidate = replace(best, **change)
        if attempt(candidate) < known:
            best = candidate
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--formats", default="fp16,int8,int4")
    parser.add_argument("--context", type=int, default=1024)
    parser.add_argument(
        "--torch", action="store_true", help="also time torch (compiled layers, static cache, CUDA graph)"
    )
    parser.add_argument("--sweep", action="store_true", help="try launch settings first")
    options = parser.parse_args(arguments)
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
        "driver": gpu_driver(),
        "date": time.strftime("%Y-%m-%d"),
        "command": " ".join(sys.orig_argv),
        "context": options.context,
        "copy_gb_s": bandwidth["copy"],
        "read_gb_s": bandwidth["read"],
        "formats": {},
    }
    for format in filter(None, options.formats.split(",")):
        report["formats"][format] = measure(driver, device, stream, format, options, bandwidth["copy"])
    if options.json:
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
    for name, row in report["formats"].items():
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
