"""Decode of 1 to 8 texts at once on the project's kernels: Qwen 0.5B's shape, random weights, share of the bound.

    python -m benchmarks gpu_rows [--sweep] [--out FILE.json] [--json]

Checked first against float64 (torch, small vocabulary and full width), at positions on both sides of every split, in
two lanes; then timed. Bound: bytes of weights and of every text's keys and values over the copy bandwidth measured in
the same run. `ratio`: tokens per second of all texts over those of one text alone.
"""

from __future__ import annotations

import json
import statistics
import sys
import time
from collections.abc import Sequence
from dataclasses import asdict, replace
from pathlib import Path
from tempfile import TemporaryDirectory
from threading import Thread
from types import SimpleNamespace
from typing import Any

from benchmarks.harness.gpu import bandwidth_gb_s, lane_library, open_lanes, timed
from benchmarks.harness.report import Report, command_line, gpu_driver, report_options
from cockpit.device.base import SessionSettings
from cockpit.device.cuda.device import CudaDevice
from cockpit.device.cuda.driver import BoundDriver
from cockpit.device.cuda.gate import open_gate
from cockpit.device.cuda.kernel_store import KernelStore, nvrtc_version
from cockpit.device.cuda_decode.rows import SIZES, RowsDecoder, RowsKernels, RowsTuning, build_rows_kernels, rows_source
from models.errors import DeviceUnavailable

CAPACITY = 2048
CONTEXTS = (64, 512, 1900)
TOLERANCE = 1e-4
"""Relative error of logits. Sums err by 1e-6; a new key or value that lies between two fp16 numbers may be rounded the
other way than float64's, which costs up to 2e-5 where a text has few positions."""


class Bench:
    """One model on one device."""

    def __init__(self, driver: BoundDriver, device: CudaDevice, copy_gb_s: float) -> None:
        from benchmarks.harness.rows_model import QWEN, random_rows_model

        self.driver, self.device, self.copy = driver, device, copy_gb_s
        self.shape = QWEN
        self.model = random_rows_model(QWEN, CAPACITY, 9, time.time_ns() % 1_000_000)
        self.whole = driver.whole_device_stream(), device.units

    def open(self, kernels: RowsKernels, where: tuple[int, int], sizes: Sequence[int] = SIZES) -> RowsDecoder:
        return RowsDecoder(self.driver, kernels, self.model.weights, self.model.kv, self.model.output, *where).open(
            sizes
        )

    def build(self, tuning: RowsTuning) -> RowsKernels:
        return build_rows_kernels(self.driver, self.device.facts.capability, self.shape, tuning)

    def step_ms(self, decoder: RowsDecoder, texts: int, context: int, steps: int = 20, rounds: int = 7) -> float:
        """Milliseconds of a step on the device, steps queued one after the other."""
        decoder.seek([(7 + row, context + row, row + 1) for row in range(texts)])

        def burst() -> None:
            for _ in range(steps):
                decoder.replay(texts)

        return statistics.median(timed(self.driver, decoder.stream, burst, rounds)) / steps

    def bound_ms(self, texts: int, context: int) -> float:
        return (self.shape.weight_bytes + texts * self.shape.kv_bytes(context)) / self.copy / 1e6

    def wall_ms(self, decoder: RowsDecoder, context: int, steps: int = 60) -> float:
        """Milliseconds a step with the host in between: write the feed, replay, read the id."""
        times = []
        for step in range(steps):
            began = time.perf_counter()
            decoder.seek([(7, context + step, 1)])
            decoder.replay(1)
            self.driver.read(decoder.output.best, 8, decoder.stream)
            times.append(1000 * (time.perf_counter() - began))
        return statistics.median(times)

    def speeds(self, kernels: RowsKernels, where: tuple[int, int]) -> list[dict[str, Any]]:
        decoder = self.open(kernels, where)
        rows = []
        for context in CONTEXTS:
            one = 0.0
            for texts in SIZES:
                ms = self.step_ms(decoder, texts, context)
                one = one or ms
                share = self.bound_ms(texts, context) / ms
                rows.append({"context": context, "texts": texts, "ms": ms, "share": share, "ratio": texts * one / ms})
        rows.append({"context": 512, "texts": 1, "wall_ms": self.wall_ms(decoder, 512)})
        decoder.close()
        return rows

    def kernel_us(self, kernels: RowsKernels, texts: int, context: int) -> dict[str, float]:
        """Microseconds of each kernel in a chain of its own kind over all layers."""
        decoder = self.open(kernels, self.whole, ())
        launch, out = self.driver.launch, {}
        decoder.seek([(7 + row, context + row, row + 1) for row in range(texts)])
        for name, wanted in kernels.functions.items():

            def only(kernel: Any, *arguments: Any, wanted: Any = wanted, **options: Any) -> None:
                if kernel is wanted:
                    launch(kernel, *arguments, **options)

            self.driver.launch = only  # type: ignore[method-assign]
            graph = self.driver.capture(decoder.stream, lambda: decoder.launch(texts))
            self.driver.launch = launch  # type: ignore[method-assign]
            times = timed(self.driver, decoder.stream, lambda graph=graph: self.driver.replay(graph, decoder.stream), 9)
            out[name] = 1000 * statistics.median(times) / (1 if name == "lm_head" else self.shape.layers)
        decoder.close()
        return out

    def sweep(self) -> list[dict[str, Any]]:
        base = RowsTuning()
        changes: tuple[dict[str, Any], ...] = (
            {},
            {"early": False},
            {"gate": 2},
            {"gate": 2, "gate_held": False, "norm_together": 1, "merge_together": 1},
            {"norm_together": 1},
            {"norm_together": 3},
            {"merge_together": 1},
            {"merge_together": 3},
            {"down": 4},
            {"down": 4, "down_parts": 8},
            {"o": 4},
            {"qkv": 2},
            {"head_loads": 14},
            {"split_least": 128},
            {"split_least": 512},
        )
        candidates = [replace(base, **change) for change in changes]
        rows = []
        for tuning in candidates:
            try:
                kernels = self.build(tuning)
                decoder = self.open(kernels, self.whole, (1, 8))
                row: dict[str, Any] = {"ms_1": self.step_ms(decoder, 1, 512), "ms_8": self.step_ms(decoder, 8, 512)}
                decoder.close()
                for texts in (1, 8):
                    each = self.kernel_us(kernels, texts, 512)
                    row[f"kernels_{texts}"] = {name: round(us, 2) for name, us in each.items()}
            except DeviceUnavailable as error:
                row = {"failed": str(error)}
            rows.append({"tuning": asdict(tuning), **row})
            print("sweep", rows[-1], file=sys.stderr, flush=True)
        return rows


