"""Pass or fail on this machine's GPU: lanes, placement, the gate, and the decode kernels against an fp32 reference.

    python -m benchmarks gpu_check [--only NAME,...] [--checkpoint FOLDER] [--gguf FILE] [--json]

Exit code 0: every check passed or was skipped for a reason it says; 1: one failed; 3: no usable GPU. Needs torch for
the random models' reference; the real model's is numpy. FOLDER: what benchmarks/gemma/weights.py wrote (default:
written to the model cache when first needed); FILE: the GGUF it was made from (default: the model store's, if there).
"""

from __future__ import annotations

import json
import sys
import threading
import time
from collections.abc import Callable, Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.gemma.session import (
    DecodeKernels,
    DecodeSession,
    DecodeShape,
    DecodeTuning,
    Format,
    build_decode_kernels,
)
from benchmarks.harness.gpu import lane_library, open_lanes
from benchmarks.harness.report import command_line
from benchmarks.llm import gpu_checkpoint
from cockpit.device.cuda.device import CudaDevice
from cockpit.device.cuda.driver import BoundDriver
from cockpit.device.cuda.gate import open_gate
from models.errors import DeviceUnavailable

SMALL = DecodeShape(layers=7, vocab=16384, window=64)
"""Every kernel at its real width, both kinds of layer, a window shorter than the context."""
TOLERANCE: dict[Format, float] = {"fp16": 2e-3, "bf16": 2e-3, "int8": 5e-2, "int4": 5e-2}
"""Relative error of logits after 7 layers against fp32 on the same weights; int formats also round activations."""
ONE_LAYER_TOLERANCE = 1e-4


def check_lanes(device: CudaDevice) -> dict[str, Any]:
    """Every lane ran only where it may, disjoint lanes share no SM, and all SMs of a lane were used."""
    placements = {name: device.verify_placement(name) for name in device.lanes}
    seen = {name: set(placement.observed) for name, placement in placements.items()}
    apart = not seen["navigation:1"] & seen["dialogue:1"] and not seen["system"] & seen["navigation:2"]
    full = all(len(seen[name]) == lane.units for name, lane in device.lanes.items())
    ok = apart and full and all(placement.ok for placement in placements.values())
    return {"ok": ok, "sms": {name: len(units) for name, units in seen.items()}}


def check_gate(device: CudaDevice, driver: BoundDriver) -> dict[str, Any]:
    """Queued work stops at the gate while it is held and goes on after; a lane beside it is not held up."""
    gate = open_gate(driver, lane_library(driver, device))
    stream, beside = device.lanes["dialogue:2"].stream, device.lanes["navigation:2"].stream

    def four_gates() -> None:
        for _ in range(4):
            gate.launch(stream)

    graph = driver.capture(stream, four_gates)
    event, other = driver.event(), driver.event()
    with gate.hold():
        driver.replay(graph, stream)
        driver.record(event, stream)
        driver.record(other, beside)
        driver.wait_event(other)
        time.sleep(0.02)
        waiting = int(driver.api.cuEventQuery(event)[0]) != 0
        released = time.perf_counter_ns()
    driver.wait_event(event)
    resumed_us = (time.perf_counter_ns() - released) / 1000
    ok = waiting and gate.stops == 1 and gate.timeouts == 0 and resumed_us < 1000
    return {
        "ok": ok,
        "waited": waiting,
        "stops": gate.stops,
        "timeouts": gate.timeouts,
        "resumed_us": round(resumed_us, 1),
    }


def check_decode(device: CudaDevice, driver: BoundDriver, format: Format) -> dict[str, Any]:
    """Three tokens per lane from fresh random weights, caches and positions, against fp32."""
    from benchmarks.harness.random_model import compare, fill_cache, random_model

    seed = time.time_ns() % 1_000_000
    kernels = build_decode_kernels(driver, device.facts.capability, SMALL, format, DecodeTuning())
    model = random_model(SMALL, format, 512, seed)
    errors, own, steps = {}, 0, 0
    for lane in ("navigation:1", "dialogue:2"):
        stream, sms = device.lanes[lane].stream, device.lanes[lane].units
        session = DecodeSession(driver, kernels, model.weights(), stream, sms, 512).open(want_logits=True)
        for position in (0, 63, 64, 300 + seed % 100):
            fill_cache(session, seed + position)
            result = compare(session, model, seed % SMALL.vocab, position, 3, quantise=False)
            errors[f"{lane}@{position}"] = result["rel_error"]
            own, steps = own + result["argmax_of_own_logits"], steps + result["steps"]
        session.close()
    worst = max(errors.values())
    result = {"ok": worst < TOLERANCE[format] and own == steps, "rel_error": worst, "seed": seed}
    if format in ("int8", "int4"):
        one_layer = _one_layer_error(device, driver, kernels, seed)
        result |= {"ok": result["ok"] and one_layer < ONE_LAYER_TOLERANCE, "one_layer_same_rounding": one_layer}
    return result


