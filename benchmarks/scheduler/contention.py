"""Latency of navigation beside a load: cases, how one is run, and the rows that come of it.

`ratio_p99` is against navigation alone on the whole device, measured in the same run at the same duty cycle.
`dialogue_throughput_kept` is against the same load alone in the same lane; `kept_of_whole` against it alone on the
whole device without gates.
"""

from __future__ import annotations

import random
import statistics
import sys
import threading
import time
from collections.abc import Callable, Iterable
from contextlib import nullcontext
from dataclasses import dataclass
from typing import Any, Protocol

from cockpit.device.base import YieldGate
from models.errors import CockpitError


class Load(Protocol):
    """Work that runs beside navigation. `step` runs one unit to its end and returns what it is worth alone, in ms."""

    def begin(self) -> None: ...

    def step(self) -> float: ...

    def end(self) -> None: ...


@dataclass
class Case:
    """One row: how navigation runs, what runs beside it, and how the two share."""

    name: str
    navigate: Callable[[], None]
    load: Load | None = None
    load_name: str = "-"
    gate: YieldGate | None = None
    samples: int = 60
    prepare: Callable[[], None] = lambda: None
    clock_mhz: Callable[[], float] = lambda: 0.0
    """The device's clock as the case ends: heavy loads lower it, and navigation with it."""


@dataclass
class CaseSet:
    """The cases of one device. answer: (case, load) of the row the bar is read from."""

    device: str
    driver: str
    navigation: str
    cases: list[Case]
    answer: tuple[str, str]
    idle_ms: tuple[float, float]
    close: Callable[[], None]


class Runner:
    """Runs a load in a thread of its own until told to stop, counting what it got done."""

    def __init__(self, load: Load) -> None:
        self.load = load
        self.done_ms = 0.0
        self._stop = threading.Event()
        self._thread = threading.Thread(target=self._loop, name="load", daemon=True)
        self.failure: CockpitError | None = None

    def _loop(self) -> None:
        try:
            self.load.begin()
            while not self._stop.is_set():
                self.done_ms += self.load.step()
            self.load.end()
        except CockpitError as error:
            self.failure = error

    def __enter__(self) -> Runner:
        self._thread.start()
        return self

    def __exit__(self, *_: object) -> None:
        self._stop.set()
        self._thread.join(30)
        if self.failure:
            raise self.failure
        if self._thread.is_alive():
            raise TimeoutError("the load did not stop within 30 s: a gate was left closed")


def rate_alone(load: Load, seconds: float) -> float:
    """Worth done per wall ms with nothing beside."""
    with Runner(load) as runner:
        time.sleep(0.3)
        before, began = runner.done_ms, time.perf_counter()
        time.sleep(seconds)
        return (runner.done_ms - before) / ((time.perf_counter() - began) * 1000)


def percentile(values: list[float], share: float) -> float:
    ordered = sorted(values)
    return ordered[min(len(ordered) - 1, int(len(ordered) * share))]


def run_case(case: Case, idle_ms: tuple[float, float], alone: float | None, whole: float | None) -> dict[str, Any]:
    """Navigation `samples` times at a random phase, the load beside it. Latency runs from the request to its end."""
    pause = random.Random(1)
    times: list[float] = []
    runner = Runner(case.load) if case.load else None
    with runner or nullcontext():
        time.sleep(0.2)
        for _ in range(3):
            case.prepare()
            case.navigate()
        before, began = (runner.done_ms if runner else 0.0), time.perf_counter()
        for _ in range(case.samples):
            case.prepare()
            time.sleep(pause.uniform(*idle_ms) / 1000)
            asked = time.perf_counter()
            with case.gate.hold() if case.gate else nullcontext():
                case.navigate()
                times.append((time.perf_counter() - asked) * 1000)
        wall_ms = (time.perf_counter() - began) * 1000
        done_ms = (runner.done_ms if runner else 0.0) - before
    row: dict[str, Any] = {
        "case": case.name,
        "load": case.load_name,
        "p50_ms": statistics.median(times),
        "p99_ms": percentile(times, 0.99),
        "max_ms": max(times),
        "std_ms": statistics.pstdev(times),
        "samples": len(times),
        "slowest_ms": [round(value, 2) for value in sorted(times)[-8:]],
        "clock_mhz": case.clock_mhz(),
        "navigation_busy_share": sum(times) / wall_ms,
    }
    if case.load and alone and whole:
        row["dialogue_throughput_kept"] = done_ms / wall_ms / alone
        row["kept_of_whole"] = done_ms / wall_ms / whole
        row["lost_over_used"] = (1 - row["dialogue_throughput_kept"]) / row["navigation_busy_share"]
    return row


def measure(
    cases: Iterable[Case],
    idle_ms: tuple[float, float],
    seconds: float,
    progress: bool = True,
    each: Callable[[dict[str, Any]], None] = lambda row: None,
) -> list[dict[str, Any]]:
    """Every case in order; the first is navigation alone on the whole device, the first of each load its reference.

    each: given every row as it is measured.
    """
    rows: list[dict[str, Any]] = []
    alone: dict[int, float] = {}
    whole: dict[str, float] = {}
    for case in cases:
        if case.load:
            key = id(case.load)
            if key not in alone:
                alone[key] = rate_alone(case.load, seconds)
            whole.setdefault(case.load_name, alone[key])
            row = run_case(case, idle_ms, alone[key], whole[case.load_name])
        else:
            row = run_case(case, idle_ms, None, None)
        rows.append(row)
        row["ratio_p99"] = row["p99_ms"] / rows[0]["p99_ms"]
        row["ratio_p50"] = row["p50_ms"] / rows[0]["p50_ms"]
        each(row)
        if progress:
            print(line(row), file=sys.stderr, flush=True)
    return rows


def line(row: dict[str, Any]) -> str:
    kept = f"{row['dialogue_throughput_kept']:.3f}" if "dialogue_throughput_kept" in row else "-"
    whole = f"{row['kept_of_whole']:.3f}" if "kept_of_whole" in row else "-"
    lost = f"{row['lost_over_used']:.2f}" if "lost_over_used" in row else "-"
    return (
        f"| {row['case']} | {row['load']} | {row['p50_ms']:.2f} | {row['p99_ms']:.2f} | {row['ratio_p50']:.3f} | "
        f"{row['ratio_p99']:.3f} | {row['std_ms']:.2f} | "
        f"{row['navigation_busy_share']:.2f} | {kept} | {whole} | {lost} |"
    )


def table(report: dict[str, Any]) -> str:
    head = [
        f"{report['device']}, {report['date']}; {report['navigation']}",
        "| case | load | p50 ms | p99 ms | ratio p50 | ratio p99 | std ms | navigation busy | dialogue kept | of whole "
        "| lost / used |",
        "|---|---|---|---|---|---|---|---|---|---|---|",
    ]
    tail = [f"reach: {name}: {'yes' if ok else 'NO'}" for name, ok in report["reach"].items()]
    return "\n".join(head + [line(row) for row in report["rows"]] + tail)


def reach(row: dict[str, Any]) -> dict[str, bool]:
    """The issue's bar, on the row that is the product's answer."""
    return {
        "ratio_p99 <= 1.07": row["ratio_p99"] <= 1.07,
        "std_ms <= 3": row["std_ms"] <= 3,
        "dialogue loses at most navigation's time + 5 %": row["lost_over_used"] <= 1.05,
    }
