"""How many dialogue sessions fit, and what navigation and dialogue feel as they grow.

    python -m benchmarks capacity [--json] [--machine hbm|soc] [--no-real]

The first table is the simulator's: the real arbiter over recorded service times. The second is this machine's CPU: real
sessions of the default language model, each a thread that asks the arbiter for the dialogue lane.
"""

from __future__ import annotations

import json
import resource
import threading
import time
from collections.abc import Sequence
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness.report import command_line
from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.budget import kv_bytes
from cockpit.device.base import LaneSpec, open_device
from cockpit.profile.orchestration import parse
from cockpit.scheduling.dispatcher import Dispatcher, Refused
from hil.simulator import DIALOGUE, HBM, LOADS, NAVIGATION, SOC, Simulator, config_of
from models.engines.llm.causal_lm import CausalLM
from models.errors import CockpitError
from models.store.store import Store

MACHINES = {"hbm": HBM, "soc": SOC}
GROWTH = (1, 2, 4, 8, 12, 16, 24, 32, 48)
THINK_S = 8.0
"""Mean time between two turns of one session."""
ARENA_MB = 512
REAL_GROWTH = (1, 2, 4)
REAL_TURNS = 3
PROMPT = "The driver asked for a warmer cabin before the motorway. "
REPLY_TOKENS = 8
CONTEXT_TOKENS = 512
MODEL = "qwen2.5-coder-0.5b-instruct"
PROFILE: dict[str, Any] = {
    "global_limits": {"max_gpu_memory_percent": 85, "min_token_per_second": 1},
    "eviction_policy": {"type": "hybrid", "lru_k": 3, "age_threshold_seconds": 180, "memory_pressure_threshold": 0.7},
    "clusters": {"cores": 1, "system": 0},
    "tasks": {
        "navigation_task": {"priority": 9, "latency_sla": "500ms", "memory_budget_mb": 64, "affinity_mask": "cores"},
        "dialogue_task": {
            "priority": 5, "latency_sla": "2s", "memory_budget_mb": 512, "affinity_mask": "cores", "timeout": "60s",
        },
    },
}  # fmt: skip


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


class DialogueSession:
    """One real session: a thread that takes turns in the dialogue lane."""

    def __init__(self, dispatcher: Dispatcher, lm: CausalLM, name: str, session_bytes: int) -> None:
        self._dispatcher = dispatcher
        self._session = lm.open_session()
        self._tokens = lm.tokenizer.encode(PROMPT * 2)
        self._name = name
        self._bytes = session_bytes
        self.turns_ms: list[float] = []
        self.refused = 0

    def run(self) -> None:
        for turn in range(REAL_TURNS):
            began = time.perf_counter()
            try:
                self._turn(turn)
            except Refused:
                self.refused += 1
                continue
            self.turns_ms.append((time.perf_counter() - began) * 1e3)

    def _turn(self, turn: int) -> None:
        with self._dispatcher.lease("dialogue_task", session=self._name, kv_bytes=self._bytes) as lease:
            chunk = lease.prefill_chunk_tokens
            self._session.set_tokens(self._tokens[turn:], chunk=chunk, at_boundary=lambda: _go_on(lease.boundary(0)))
            for _ in self._session.generate(max_new_tokens=REPLY_TOKENS, at_boundary=lambda: _go_on(lease.boundary(1))):
                pass


def _go_on(_may: bool) -> None:
    """The turn is short: it parks when told to, and never stops early."""


