"""How many dialogue sessions fit, and what they feel as they grow.

    python -m benchmarks capacity [--json] [--machine hbm|soc] [--profile cpu] [--no-served] [--growth N ...]

The first table is the simulator's: the real arbiter over recorded service times. The second is `cockpit serve` on this
machine: named dialogues take turns through the API, a few of them open at a time, and at last a crowd asks at once.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import replace
from typing import Any

from benchmarks.harness.report import command_line, percentiles
from benchmarks.harness.served import Answer, Progress, ServerProcess, ask, cockpit_serving, steady
from hil.simulator import DIALOGUE, HBM, LOADS, NAVIGATION, SOC, Simulator, config_of
from models.errors import CockpitError

MACHINES = {"hbm": HBM, "soc": SOC}
GROWTH = (1, 2, 4, 8, 12, 16, 24, 32, 48)
THINK_S = 8.0
"""Mean time between two turns of one simulated session."""
ARENA_MB = 512
GROWTH_SERVED = (1, 2, 4, 8, 16, 32, 48)
AT_ONCE = 4
"""Requests open at a time, as when people think between their turns."""
TURNS = 2
CROWD = 64
PROMPT = "The driver asked for a warmer cabin before the motorway. "
REPLY_TOKENS = 8


def simulated(machine_name: str) -> dict[str, Any]:
    """Rows per number of sessions, and the most that fit by memory and by latency."""
    machine = MACHINES[machine_name]
    config = config_of()
    slas = [task.latency_sla_ns / 1e6 for task in config.tasks.values()]
    rows = []
    for sessions in GROWTH:
        load = replace(
            LOADS[machine.name],
            sessions=sessions,
            long_session_share=0.0,
            dialogue_every_ms=THINK_S * 1000 / sessions,
        )
        outcome = Simulator(machine, load, seed=sessions, arena_mb=ARENA_MB).run(20_000)
        rows.append(
            {
                "sessions": sessions,
                "navigation_p50_ms": outcome.nav_p50_ms,
                "navigation_p99_ms": outcome.nav_p99_ms,
                "dialogue_p50_ms": outcome.dialogue_p50_ms,
                "dialogue_p99_ms": outcome.dialogue_p99_ms,
                "evictions": outcome.evictions,
                "refused": outcome.refused,
            }
        )
    within = [
        row["sessions"]
        for row in rows
        if row["navigation_p99_ms"] <= slas[NAVIGATION] and row["dialogue_p99_ms"] <= slas[DIALOGUE]
    ]
    without_eviction = [row["sessions"] for row in rows if row["evictions"] == 0]
    return {
        "machine": machine.name,
        "arena_mb": ARENA_MB,
        "rows": rows,
        "fit_by_memory": max(without_eviction, default=0),
        "fit_by_latency": max(within, default=0),
    }


def served(profile: str, growth: Sequence[int]) -> dict[str, Any]:
    """`cockpit serve`: named dialogues take turns as their number grows, then all of a crowd ask at once."""
    with cockpit_serving(profile) as server:
        histories: dict[str, list[dict[str, str]]] = {}
        rows = [_turns_of(server, histories, sessions) for sessions in growth]
        limit = _at_the_limit(server)
        return {"profile": profile, "rows": rows, "limit": limit, "peak_memory_mb": round(server.peak_mb)}


def _turns_of(server: ServerProcess, histories: dict[str, list[dict[str, str]]], sessions: int) -> dict[str, Any]:
    """TURNS of each of `sessions` dialogues, in order, AT_ONCE of them open; each finds its last turn's cache if it
    still has one.
    """
    before = _counted(server)
    names = [f"seat-{number}" for number in range(sessions)]
    answers: list[Answer] = []
    progress = Progress(f"{sessions} sessions", TURNS * sessions)
    for turn in range(TURNS):
        bodies = [_next_turn(histories.setdefault(name, []), name, turn) for name in names]
        made, _ = steady(server.address, bodies, AT_ONCE, progress)
        for name, answer in zip(names, made, strict=True):
            histories[name].append({"role": "assistant", "content": answer.text})
        answers += made
    after, kv = _counted(server), _model(server)["kv"]
    good = [answer for answer in answers if not answer.failure]
    prompt = after["prompt_tokens"] - before.get("prompt_tokens", 0)
    reused = after["reused_tokens"] - before.get("reused_tokens", 0)
    return {
        "sessions": sessions,
        "ttft_ms": percentiles([answer.ttft_ms for answer in good]),
        "turn_ms": percentiles([answer.turn_ms for answer in good]),
        "reused": round(reused / prompt, 3) if prompt else None,
        "kept": kv["open"],
        "cached_mb": round(kv["bytes"] / (1 << 20), 1),
        "parked_mb": round(kv["parked"]["bytes"] / (1 << 20), 1),
        "restored": kv["parked"]["restored"],
        "failed": sorted({answer.failure for answer in answers if answer.failure})[:3],
    }


def _next_turn(history: list[dict[str, str]], name: str, turn: int) -> dict[str, Any]:
    history.append({"role": "user", "content": f"{PROMPT}Question {turn + 1} of {name}?"})
    return {"messages": list(history), "max_tokens": REPLY_TOKENS, "session": name}


def _at_the_limit(server: ServerProcess) -> dict[str, Any]:
    """CROWD requests at once: how many were answered, what the others were told, and that a next one is served."""
    bodies = [
        {"messages": [{"role": "user", "content": f"{PROMPT}Number {number}?"}], "max_tokens": REPLY_TOKENS}
        for number in range(CROWD)
    ]
    answers, took_s = steady(server.address, bodies, CROWD, Progress(f"{CROWD} at once", CROWD))
    refused = [answer.failure for answer in answers if answer.failure]
    after = ask(server.address, bodies[0])
    return {
        "at_once": CROWD,
        "answered": len(answers) - len(refused),
        "refused": len(refused),
        "reasons": sorted({reason for reason in refused})[:3],
        "refused_ms": percentiles([answer.turn_ms for answer in answers if answer.failure]),
        "turn_ms": percentiles([answer.turn_ms for answer in answers if not answer.failure]),
        "took_s": round(took_s, 1),
        "next_one": after.failure or "answered",
    }


def _model(server: ServerProcess) -> Any:
    return next(iter(server.get("/v1/stats")["models"].values()))


def _counted(server: ServerProcess) -> dict[str, Any]:
    tasks: dict[str, dict[str, Any]] = _model(server)["tasks"]
    return tasks.get("dialogue_task", {})


def measure(machine_name: str, profile: str | None, growth: Sequence[int] = GROWTH_SERVED) -> dict[str, Any]:
    result: dict[str, Any] = {"simulated": simulated(machine_name), "served": None, "served_absent": "not asked for"}
    if profile is not None:
        try:
            result["served"] = served(profile, growth)
            result["served_absent"] = ""
        except (CockpitError, RuntimeError) as error:
            result["served_absent"] = f"not measured here: {error}"
    return result


def show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    blocks = [(f"simulated: {result['simulated']['machine']}", result["simulated"]["rows"])]
    if result["served"]:
        blocks.append((f"cockpit serve --profile {result['served']['profile']}", result["served"]["rows"]))
    for title, rows in blocks:
        table = Table(*(name.replace("_", " ") for name in rows[0]), title=title)
        for row in rows:
            table.add_row(*map(_cell, row.values()))
        console.print(table)
    first = result["simulated"]
    console.print(
        f"fit: {first['fit_by_memory']} sessions in {first['arena_mb']} MB without an eviction, "
        f"{first['fit_by_latency']} within both SLAs. {result['served_absent']}"
    )
    if result["served"]:
        limit = result["served"]["limit"]
        console.print(
            f"{limit['at_once']} requests at once: {limit['answered']} answered, {limit['refused']} refused within "
            f"{limit['refused_ms'].get('p99', 0):.0f} ms; the next one: {limit['next_one']}"
        )
        for reason in limit["reasons"]:
            console.print(f"  {reason}", markup=False)


def _cell(value: Any) -> str:
    if isinstance(value, dict):
        return " / ".join(f"{part:.0f}" for part in value.values())
    if isinstance(value, list):
        return "; ".join(map(str, value)) or "none"
    return f"{value:.0f}" if isinstance(value, float) and value >= 10 else str(value)


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--machine", choices=tuple(MACHINES), default="hbm")
    parser.add_argument("--profile", default="cpu", help="the profile that is served (cpu)")
    parser.add_argument("--no-served", dest="served", action="store_false", help="simulate only")
    parser.add_argument(
        "--growth", type=int, nargs="+", default=GROWTH_SERVED, help="sessions of the served process, in order"
    )
    options = parser.parse_args(arguments)
    result = measure(options.machine, options.profile if options.served else None, options.growth)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        show(result)
    return 0
