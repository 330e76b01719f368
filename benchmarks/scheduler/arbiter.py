"""Time of one decision, requests per second and growth over a million decisions, beside the device's cheapest wait.

    python -m benchmarks arbiter [--json] [--requests N] [--device cpu|cuda]

A decision is one call of the arbiter: `submit`, `decide` (whether it starts something or finds nothing to start),
`report` or `finish`. Contention is real: navigation beside dialogue sessions that outgrow the arena, so that yields and
evictions are among the decisions.
"""

from __future__ import annotations

import gc
import json
import resource
import threading
import time
import tracemalloc
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.report import command_line
from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.requests import RUNNING, LatencyHistogram
from cockpit.device.base import YieldGate
from cockpit.profile.orchestration import parse

PROFILE: dict[str, Any] = {
    "global_limits": {"max_gpu_memory_percent": 85, "min_token_per_second": 120},
    "eviction_policy": {"type": "hybrid", "lru_k": 3, "age_threshold_seconds": 180, "memory_pressure_threshold": 0.7},
    "clusters": {"sm_cluster_a": 24, "sm_cluster_b": 72, "sm_cluster_c": 16, "system": 8},
    "tasks": {
        "navigation_task": {
            "priority": 9, "latency_sla": "150ms", "memory_budget_mb": 1200, "affinity_mask": "sm_cluster_a",
        },
        "vehicle_task": {
            "priority": 7, "latency_sla": "300ms", "memory_budget_mb": 500, "affinity_mask": "sm_cluster_c",
        },
        "dialogue_task": {
            "priority": 5, "latency_sla": "800ms", "memory_budget_mb": 4000,
            "affinity_mask": "sm_cluster_b,sm_cluster_c",
        },
        "summary_task": {
            "priority": 2, "latency_sla": "10s", "memory_budget_mb": 500, "affinity_mask": "sm_cluster_b",
        },
    },
}  # fmt: skip
ARENA_BYTES = 512 << 20
SESSIONS = 32
KV_BYTES = 24 << 20