def check(driver: BoundDriver, device: CudaDevice, tuning: RowsTuning) -> dict[str, Any]:
    """Three steps of eight, four, two and one text in two lanes, fresh weights and positions."""
    from benchmarks.harness.rows_model import QWEN, compare_rows, random_rows_model

    seed = time.time_ns() % 1_000_000
    shape = replace(QWEN, layers=5, vocab=16384)
    kernels = build_rows_kernels(driver, device.facts.capability, shape, tuning)
    model = random_rows_model(shape, CAPACITY, 9, seed)
    gate = open_gate(driver, lane_library(driver, device))
    results: dict[str, Any] = {"seed": seed}
    places = ((0, 15, 16, 127, 128, 1023, 2047, -1), (300, 1500, -1, 1), (2046, 64), (63,))
    for lane in ("navigation:1", "dialogue:2"):
        where = device.lanes[lane].stream, device.lanes[lane].units
        decoder = RowsDecoder(driver, kernels, model.weights, model.kv, model.output, *where, gate, 2).open()
        for positions in places:
            rows = [((seed + 97 * i) % shape.vocab, at, (i * 5 + 3) % 9) for i, at in enumerate(positions)]
            results[f"{lane} {len(rows)}"] = compare_rows(decoder, model, rows)
        with gate.hold():
            decoder.replay(1)
            time.sleep(0.005)
        driver.synchronise(decoder.stream)
        decoder.close()
    results["gate_stops"], results["gate_timeouts"] = gate.stops, gate.timeouts
    found = [value for value in results.values() if isinstance(value, dict)]
    results["ok"] = gate.stops >= 2 and not gate.timeouts
    for one in found:
        right = one["argmax"] == one["alone"] == one["rows"] and not one["others"]
        results["ok"] &= right and one["rel_error"] < TOLERANCE and one["cache"] < 2e-3
    return results


