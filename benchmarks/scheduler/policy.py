"""The online policy on two simulated machines: every arm fixed, then the policy itself over a million requests.

    python -m benchmarks policy [--json] [--requests 1000000] [--fixed 60000]

ratio: mean price of an epoch over the run's last half, by that of the best fixed arm. broken: red lines broken.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.report import command_line
from hil.simulator import HBM, LOADS, SOC, Machine, Simulator


def measure(machine: Machine, requests: int, fixed_requests: int) -> dict[str, Any]:
    """Prices of all fixed arms, and what the policy came to."""
    load = LOADS[machine.name]
    probe = Simulator(machine, load, seed=0).arbiter
    fixed: list[dict[str, Any]] = [
        {
            "arm": arm.named(probe.task_names),
            "cost": outcome.cost,
            "navigation_p99_ms": outcome.nav_p99_ms,
            "dialogue_p99_ms": outcome.dialogue_p99_ms,
            "navigation_missed": outcome.missed[0],
        }
        for index, arm in enumerate(probe.policy.arms)
        for outcome in [Simulator(machine, load, seed=index, fixed_arm=index).run(fixed_requests)]
    ]
    learnt = Simulator(machine, load, seed=9).run(requests)
    best = min(row["cost"] for row in fixed)
    return {
        "machine": machine.name,
        "fixed": fixed,
        "requests": learnt.requests,
        "favourite": learnt.arm.named(probe.task_names),
        "cost": learnt.cost,
        "ratio": learnt.cost / best,
        "navigation_p99_ms": learnt.nav_p99_ms,
        "dialogue_p99_ms": learnt.dialogue_p99_ms,
        "navigation_missed": learnt.missed[0],
        "reverts": learnt.reverts,
        "broken": list(learnt.broken),
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--requests", type=int, default=1_000_000)
    parser.add_argument("--fixed", type=int, default=60_000)
    options = parser.parse_args(arguments)
    results = [measure(machine, options.requests, options.fixed) for machine in (HBM, SOC)]
    if options.json:
        print(json.dumps({"machines": results}))
        return 0
    from rich.console import Console
    from rich.table import Table

    console = Console()
    for result in results:
        table = Table("fixed arm", "price", "nav p99 ms", "nav late", "dialogue p99 ms", title=result["machine"])
        for row in result["fixed"]:
            cells = (row["navigation_p99_ms"], row["navigation_missed"], row["dialogue_p99_ms"])
            table.add_row(row["arm"], f"{row['cost']:.3f}", *(f"{cell:.0f}" for cell in cells))
        console.print(table)
        console.print(
            f"policy over {result['requests']:,}: price {result['cost']:.3f}, {result['ratio']:.3f} of the best fixed "
            f"arm; favourite {result['favourite']}; navigation late {result['navigation_missed']}; arms left in "
            f"mid-epoch {result['reverts']}; red lines broken: {result['broken'] or 'none'}"
        )
    return 0
