"""The isolation benchmark's own bookkeeping, and its CPU cases end to end at the smallest size."""

from __future__ import annotations

import threading
import time

import pytest

from benchmarks.scheduler.contention import Case, Runner, measure, percentile, reach
from cockpit.device.base import YieldGate
from models.errors import DeviceUnavailable


class Ticks:
    """A load of 1 ms steps that notes whether it ran while the gate was held."""

    def __init__(self, gate: YieldGate | None = None) -> None:
        self.gate, self.inside = gate, 0

    def begin(self) -> None:
        self.inside = 0

    def step(self) -> float:
        if self.gate is not None and self.gate.closed:
            self.gate.wait(1.0)
        time.sleep(0.001)
        return 1.0

    def end(self) -> None:
        assert threading.current_thread().name == "load"


def test_every_row_is_against_the_first() -> None:
    gate = YieldGate()
    load = Ticks(gate)
    cases = [
        Case("alone", lambda: time.sleep(0.004), samples=5),
        Case("beside", lambda: time.sleep(0.008), load, "ticks", gate, 5),
    ]
    alone, beside = measure(cases, (1.0, 2.0), 0.1, progress=False)
    assert alone["ratio_p99"] == 1.0
    assert "dialogue_throughput_kept" not in alone
    assert beside["ratio_p50"] > 1.2
    assert beside["dialogue_throughput_kept"] < 0.8, "parked for four fifths of the time"
    assert gate.waits >= 5
    assert set(reach(beside)) == set(reach(beside | {"ratio_p99": 2.0}))
    assert not reach(beside | {"ratio_p99": 1.08})["ratio_p99 <= 1.07"]


def test_a_load_that_fails_fails_the_case() -> None:
    class Broken(Ticks):
        def step(self) -> float:
            raise DeviceUnavailable("gone")

    with pytest.raises(DeviceUnavailable, match="gone"), Runner(Broken()):
        time.sleep(0.05)


def test_p99_of_few_samples_is_their_maximum() -> None:
    assert percentile([3.0, 1.0, 2.0], 0.99) == 3.0
    assert percentile([float(i) for i in range(200)], 0.99) == 198.0


def test_cpu_cases_run() -> None:
    from benchmarks.scheduler.isolation_cpu import cpu_cases

    plan = cpu_cases(quick=True)
    for case in plan.cases:
        case.samples = 3
    rows = measure(plan.cases, plan.idle_ms, 0.2, progress=False)
    plan.close()
    assert [row["case"] for row in rows] == [case.name for case in plan.cases]
    assert any((row["case"], row["load"]) == plan.answer for row in rows)
    assert all(row["p50_ms"] > 0 and row["p99_ms"] >= row["p50_ms"] for row in rows)
    assert all(row["dialogue_throughput_kept"] > 0 for row in rows if row["load"] != "-")