def _one_layer_error(device: CudaDevice, driver: BoundDriver, kernels: DecodeKernels, seed: int) -> float:
    """Least error of eight tokens over one layer, against a reference that rounds activations alike.

    A product that lies between two roundings may fall either way and costs about 1e-3; a wrong kernel is wrong always.
    """
    from benchmarks.harness.random_model import compare, fill_cache, random_model

    shape = replace(SMALL, layers=1)
    model = random_model(shape, kernels.format, 512, seed + 1)
    lane = device.lanes["dialogue:2"]
    own = replace(kernels, shape=shape)
    session = DecodeSession(driver, own, model.weights(), lane.stream, lane.units, 512).open(want_logits=True)
    fill_cache(session, seed)
    error = compare(session, model, seed % shape.vocab, 200, 8, quantise=True)["least_rel_error"]
    session.close()
    return float(error)


def check_gil(device: CudaDevice, driver: BoundDriver) -> dict[str, Any]:
    """While one thread waits for the device, others run: waiting must not hold the interpreter."""
    gate = open_gate(driver, lane_library(driver, device))
    stream = device.lanes["dialogue:1"].stream
    gate.close()
    gate.launch(stream)
    waiter = threading.Thread(target=driver.synchronise, args=(stream,))
    waiter.start()
    began = time.perf_counter()
    time.sleep(0.01)
    late_ms = (time.perf_counter() - began) * 1000 - 10
    gate.open()
    waiter.join()
    return {"ok": late_ms < 5, "late_ms": round(late_ms, 3)}


def check_checkpoint(
    device: CudaDevice, driver: BoundDriver, weights: Path | None, gguf: Path | None
) -> dict[str, Any]:
    """Gemma 3 270M's own weights: its continuation of two texts is that of the float32 reference."""
    folder, reason = gpu_checkpoint.find(weights)
    if folder is None:
        return {"ok": True, "skipped": reason}
    return gpu_checkpoint.check_checkpoint(device, driver, folder, gguf or gpu_checkpoint.find_gguf())


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--only", help="names of checks, with commas between; default: all")
    parser.add_argument("--checkpoint", type=Path, help="folder with the kernels' weights of Gemma 3 270M")
    parser.add_argument("--gguf", type=Path, help="the GGUF file that they were made from")
    options = parser.parse_args(arguments)
    try:
        driver = BoundDriver()
        device = open_lanes(driver)
    except DeviceUnavailable as error:
        print(error, file=sys.stderr)
        return error.exit_code
    checks: dict[str, Callable[[], dict[str, Any]]] = {
        "lanes": lambda: check_lanes(device),
        "gate": lambda: check_gate(device, driver),
        "waiting": lambda: check_gil(device, driver),
        "decode_fp16": lambda: check_decode(device, driver, "fp16"),
        "decode_bf16": lambda: check_decode(device, driver, "bf16"),
        "decode_int8": lambda: check_decode(device, driver, "int8"),
        "decode_int4": lambda: check_decode(device, driver, "int4"),
        "checkpoint_gemma3_270m": lambda: check_checkpoint(device, driver, options.checkpoint, options.gguf),
    }
    chosen = options.only.split(",") if options.only else list(checks)
    if unknown := set(chosen) - set(checks):
        parser.error(f"unknown checks {sorted(unknown)}; known: {', '.join(checks)}")
    results = {}
    for name in chosen:
        results[name] = checks[name]()
        if not options.json:
            print(verdict(results[name]), name, results[name], flush=True)
    ok = all(result["ok"] for result in results.values())
    if options.json:
        print(json.dumps({"device": device.name, "fingerprint": device.fingerprint, "ok": ok, "checks": results}))
    else:
        print("gpu-check:", "pass" if ok else "FAIL", device.name, device.fingerprint)
    device.close()
    return 0 if ok else 1


def verdict(result: dict[str, Any]) -> str:
    return "skip" if "skipped" in result else "pass" if result["ok"] else "FAIL"
