"""One decision is cheap and leaves nothing behind: loose bounds here, figures in benchmarks/scheduler/arbiter.py."""

from __future__ import annotations

import subprocess
import sys

from benchmarks.scheduler.arbiter import ContendedArbiter
from tests.support.paths import ROOT

MEASURED = "from benchmarks.scheduler.arbiter import growth; print(growth(100_000)['heap_bytes'])"


def test_a_hundred_thousand_decisions_leave_nothing_behind() -> None:
    """In a process of its own: threads that other tests left allocate, too."""
    done = subprocess.run([sys.executable, "-c", MEASURED], cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    assert int(float(done.stdout)) < 8_192


def test_a_decision_takes_microseconds() -> None:
    arbiter = ContendedArbiter(timed=True)
    arbiter.run(20_000)
    arbiter.arbiter.check()
    assert arbiter.arbiter.evictions > 0, "there is real contention"
    assert arbiter.histograms["all"].quantile_ns(0.50) < 20_000
