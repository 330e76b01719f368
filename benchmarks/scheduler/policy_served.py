"""The online policy in the served process: does it find the best arm, on a quiet machine and on one that is busy?

    python -m benchmarks policy_served [--json] [--requests 1500] [--keep FILE [--minutes M]] [--plot FILE]

The process serves as `cockpit serve` does, with the small model. The policy learns for a block of requests, then each
of its arms (a size of prefill chunk) is kept for a shorter one, and so on in turns, so that what else the machine does
strikes all alike. Three clients at a time in another process: sentences of tasks100 as navigation_task and as
dialogue_task, and notes to be read as background_task, with answers of 1 to 4 tokens. Then the same with a neighbour
that burns a core. The price of a block is computed as the policy does it (cockpit/arbiter/policy.py), from what the
clients felt. replayed: the policy over thousands of requests, whose times are drawn from those of the fixed arms.
"""

from __future__ import annotations

import json
import multiprocessing
import os
import statistics
import sys
import tempfile
import threading
from collections.abc import Iterator, Mapping, Sequence
from concurrent.futures import ProcessPoolExecutor
from contextlib import ExitStack, contextmanager
from dataclasses import replace
from pathlib import Path
from random import Random
from typing import Any

import numpy as np

from benchmarks.harness.kept import Kept, kept_options
from benchmarks.harness.plots import plot_policy
from benchmarks.harness.report import command_line, head, percentiles
from benchmarks.harness.served import Address, Answer, ask
from benchmarks.llm.spinning import neighbours
from benchmarks.llm.tasks100 import TaskSet
from cockpit.api.service import open_api
from cockpit.arbiter.policy import Policy, arms_of
from cockpit.assemble import assemble
from cockpit.profile.load import load_profile
from cockpit.runtime import NullSink
from cockpit.scheduling.dispatcher import Dispatcher
from cockpit.scheduling.service import SchedulingPlan
from models.store.store import Store

MODEL = "smollm2-135m-instruct"
LEARNING = "policy"
MACHINES = ("quiet", "busy")
EVERY = 25
"""Requests between two choices of the policy: `update_every_requests` of the profile that is served."""
BLOCK = 2 * EVERY
"""Requests while the policy learns, in its turn."""
FIXED_BLOCK = 15
"""Requests with each fixed arm, in its turn."""
REPLAYED = (1500, 3000, 6000)
SHORT = (1, 2, 3, 4)
NOTE = (
    "The driver likes {0} degrees and quiet music, stops every {1} minutes, and told about a trip of {2} kilometres. "
)
NAVIGATION, DIALOGUE, BACKGROUND = "navigation_task", "dialogue_task", "background_task"
URGENT_WEIGHT, MOST_LOAD = 2.0, 10.0
"""As in cockpit/arbiter/policy.py."""


def names() -> tuple[str, ...]:
    """The cases: the policy, and one for each arm that it has."""
    config = load_profile("cpu").arbiter
    assert config is not None
    return (LEARNING, *(f"chunk {chunk}" for chunk in config.policy.prefill_chunk_tokens))


def _body(draw: Random, tasks: Sequence[str], task: str) -> dict[str, Any]:
    if task == BACKGROUND:
        notes = (NOTE.format(draw.randrange(17, 26), draw.randrange(30, 200), draw.randrange(900)) for _ in range(6))
        messages = [{"role": "user", "content": f"Trip {draw.randrange(10**6)}. {''.join(notes)}Which music?"}]
    else:
        messages = [
            {"role": "system", "content": "You are the assistant of a car. Answer in one word."},
            {"role": "user", "content": f"{draw.choice(tasks)} ({draw.randrange(10**6)})"},
        ]
    return {"messages": messages, "max_tokens": draw.choice(SHORT), "temperature": 0, "task": task}


def asked(path: Path, count: int, seed: int) -> dict[str, Any]:
    """`count` requests, one client for each task: what they felt, in ms, and why any failed."""
    draw, left, lock = Random(seed), iter(range(count)), threading.Lock()
    sentences = [task.messages[-1]["content"] for task in TaskSet().tasks]
    felt: dict[str, list[float]] = {NAVIGATION: [], DIALOGUE: [], BACKGROUND: []}
    failures: list[str] = []

    def client(task: str) -> None:
        while True:
            with lock:
                if next(left, None) is None:
                    return
                body = _body(draw, sentences, task)
            answer = ask(Address(path), body)
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
    return {"felt_ms": felt, "failures": failures, "load_average": os.getloadavg()[0]}


def _felt(task: str, answer: Answer) -> float:
    """What the arbiter judges: navigation by its end, the others by their first token."""
    return answer.turn_ms if task == NAVIGATION else answer.ttft_ms or answer.turn_ms


class ServedPolicy:
    """The served process, and its policy as one case has it: learning, or frozen with one arm."""

    def __init__(self, dispatcher: Dispatcher, path: Path, clients: ProcessPoolExecutor) -> None:
        self._dispatcher = dispatcher
        self._path = path
        self._clients = clients
        self._seed = 0
        self.unlearnt = dispatcher.policy_state()[1]

    def learning(self, state: Mapping[str, Any], count: int) -> dict[str, Any]:
        """`count` requests while the policy that had come to `state` goes on learning."""
        return self._block(state, False, count)

    def fixed(self, state: Mapping[str, Any], arm: int, count: int) -> dict[str, Any]:
        """`count` requests with one arm."""
        return self._block({**state, "arm": arm}, True, count)

    def _block(self, state: Mapping[str, Any], frozen: bool, count: int) -> dict[str, Any]:
        refused = self._dispatcher.restore_policy(state)
        assert refused is None, refused
        self._dispatcher.freeze_policy(frozen)
        self._seed += 1
        row: dict[str, Any] = self._clients.submit(asked, self._path, count, self._seed).result()
        epoch, after = self._dispatcher.policy_state()
        return {**row, "arm": after["arm"], "epoch": epoch, "state": None if frozen else after}


