"""Time of one decision, requests per second and growth over a million decisions, beside the device's cheapest wait.

    python -m benchmarks.arbiter [--json] [--requests N] [--device cpu|cuda]

A decision is one call of the arbiter: `submit`, `decide` (whether it starts something or finds nothing to start),
`report` or `finish`. Contention is real: navigation beside dialogue sessions that outgrow the arena, so that yields and
evictions are among the decisions.
"""

from __future__ import annotations

import argparse
import gc
import json
import resource
import sys
import time
import tracemalloc
from typing import Any

from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.config import parse
from cockpit.arbiter.requests import RUNNING, LatencyHistogram

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


def exercise(requests: int, timed: bool) -> tuple[dict[str, LatencyHistogram], float, Arbiter]:
    """Run `requests` requests through a fresh arbiter. Histograms per call (timed only), seconds, the arbiter."""
    checked = parse(PROFILE)
    assert checked.config is not None, checked.errors
    arbiter = Arbiter(checked.config, ARENA_BYTES)
    histograms = {name: LatencyHistogram() for name in ("all", "submit", "decide", "report", "finish")}
    everything = histograms["all"]
    sessions = tuple(f"s{index}" for index in range(SESSIONS))
    clock = time.perf_counter_ns if timed else (lambda: 0)
    began = time.perf_counter()
    now_ns = 0
    done = 0

    def note(name: str, spent_ns: int) -> None:
        if timed:
            everything.add(spent_ns)
            histograms[name].add(spent_ns)

    step = 0
    while done < requests:
        step += 1
        now_ns += 1_000_000
        task = (0, 2, 0, 1, 0, 2, 3, 2)[step & 7]
        session = sessions[(step // 64 + step * 7919 % 3) % SESSIONS] if task == 2 else None
        start = clock()
        arbiter.submit(task, now_ns, session=session, kv_bytes=KV_BYTES if session else 0, expected_ns=5_000_000)
        note("submit", clock() - start)
        for _ in range(4):
            start = clock()
            chosen = arbiter.decide(now_ns)
            note("decide", clock() - start)
            if chosen is None:
                break
            if chosen.state != RUNNING:
                arbiter.finish(chosen, now_ns)
        now_ns += 500_000
        for running in arbiter.running:
            if running is not None and (step + running.task) % (1 + running.task) == 0:
                start = clock()
                arbiter.report(running, now_ns, 1)
                note("report", clock() - start)
                start = clock()
                arbiter.finish(running, now_ns, 1)
                note("finish", clock() - start)
                done += 1
    return histograms, time.perf_counter() - began, arbiter


def growth(requests: int) -> dict[str, float]:
    """Python heap (tracemalloc, over a tenth) and resident memory (over all) gained between two long runs."""
    exercise(2_000, timed=False)
    gc.collect()
    before_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss
    exercise(requests, timed=False)
    rss_kib = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss - before_kib
    tracemalloc.start()
    keep = exercise(1_000, timed=False)
    small, _ = tracemalloc.get_traced_memory()
    del keep
    gc.collect()
    keep = exercise(requests // 10, timed=False)
    large, _ = tracemalloc.get_traced_memory()
    tracemalloc.stop()
    del keep
    return {"rss_kib": float(rss_kib), "heap_bytes": float(large - small)}


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


def measure(requests: int, kind: str) -> dict[str, Any]:
    gc.collect()
    exercise(20_000, timed=True)
    histograms, _, arbiter = exercise(min(requests, 200_000), timed=True)
    arbiter.check()
    _, seconds, _ = exercise(requests, timed=False)
    timer = LatencyHistogram()
    for _ in range(10_000):
        start = time.perf_counter_ns()
        timer.add(time.perf_counter_ns() - start)
    quantiles = {
        name: {"p50": h.quantile_ns(0.50) / 1e3, "p99": h.quantile_ns(0.99) / 1e3} for name, h in histograms.items()
    }
    return {
        "decision_us": {**quantiles.pop("all"), "calls": quantiles},
        "timer_us": timer.quantile_ns(0.5) / 1e3,
        "requests_per_s": requests / seconds,
        "requests": requests,
        "evictions": arbiter.evictions,
        "growth": growth(requests),
        "event_sync_us": device_wait(kind),
    }


def main() -> None:
    options = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    options.add_argument("--json", action="store_true")
    options.add_argument("--requests", type=int, default=1_000_000)
    options.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    chosen = options.parse_args()
    result = measure(chosen.requests, chosen.device)
    if chosen.json:
        json.dump(result, sys.stdout)
        print()
        return
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
        f"grown: {grown['heap_bytes']:.0f} bytes of heap, {grown['rss_kib']:.0f} KiB resident; "
        f"the timer itself costs {result['timer_us']:.2f} us of each figure"
    )


if __name__ == "__main__":
    main()