def check_serving(device: CudaDevice, bench: Bench) -> dict[str, Any]:
    """The same kernels as a lane's placement hands them to the engine, from a thread of its own: every lane's answer is
    that of the benchmark's decoder, and milliseconds a token with the host in between."""
    from benchmarks.harness.rows_model import step_model
    from cockpit.device.cuda.placement import CudaEngines
    from cockpit.device.cuda_decode.serving import StepDecoders

    model = bench.model
    rows = [(7 + row, 300 + row, row + 1) for row in range(5)]
    kernels = bench.build(RowsTuning())
    direct = bench.open(kernels, bench.whole)
    direct.seek([*rows, *[(0, -1, 0)] * 3])
    direct.replay(8)
    bench.driver.synchronise(direct.stream)
    wanted = model.best[: len(rows)].tolist()
    results: dict[str, Any] = {"ok": True}
    with TemporaryDirectory() as folder:
        store = KernelStore(Path(folder))
        store.build(rows_source(bench.shape), device.facts, nvrtc_version())
        # ONNX Runtime is not asked here: any build of it will do.
        lanes = SimpleNamespace(driver=bench.driver, lanes=device.lanes, session_settings=_settings)
        engines = CudaEngines(lanes, decoders=StepDecoders(bench.driver, device.facts, store))

        def serve(name: str) -> None:
            placement = engines.placement(name)
            said = step_model(model, CAPACITY, engines)
            decoder = placement.step_decoder(said)
            assert not isinstance(decoder, str), decoder
            model.best.zero_()
            decoder.step(rows)
            answer = placement.read(said.best)[: len(rows), 0].tolist()
            times = []
            for step in range(80):
                began = time.perf_counter()
                decoder.step([(7, 400 + step, 1)])
                placement.read(said.best.part(0, (1, 1)))
                times.append(1000 * (time.perf_counter() - began))
            results[name] = {"equal": answer == wanted, "wall_ms": statistics.median(times)}
            results["ok"] &= answer == wanted

        for name in ("navigation:2", "dialogue:1"):
            thread = Thread(target=serve, args=(name,))
            thread.start()
            thread.join()
            results["ok"] &= name in results
        engines.close()
    direct.close()
    return results


def _settings(_lane: str) -> SessionSettings:
    return SessionSettings(("CUDAExecutionProvider",), ({},))


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--sweep", action="store_true", help="try launch settings too")
    report_options(parser, budget_s=240)
    options = parser.parse_args(arguments)
    try:
        driver = BoundDriver()
        device = open_lanes(driver)
    except DeviceUnavailable as error:
        print(error, file=sys.stderr)
        return error.exit_code
    report = Report(options.out, options.budget_s)
    report.put(device=device.name, driver=gpu_driver(), date=time.strftime("%Y-%m-%d"))
    report.attempt("check", lambda: check(driver, device, RowsTuning()))
    print(json.dumps(report.values.get("check")), file=sys.stderr, flush=True)
    bandwidth = bandwidth_gb_s(driver, device, driver.whole_device_stream())
    report.put(copy_gb_s=bandwidth["copy"], read_gb_s=bandwidth["read"])
    bench = Bench(driver, device, bandwidth["copy"])
    kernels = bench.build(RowsTuning())
    report.attempt("whole", lambda: bench.speeds(kernels, bench.whole))
    for name in ("navigation:2", "dialogue:1", "navigation:1"):
        lane = device.lanes[name]
        report.attempt(f"{name} ({lane.units} SMs)", lambda lane=lane: bench.speeds(kernels, (lane.stream, lane.units)))
    report.attempt("serving", lambda: check_serving(device, bench))
    print(json.dumps(report.values.get("serving")), file=sys.stderr, flush=True)
    report.attempt("kernel_us_1", lambda: bench.kernel_us(kernels, 1, 512))
    report.attempt("kernel_us_8", lambda: bench.kernel_us(kernels, 8, 512))
    if options.sweep:
        report.attempt("sweep", bench.sweep)
    print(json.dumps(report.values) if options.json else table(report.values))
    device.close()
    passed = all(report.values.get(name, {}).get("ok") for name in ("check", "serving"))
    return 0 if passed and "failed" not in report.values else 1


def table(values: dict[str, Any]) -> str:
    lines = [f"check {'pass' if values.get('check', {}).get('ok') else 'FAIL'}, copy {values['copy_gb_s']:.0f} GB/s"]
    lines += ["| where | context | texts | ms | share of the bound | ratio |", "|---|---|---|---|---|---|"]
    for name, rows in values.items():
        if name == "whole" or "SMs" in name:
            for row in (row for row in rows if "ms" in row):
                lines.append(
                    f"| {name} | {row['context']} | {row['texts']} | {row['ms']:.3f} | {100 * row['share']:.1f} % | "
                    f"{row['ratio']:.2f} |"
                )
    return "\n".join(lines)