@contextmanager
def serving_policy() -> Iterator[ServedPolicy]:
    """The profile `cpu` with the small model, served as `cockpit serve` does; the clients are another process."""
    with ExitStack() as opened:
        folder = Path(opened.enter_context(tempfile.TemporaryDirectory(prefix="cockpit-bench-")))
        file, path = folder / "small.yaml", folder / "api.sock"
        file.write_text(
            f"extends: cpu\nllm: {{dialogue: {{model: {MODEL}}}}}\n"
            f"api: {{grants: {{'*': [{DIALOGUE}, {BACKGROUND}, {NAVIGATION}]}}}}\n"
            f"orchestration: {{policy: {{update_every_requests: {EVERY}}}}}\n",
            encoding="utf-8",
        )
        loaded = load_profile(str(file))
        assert loaded.arbiter is not None
        plan, texts = SchedulingPlan(loaded.arbiter), loaded.profile.api.texts
        assembly = assemble(loaded.profile, Store.open(), NullSink(), scheduling=plan, api_texts=texts)
        opened.callback(assembly.close)
        assert assembly.service is not None
        api = open_api(loaded.profile, assembly, path)
        opened.callback(api.close)
        clients = opened.enter_context(ProcessPoolExecutor(1, multiprocessing.get_context("spawn")))
        served = ServedPolicy(assembly.service.dispatcher, path, clients)
        served.fixed(served.unlearnt, 0, 9)  # what later requests copy is computed
        yield served


def run(requests: int, kept: Kept) -> None:
    """What `kept` lacks: rounds of a block for every case, on each machine."""
    rounds = requests // BLOCK
    missing = [(machine, n) for machine in MACHINES for n in range(rounds) if f"{machine} {n}" not in kept]
    if not missing:
        return
    with serving_policy() as served:
        for machine, number in missing:
            if kept.over():
                return
            state = kept.values[f"{machine} {number - 1}"][LEARNING]["state"] if number else served.unlearnt
            with neighbours(1 if machine == "busy" else 0):
                row = {LEARNING: served.learning(state, BLOCK)}
                row |= {name: served.fixed(state, arm, FIXED_BLOCK) for arm, name in enumerate(names()[1:])}
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
    for machine in MACHINES:
        rows = [row for key, row in kept.values.items() if key.startswith(f"{machine} ")]
        if not rows:
            continue
        half = len(rows) // 2
        fixed = {name: _figures([row[name] for row in rows]) for name in names() if name != LEARNING}
        later = {name: price(felt_of([row[name] for row in rows[half:]])) for name in fixed}
        after = price(felt_of([row[LEARNING] for row in rows[half:]]))
        best = min(later, key=lambda name: later[name])
        out[machine] = {
            "fixed": fixed,
            "policy": _figures([row[LEARNING] for row in rows]),
            "price_by_block": {name: [round(price(felt_of([row[name]])), 3) for row in rows] for name in names()},
            "arms": [names()[1 + row[LEARNING]["arm"]] for row in rows],
            "best": best,
            "last_half": {"policy": round(after, 3), **{name: round(value, 3) for name, value in later.items()}},
            "replayed": [
                replayed([felt_of([row[name] for row in rows]) for name in fixed], count) for count in REPLAYED
            ],
            "ratio_to_best": round(after / later[best], 3),
            "ratio_to_default": round(after / later[names()[1]], 3),
            "load_average": round(max(row[LEARNING]["load_average"] for row in rows), 1),
        }
    return out


def replayed(felt: Sequence[Mapping[str, Sequence[float]]], requests: int, seeds: int = 20) -> dict[str, Any]:
    """A new policy over `requests` whose times are drawn from what each arm's clients felt: the mean price of the arms
    in force over the last half, by that of the best arm.
    """
    config = load_profile("cpu").arbiter
    assert config is not None
    slas = {task: config.tasks[task].latency_sla_ns for task in (NAVIGATION, DIALOGUE, BACKGROUND)}
    arms = arms_of(replace(config, widths_act=False))
    fixed = [price(times) for times in felt]
    counts = [len(felt[0][task]) for task in slas]
    ratios = []
    for seed in range(seeds):
        draw, policy, used = Random(seed), Policy(arms, every=EVERY, frozen=False), []
        for _ in range(requests):
            task = draw.choices(list(slas), counts)[0]
            used.append(fixed[policy.arm])
            took_ns = int(draw.choice(felt[policy.arm][task]) * 1e6)
            if policy.observe(took_ns, slas[task], task == NAVIGATION, True):
                policy.choose(False)
        half = used[requests // 2 :]
        ratios.append(sum(half) / len(half) / min(fixed))
    return {
        "requests": requests,
        "seeds": seeds,
        "median": round(statistics.median(ratios), 3),
        "worst": round(max(ratios), 3),
    }


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
        for replay in row["replayed"]:
            lines.append(
                f"  {replay['requests']} requests replayed {replay['seeds']} times, last half by the best arm: "
                f"median {replay['median']:.3f}, worst {replay['worst']:.3f}"
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
        kept = Kept.of(options, {"requests": options.requests, "cases": names(), "every": EVERY})
    except ValueError as error:
        parser.error(str(error))
    run(options.requests, kept)
    result: dict[str, Any] = {"machine": head(), "model": MODEL, "every": EVERY, "machines": summary(kept)}
    if options.plot is not None:
        plot_policy(result["machines"], BLOCK, options.plot)
    print(json.dumps(result) if options.json else table(result))
    return 0
