"""One decision is cheap and leaves nothing behind: loose bounds here, figures in benchmarks/scheduler/arbiter.py."""

from __future__ import annotations

from benchmarks.scheduler.arbiter import ContendedArbiter, growth


def test_a_hundred_thousand_decisions_leave_nothing_behind() -> None:
    assert growth(100_000)["heap_bytes"] < 8_192


def test_a_decision_takes_microseconds() -> None:
    arbiter = ContendedArbiter(timed=True)
    arbiter.run(20_000)
    arbiter.arbiter.check()
    assert arbiter.arbiter.evictions > 0, "there is real contention"
    assert arbiter.histograms["all"].quantile_ns(0.50) < 20_000
