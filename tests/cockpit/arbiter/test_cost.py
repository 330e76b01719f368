"""One decision is cheap and leaves nothing behind: loose bounds here, figures in benchmarks/scheduler/arbiter.py."""

from __future__ import annotations

from benchmarks.scheduler.arbiter import Drill, growth


def test_a_hundred_thousand_decisions_leave_nothing_behind() -> None:
    assert growth(100_000)["heap_bytes"] < 8_192


def test_a_decision_takes_microseconds() -> None:
    drill = Drill(timed=True)
    drill.run(20_000)
    drill.arbiter.check()
    assert drill.arbiter.evictions > 0, "the drill has real contention"
    assert drill.histograms["all"].quantile_ns(0.50) < 20_000
