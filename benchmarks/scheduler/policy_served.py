"""The online policy in the served process: does it find the best arm, on a quiet machine and on one that is busy?

    python -m benchmarks policy_served [--json] [--requests 1500] [--keep FILE [--minutes M]] [--plot FILE]

Processes of `cockpit serve` with the small model: one learns, each other keeps one arm (one size of prefill chunk). All
get the same kinds of requests in turns, a block each, so that what else the machine does strikes all alike; three
clients at a time: sentences of tasks100 as navigation_task and as dialogue_task, and notes to be read as
background_task, with answers of 1 to 4 tokens. Then the same with a neighbour that burns a core. The price of a block
is computed as the policy does it (cockpit/arbiter/policy.py), from what the clients felt.
"""

from __future__ import annotations

import json
import os
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.harness.kept import Kept, kept_options
from benchmarks.harness.plots import plot_policy
from benchmarks.harness.report import command_line, head, percentiles
from benchmarks.harness.served import Address, Answer, ServerProcess, ask, serving
from benchmarks.llm.spinning import neighbours
from benchmarks.llm.tasks100 import TaskSet
from cockpit.profile.load import load_profile
from cockpit.scheduling.control_socket import ControlClient
from models.store.store import Store

MODEL = "smollm2-135m-instruct"
LEARNING = "policy"
MACHINES = ("quiet", "busy")
EVERY = 50
"""Requests between two choices of the policy: `update_every_requests` of the profile that is served."""
BLOCK = 2 * EVERY
"""Requests that the process which learns gets in its turn."""
FIXED_BLOCK = 30
"""And each with one arm."""
SHORT = (1, 2, 3, 4)
NOTE = (
    "The driver likes {0} degrees and quiet music, stops every {1} minutes, and told about a trip of {2} kilometres. "
)
NAVIGATION, DIALOGUE, BACKGROUND = "navigation_task", "dialogue_task", "background_task"
URGENT_WEIGHT, MOST_LOAD = 2.0, 10.0
"""As in cockpit/arbiter/policy.py."""


@dataclass(frozen=True, slots=True)
class Case:
    """One process: the chunk sizes it may use, the first one safe."""

    name: str
    chunks: tuple[int, ...]


def cases() -> tuple[Case, ...]:
    """The learning one with what the profile `cpu` offers, and one for each of its arms."""
    config = load_profile("cpu").arbiter
    assert config is not None
    chunks = config.policy.prefill_chunk_tokens
    return (Case(LEARNING, chunks), *(Case(f"chunk {chunk}", (chunk,)) for chunk in chunks))


class Served:
    """One served process and the stream of its requests, the same for every case."""

    def __init__(self, server: ServerProcess, control: Path, seed: int) -> None:
        self.server = server
        self._control = ControlClient(control)
        self._draw = Random(seed)
        self._tasks = [task.messages[-1]["content"] for task in TaskSet().tasks]

    def block(self, count: int) -> dict[str, Any]:
        """`count` answers, three clients at a time, and the arm that was in force at the end."""
        left = iter(range(count))
        lock = threading.Lock()
        felt: dict[str, list[float]] = {NAVIGATION: [], DIALOGUE: [], BACKGROUND: []}
        failures: list[str] = []

        def client(task: str) -> None:
            while True:
                with lock:
                    if next(left, None) is None:
                        return
                    body = self._body(task)
                answer = ask(self.server.address, body)
                with lock:
                    if answer.failure:
                        failures.append(answer.failure)
                    else:
                        felt[task].append(_felt(task, answer))

        clients = [threading.Thread(target=client, args=(task,)) for task in felt]
        for one in clients:
            one.start()
        for one in clients:
            one.join()
        reply = self._control.ask("policy", action="show")
        return {
            "felt_ms": felt,
            "failures": failures,
            "arm": reply["policy"]["arm"],
            "epoch": reply["learnt"]["epoch"],
            "load_average": os.getloadavg()[0],
        }

    def _body(self, task: str) -> dict[str, Any]:
        draw = self._draw
        if task == BACKGROUND:
            notes = (
                NOTE.format(draw.randrange(17, 26), draw.randrange(30, 200), draw.randrange(900)) for _ in range(6)
            )
            messages = [{"role": "user", "content": f"Trip {draw.randrange(10**6)}. {''.join(notes)}Which music?"}]
        else:
            messages = [
                {"role": "system", "content": "You are the assistant of a car. Answer in one word."},
                {"role": "user", "content": f"{draw.choice(self._tasks)} ({draw.randrange(10**6)})"},
            ]
        return {"messages": messages, "max_tokens": draw.choice(SHORT), "temperature": 0, "task": task}