class ContendedArbiter:
    """One arbiter under contention; `run` may be called again and goes on where it stopped."""

    def __init__(self, *, timed: bool) -> None:
        checked = parse(PROFILE)
        assert checked.config is not None, checked.errors
        self.arbiter = Arbiter(checked.config, ARENA_BYTES)
        self.histograms = {name: LatencyHistogram() for name in ("all", "submit", "decide", "report", "finish")}
        self.decisions = 0
        self._sessions = tuple(f"s{index}" for index in range(SESSIONS))
        self._clock = time.perf_counter_ns if timed else (lambda: 0)
        self._timed = timed
        self._step = 0
        self._now_ns = 0

    def _note(self, name: str, began_ns: int) -> None:
        spent_ns = self._clock() - began_ns
        self.decisions += 1
        if self._timed:
            self.histograms["all"].add(spent_ns)
            self.histograms[name].add(spent_ns)

    def run(self, requests: int) -> float:
        """Until `requests` more have ended; seconds it took."""
        began = time.perf_counter()
        done = 0
        while done < requests:
            self._step += 1
            self._now_ns += 1_000_000
            self._submit()
            self._decide()
            self._now_ns += 500_000
            done += self._end_some()
        return time.perf_counter() - began

    def _submit(self) -> None:
        step = self._step
        task = (0, 2, 0, 1, 0, 2, 3, 2)[step & 7]
        session = self._sessions[(step // 64 + step * 7919 % 3) % SESSIONS] if task == 2 else None
        kv_bytes = KV_BYTES if session else 0
        began = self._clock()
        self.arbiter.submit(task, self._now_ns, session=session, kv_bytes=kv_bytes, expected_ns=5_000_000)
        self._note("submit", began)

    def _decide(self) -> None:
        for _ in range(4):
            began = self._clock()
            chosen = self.arbiter.decide(self._now_ns)
            self._note("decide", began)
            if chosen is None:
                return
            if chosen.state != RUNNING:
                self.arbiter.finish(chosen, self._now_ns)

    def _end_some(self) -> int:
        ended = 0
        for running in self.arbiter.running:
            if running is not None and (self._step + running.task) % (1 + running.task) == 0:
                began = self._clock()
                self.arbiter.report(running, self._now_ns, 1)
                self._note("report", began)
                began = self._clock()
                self.arbiter.finish(running, self._now_ns, 1)
                self._note("finish", began)
                ended += 1
        return ended


def growth(decisions: int = 1_000_000) -> dict[str, float]:
    """Python heap (tracemalloc) and resident memory gained over `decisions` decisions of one warm arbiter."""
    tracemalloc.start()
    contended = ContendedArbiter(timed=False)
    contended.run(20_000)
    gc.collect()
    start = contended.decisions
    small, _ = tracemalloc.get_traced_memory()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    while contended.decisions - start < decisions:
        contended.run(10_000)
    gc.collect()
    rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    large, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    return {"decisions": contended.decisions - start, "heap_bytes": large - small, "rss_kib": rss_kib}


def device_wait(kind: str) -> dict[str, Any]:
    """The device's own event record + synchronise, or why it is not measured here."""
    from cockpit.device.base import LaneSpec, open_device
    from models.errors import CockpitError

    clusters = {"a": 8, "system": 8} if kind == "cuda" else {"a": 1, "system": 0}
    try:
        device = open_device(kind, clusters, [LaneSpec("a", ("a",))])
    except (CockpitError, ImportError) as error:
        return {"what": f"not measured here: {error}", "p50_us": None, "p99_us": None}
    cost = device.event_sync_cost()
    device.close()
    return {"what": cost.what, "p50_us": cost.p50_us, "p99_us": cost.p99_us}


def gate_cost(rounds: int = 300) -> dict[str, float]:
    """What yielding costs: one read of the open gate, and from its opening to the parked thread going on."""
    gate = YieldGate()
    reads = 200_000
    start = time.perf_counter_ns()
    for _ in range(reads):
        if gate.closed:
            gate.wait()
    read_ns = (time.perf_counter_ns() - start) / reads
    resumed: list[int] = []
    going = True

    def work() -> None:
        while going:
            if gate.closed:
                gate.wait(1.0)
                resumed.append(time.perf_counter_ns())
            time.sleep(0.0002)

    worker = threading.Thread(target=work, daemon=True)
    worker.start()
    spent = []
    for _ in range(rounds):
        seen = len(resumed)
        with gate.hold(parked_within_s=1.0):
            pass
        opened = time.perf_counter_ns()
        while len(resumed) == seen:
            time.sleep(0.0001)
        spent.append(max(0, resumed[-1] - opened))
    going = False
    worker.join()
    spent.sort()
    return {
        "read_ns": read_ns,
        "resume_p50_us": spent[rounds // 2] / 1e3,
        "resume_p99_us": spent[rounds * 99 // 100] / 1e3,
    }


def measure(requests: int, kind: str) -> dict[str, Any]:
    gc.collect()
    contended = ContendedArbiter(timed=True)
    contended.run(20_000)
    for histogram in contended.histograms.values():
        histogram.clear()
    contended.run(min(requests, 200_000))
    contended.arbiter.check()
    seconds = ContendedArbiter(timed=False).run(requests)
    timer = LatencyHistogram()
    for _ in range(10_000):
        start = time.perf_counter_ns()
        timer.add(time.perf_counter_ns() - start)
    quantiles = {
        name: {"p50": h.quantile_ns(0.50) / 1e3, "p99": h.quantile_ns(0.99) / 1e3}
        for name, h in contended.histograms.items()
    }
    return {
        "decision_us": {**quantiles.pop("all"), "calls": quantiles},
        "timer_us": timer.quantile_ns(0.5) / 1e3,
        "requests_per_s": requests / seconds,
        "requests": requests,
        "evictions": contended.arbiter.evictions,
        "growth": growth(),
        "event_sync_us": device_wait(kind),
        "gate": gate_cost(),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    options = parser.parse_args(arguments)
    result = measure(options.requests, options.device)
    if options.json:
        print(json.dumps(result))
        return 0
    from rich.console import Console
    from rich.table import Table

    table = Table("call", "p50 us", "p99 us", title="one arbiter decision")
    table.add_row("all", f"{result['decision_us']['p50']:.2f}", f"{result['decision_us']['p99']:.2f}")
    for name, value in result["decision_us"]["calls"].items():
        table.add_row(name, f"{value['p50']:.2f}", f"{value['p99']:.2f}")
    wait = result["event_sync_us"]
    table.add_row(wait["what"], *(f"{wait[key]:.2f}" if wait[key] is not None else "-" for key in ("p50_us", "p99_us")))
    console = Console()
    console.print(table)
    grown = result["growth"]
    console.print(
        f"{result['requests_per_s']:,.0f} requests/s over {result['requests']:,}; {result['evictions']:,} evictions; "
        f"grown over {grown['decisions']:,} decisions: {grown['heap_bytes']} bytes of heap, {grown['rss_kib']} KiB "
        f"resident; "
        f"the timer itself costs {result['timer_us']:.2f} us of each figure"
    )
    gate = result["gate"]
    console.print(
        f"yield gate: {gate['read_ns']:.0f} ns per boundary while open (loop included); a parked thread goes on "
        f"{gate['resume_p50_us']:.0f} us (p99 {gate['resume_p99_us']:.0f}) after it opens"
    )
    return 0