def real(model_dir: Path) -> dict[str, Any]:
    """Turns of the built model as sessions grow, one core as the lane, navigation asking in between."""
    checked = parse(PROFILE)
    assert checked.config is not None, checked.errors
    lm = CausalLM.load(model_dir, threads=1, context_tokens=CONTEXT_TOKENS)
    lm.warm_up()
    shape = lm.config
    session_bytes = kv_bytes(shape.layers, shape.kv_heads, shape.head_dim, CONTEXT_TOKENS, 4)
    device = open_device("cpu", checked.config.clusters, [LaneSpec("cores", ("cores",))])
    rows = []
    with device.enter("cores"):
        for sessions in REAL_GROWTH:
            dispatcher = Dispatcher(Arbiter(checked.config, 512 << 20))
            dialogues = [DialogueSession(dispatcher, lm, f"s{index}", session_bytes) for index in range(sessions)]
            threads = [threading.Thread(target=dialogue.run, daemon=True) for dialogue in dialogues]
            for thread in threads:
                thread.start()
            navigation_ms = _navigate(dispatcher, lm, threads)
            for thread in threads:
                thread.join()
            dispatcher.arbiter.check()
            turns = sorted(ms for dialogue in dialogues for ms in dialogue.turns_ms)
            rows.append(
                {
                    "sessions": sessions,
                    "navigation_p50_ms": _quantile(navigation_ms, 0.5),
                    "navigation_max_ms": max(navigation_ms, default=0.0),
                    "dialogue_p50_ms": _quantile(turns, 0.5),
                    "dialogue_max_ms": max(turns, default=0.0),
                    "kv_mb": sessions * session_bytes / (1 << 20),
                    "refused": sum(dialogue.refused for dialogue in dialogues),
                }
            )
    device.close()
    peak_mb = resource.getrusage(resource.RUSAGE_SELF).ru_maxrss / 1024
    return {"model": model_dir.name, "rows": rows, "session_mb": session_bytes / (1 << 20), "process_peak_mb": peak_mb}


def _navigate(dispatcher: Dispatcher, lm: CausalLM, beside: list[threading.Thread]) -> list[float]:
    """A short urgent request (8 tokens of prompt) every 300 ms while dialogue goes on; what each took, ms."""
    session = lm.open_session()
    tokens = lm.tokenizer.encode("Keep right at the fork ahead, then left.")[:8]
    spent: list[float] = []
    while any(thread.is_alive() for thread in beside):
        time.sleep(0.3)
        began = time.perf_counter()
        with dispatcher.lease("navigation_task"):
            session.set_tokens([tokens[-1 - len(spent) % 2], *tokens])
        spent.append((time.perf_counter() - began) * 1e3)
    return sorted(spent)


def _quantile(values: list[float], share: float) -> float:
    return values[min(len(values) - 1, int(share * len(values)))] if values else 0.0


def measure(machine_name: str, with_real: bool) -> dict[str, Any]:
    result: dict[str, Any] = {"simulated": simulated(machine_name), "real": None, "real_absent": "not asked for"}
    if with_real:
        try:
            result["real"] = real(Store.open().ensure(MODEL))
            result["real_absent"] = ""
        except CockpitError as error:
            result["real_absent"] = f"not measured here: {error}"
    return result


def show(result: dict[str, Any]) -> None:
    from rich.console import Console
    from rich.table import Table

    console = Console()
    blocks = [(f"simulated: {result['simulated']['machine']}", result["simulated"]["rows"])]
    if result["real"]:
        blocks.append((f"real, one core: {result['real']['model']}", result["real"]["rows"]))
    for title, rows in blocks:
        table = Table(*(name.replace("_", " ") for name in rows[0]), title=title)
        for row in rows:
            table.add_row(*(f"{value:.0f}" if isinstance(value, float) else str(value) for value in row.values()))
        console.print(table)
    first = result["simulated"]
    console.print(
        f"fit: {first['fit_by_memory']} sessions in {first['arena_mb']} MB without an eviction, "
        f"{first['fit_by_latency']} within both SLAs. {result['real_absent']}"
    )


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--machine", choices=tuple(MACHINES), default="hbm")
    parser.add_argument("--no-real", dest="real", action="store_false", help="simulate only")
    options = parser.parse_args(arguments)
    result = measure(options.machine, options.real)
    if options.json:
        print(json.dumps(result))
    else:
        show(result)
    return 0