def _felt(task: str, answer: Answer) -> float:
    """What the arbiter judges: navigation by its end, the others by their first token."""
    return answer.turn_ms if task == NAVIGATION else answer.ttft_ms or answer.turn_ms


@contextmanager
def learning_cache(folder: Path) -> Iterator[Path]:
    """A cache with the store's models, where what is learnt stays in `folder` and does not enter the store's own."""
    folder.mkdir(parents=True, exist_ok=True)
    for entry in Store.open().root.iterdir():
        link = folder / entry.name
        if entry.name != "state" and not link.exists():
            link.symlink_to(entry)
    yield folder


@contextmanager
def policy_serving(case: Case, cache: Path, seed: int) -> Iterator[Served]:
    """`cockpit serve --no-voice` with the arms of `case`."""
    with tempfile.TemporaryDirectory(prefix="cockpit-bench-") as name:
        folder = Path(name)
        profile, control, path = folder / "arms.yaml", folder / "o3.sock", folder / "api.sock"
        profile.write_text(
            f"extends: cpu\nllm: {{dialogue: {{model: {MODEL}}}}}\ncontrol: {{socket: {control}}}\n"
            f"api: {{grants: {{'*': [{DIALOGUE}, {BACKGROUND}, {NAVIGATION}]}}}}\n"
            f"orchestration: {{policy: {{update_every_requests: {EVERY}, "
            f"prefill_chunk_tokens: {list(case.chunks)}}}}}\n",
            encoding="utf-8",
        )
        command = [sys.executable, "-m", "cockpit", "serve", "--no-voice", "--profile", str(profile)]
        environment = {**os.environ, "COCKPIT_CACHE": str(cache)}
        log = folder / "server.log"
        with serving([*command, "--socket", str(path)], Address(path), log, environment) as server:
            yield Served(server, control, seed)


def run(requests: int, kept: Kept, caches: Path) -> None:
    """What `kept` lacks: rounds of a block for every case, on each machine."""
    rounds = requests // BLOCK
    for machine in MACHINES:
        missing = [number for number in range(rounds) if f"{machine} {number}" not in kept]
        if not missing or kept.over():
            continue
        with ExitStack() as opened:
            opened.enter_context(neighbours(1 if machine == "busy" else 0))
            served = {}
            for case in cases():
                cache = opened.enter_context(learning_cache(caches / f"{machine}-{case.name.replace(' ', '-')}"))
                served[case.name] = opened.enter_context(policy_serving(case, cache, missing[0]))
                served[case.name].block(6)  # the first requests compute what later ones copy
            for number in missing:
                if kept.over():
                    break
                row = {name: one.block(BLOCK if name == LEARNING else FIXED_BLOCK) for name, one in served.items()}
                kept.put(f"{machine} {number}", row)
                prices = ", ".join(f"{name} {price(felt_of([row[name]])):.2f}" for name in row)
                sys.stderr.write(f"{machine} {number + 1}/{rounds}: arm {row[LEARNING]['arm'] + 1}; price: {prices}\n")


# --- figures ----------------------------------------------------------------------------------------------------------
def felt_of(blocks: Sequence[Mapping[str, Any]]) -> dict[str, list[float]]:
    """The times of several blocks together."""
    return {
        task: [ms for block in blocks for ms in block["felt_ms"][task]] for task in (NAVIGATION, DIALOGUE, BACKGROUND)
    }


def price(felt: Mapping[str, Sequence[float]]) -> float:
    """The policy's price of what the clients felt."""
    config = load_profile("cpu").arbiter
    assert config is not None
    loads = {task: np.array(times) * 1e6 / config.tasks[task].latency_sla_ns for task, times in felt.items()}
    urgent = loads.pop(NAVIGATION)
    others = np.minimum(np.concatenate(list(loads.values())), MOST_LOAD)
    return float(URGENT_WEIGHT * (urgent.mean() + 2.0 * urgent.std()) + others.mean())


def summary(kept: Kept) -> dict[str, Any]:
    """For each machine: what every case felt, and the policy before and after it learnt."""
    out: dict[str, Any] = {}
    names = [case.name for case in cases()]
    for machine in MACHINES:
        rows = [row for key, row in kept.values.items() if key.startswith(f"{machine} ")]
        if not rows:
            continue
        half = len(rows) // 2
        fixed = {name: _figures([row[name] for row in rows]) for name in names if name != LEARNING}
        later = {name: price(felt_of([row[name] for row in rows[half:]])) for name in fixed}
        after = price(felt_of([row[LEARNING] for row in rows[half:]]))
        best = min(later, key=lambda name: later[name])
        out[machine] = {
            "fixed": fixed,
            "policy": _figures([row[LEARNING] for row in rows]),
            "price_by_block": {name: [round(price(felt_of([row[name]])), 3) for row in rows] for name in names},
            "arms": [names[1 + row[LEARNING]["arm"]] for row in rows],
            "best": best,
            "last_half": {"policy": round(after, 3), **{name: round(value, 3) for name, value in later.items()}},
            "ratio_to_best": round(after / later[best], 3),
            "ratio_to_default": round(after / later[names[1]], 3),
            "load_average": round(max(row[LEARNING]["load_average"] for row in rows), 1),
        }
    return out


def _figures(blocks: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    felt = felt_of(blocks)
    return {
        "requests": sum(map(len, felt.values())),
        "failed": sum(len(block["failures"]) for block in blocks),
        "price": round(price(felt), 3),
        "navigation_ms": percentiles(felt[NAVIGATION], (50, 95, 99)),
        "dialogue_ms": percentiles(felt[DIALOGUE], (50, 95, 99)),
        "background_ms": percentiles(felt[BACKGROUND], (50, 95, 99)),
    }


def table(result: Mapping[str, Any]) -> str:
    """What people read."""
    lines = []
    for machine, row in result["machines"].items():
        lines.append(f"{machine}: load average up to {row['load_average']}; arm in force after each block:")
        lines.append("  " + ", ".join(row["arms"]))
        lines.append(
            f"  {'':10}{'requests':>9}{'failed':>7}{'price':>8}{'last half':>10}{'nav P50':>9}{'P95':>7}{'talk P50':>9}"
        )
        for name, figures in {**row["fixed"], LEARNING: row["policy"]}.items():
            navigation, dialogue = figures["navigation_ms"], figures["dialogue_ms"]
            lines.append(
                f"  {name:10}{figures['requests']:9}{figures['failed']:7}{figures['price']:8.2f}"
                f"{row['last_half'][name]:10.2f}{navigation['p50']:9.0f}{navigation['p95']:7.0f}{dialogue['p50']:9.0f}"
            )
        lines.append(
            f"  last half: {row['ratio_to_best']:.2f} of the best fixed arm ({row['best']}), "
            f"{row['ratio_to_default']:.2f} of the safe one"
        )
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--requests", type=int, default=1500, help="of the process that learns, on each machine (1500)")
    parser.add_argument("--plot", type=Path, help="draw prices and arms over the requests into this PNG")
    kept_options(parser)
    options = parser.parse_args(arguments)
    if options.requests < 2 * BLOCK:
        parser.error(f"--requests takes {2 * BLOCK} or more: a block has {BLOCK}")
    try:
        kept = Kept.of(options, {"requests": options.requests, "chunks": list(cases()[0].chunks), "every": EVERY})
    except ValueError as error:
        parser.error(str(error))
    with tempfile.TemporaryDirectory(prefix="cockpit-bench-") as name:
        caches = Path(name) if options.keep is None else options.keep.with_suffix(".learnt")
        run(options.requests, kept, caches)
    result: dict[str, Any] = {"machine": head(), "model": MODEL, "every": EVERY, "machines": summary(kept)}
    if options.plot is not None:
        plot_policy(result["machines"], BLOCK, options.plot)
    print(json.dumps(result) if options.json else table(result))
    return 0
