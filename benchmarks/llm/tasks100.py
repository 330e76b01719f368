"""One hundred in-car tasks through the API, beside llama.cpp's server with the same weights and the same grammar.

    python -m benchmarks tasks100 [--json] [--tasks N] [--profile cpu] [--no-peer] [--keep FILE [--minutes M]]

Both servers get the same messages and the same JSON schema and stream their answers: steady with 1, 2 and 4 requests
open, in bursts of 8, and the first burst at a server that has just come up. The tasks are in
benchmarks/data/tasks100.yaml: zh and en; navigation, climate, media, several steps, follow-ups, questions, refusals,
chat. accuracy: exactly the right calls. It is the language model's own; the voice chain's parse and guards have no part
in it.
"""

from __future__ import annotations

import json
import os
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from typing import Any

from ruamel.yaml import YAML

from benchmarks.harness.kept import Kept, kept_options
from benchmarks.harness.paths import ROOT
from benchmarks.harness.report import command_line, head, percentiles
from benchmarks.harness.served import Answer, Progress, ServerProcess, cockpit_serving, pulsed, steady
from benchmarks.peers.llama_server import HOW, llama_serving, program
from models.store.store import Store

DATA = ROOT / "benchmarks" / "data" / "tasks100.yaml"
MODEL, SOURCE = "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
BURST = 8
COLD, PULSED = "cold", "bursts of 8"
LOADS = {"1 at once": 1, PULSED: BURST, "4 at once": 4, "2 at once": 2, COLD: BURST}
"""Requests open at a time. cold: one burst at a server that has just come up, nothing cached."""
PART = 24
"""Tasks that are measured without a pause: a burst is never cut, and a part takes a minute or two on two cores."""
MOST_TOKENS = 160
SLOT_TOKENS = 2048
THREADS = 2
JITTER = 3.0
"""P99 is at most so many times P50."""
RATIO = 1.5
"""The bar for tasks per second over the peer's on two cores."""


@dataclass(frozen=True, slots=True)
class Task:
    """One task. calls: (tool, arguments) in order."""

    name: str
    kind: str
    messages: tuple[Mapping[str, str], ...]
    calls: tuple[tuple[str, Mapping[str, Any]], ...]

    def right(self, text: str) -> bool:
        """Whether `text` is an answer with exactly these calls."""
        try:
            made = json.loads(text)["calls"]
            calls = [(call["name"], call["arguments"]) for call in made]
        except (ValueError, KeyError, TypeError):
            return False
        return len(calls) == len(self.calls) and all(
            name == wanted and _fits(arguments, expected)
            for (name, arguments), (wanted, expected) in zip(calls, self.calls, strict=True)
        )


def _fits(arguments: Mapping[str, Any], expected: Mapping[str, Any]) -> bool:
    return set(arguments) == set(expected) and all(_same(arguments[name], expected[name]) for name in expected)


def _same(made: Any, expected: Any) -> bool:
    if isinstance(expected, str):
        return expected.casefold() in str(made).casefold()
    return isinstance(made, bool) == isinstance(expected, bool) and made == expected


class TaskSet:
    """The tasks of the file, and the schema of their answers."""

    def __init__(self) -> None:
        data = YAML(typ="safe").load(DATA)
        self.schema = _schema(data["tools"])
        shown = ({"name": name, "arguments": arguments} for name, arguments in data["tools"].items())
        tools = "\n".join(json.dumps(tool, ensure_ascii=False) for tool in shown)
        system = {"role": "system", "content": f"{data['system']}\nTools:\n{tools}"}
        begin = [system, *_turns(data["examples"])]
        self.tasks = [_task(begin, kind, row) for kind, rows in data["tasks"].items() for row in rows]

    def some(self, count: int) -> list[Task]:
        """`count` of them, spread evenly over the kinds and mixed, so that neighbours differ."""
        by_rank = sorted(range(len(self.tasks)), key=lambda index: (index * 37) % len(self.tasks))
        return [self.tasks[index] for index in by_rank[:count]]

    def body(self, task: Task) -> dict[str, Any]:
        """The request."""
        form = {"type": "json_schema", "json_schema": {"name": "answer", "schema": self.schema}}
        return {
            "messages": list(task.messages),
            "max_tokens": MOST_TOKENS,
            "temperature": 0,
            "response_format": form,
        }


def _schema(tools: Mapping[str, Mapping[str, Any]]) -> dict[str, Any]:
    def argument(kind: Any) -> dict[str, Any]:
        if kind == "text":
            return {"type": "string", "minLength": 1, "maxLength": 40}
        if kind == "switch":
            return {"type": "boolean"}
        if isinstance(kind[0], int):
            return {"type": "integer", "minimum": kind[0], "maximum": kind[1]}
        return {"type": "string", "enum": list(kind)}

    def closed(properties: dict[str, Any]) -> dict[str, Any]:
        return {
            "type": "object", "properties": properties, "required": list(properties), "additionalProperties": False
        }  # fmt: skip

    calls = [
        closed({"name": {"const": name}, "arguments": closed({key: argument(kind) for key, kind in shown.items()})})
        for name, shown in tools.items()
    ]
    return closed(
        {
            "calls": {"type": "array", "items": {"anyOf": calls}, "maxItems": 4},
            "say": {"type": "string", "maxLength": 60},
        }
    )


def _task(begin: Sequence[Mapping[str, str]], kind: str, row: Mapping[str, Any]) -> Task:
    messages = [*begin, *_turns(row.get("before", ())), {"role": "user", "content": row["say"]}]
    calls = tuple((written["name"], written["arguments"]) for written in map(_written, row["calls"]))
    return Task(row["id"], kind, tuple(messages), calls)


def _turns(rows: Sequence[Mapping[str, Any]]) -> list[Mapping[str, str]]:
    """Earlier turns as messages."""
    messages: list[Mapping[str, str]] = []
    for turn in rows:
        answer = {"calls": [_written(call) for call in turn["calls"]], "say": turn["answer"]}
        messages.append({"role": "user", "content": turn["say"]})
        messages.append({"role": "assistant", "content": json.dumps(answer, ensure_ascii=False)})
    return messages


def _written(call: Mapping[str, Any]) -> dict[str, Any]:
    ((name, arguments),) = call.items()
    return {"name": name, "arguments": arguments}


# --- loads ------------------------------------------------------------------------------------------------------------
Row = dict[str, Any]


Part = tuple[str, slice]


def measure(
    label: str,
    server: ServerProcess,
    tasks: Sequence[Task],
    task_set: TaskSet,
    parts: Sequence[Part],
    kept: Kept,
    share: float,
) -> None:
    """What `kept` lacks of every load on one server that has just come up, until `share` of the time is spent. The
    first burst finds nothing cached.
    """
    bodies = [task_set.body(task) for task in tasks]
    answers, took_s = pulsed(server.address, bodies[:BURST], BURST, lambda: None)
    if f"{label} {COLD} 0" not in kept:
        kept.put(f"{label} {COLD} 0", _rows(answers, took_s))
    for load, part in parts:
        key = f"{label} {load} {part.start}"
        if key in kept or kept.over(share):
            continue
        progress = Progress(f"{label}, {load}, tasks {part.start} to {part.stop}", part.stop - part.start)
        at_once = LOADS[load]
        run_load = pulsed if load == PULSED else steady
        answers, took_s = run_load(server.address, bodies[part], at_once, progress)
        kept.put(key, _rows(answers, took_s))
        kept.put(f"{label} memory", max(round(server.peak_mb), kept.values.get(f"{label} memory", 0)))


def _parts(count: int, loads: Sequence[int]) -> list[Part]:
    """What is measured without a pause: PART tasks under one load. All loads of a part come before the next part."""
    wanted = [load for load, at_once in LOADS.items() if load != COLD and at_once in loads]
    return [(load, slice(start, min(start + PART, count))) for start in range(0, count, PART) for load in wanted]


def _rows(answers: Sequence[Answer], took_s: float) -> Row:
    return {"took_s": took_s, "load_average": os.getloadavg()[0], "answers": [asdict(answer) for answer in answers]}


def _missing(label: str, parts: Sequence[Part], kept: Kept) -> bool:
    return any(f"{label} {load} {part.start}" not in kept for load, part in parts)


def summary(label: str, tasks: Sequence[Task], kept: Kept) -> dict[str, Any]:
    """Figures of one server, of what was measured so far."""
    loads: dict[str, Any] = {}
    for load in LOADS:
        rows = [
            (int(key.rpartition(" ")[2]), row) for key, row in kept.values.items() if key.startswith(f"{label} {load} ")
        ]
        if not rows:
            continue
        done: list[Task] = []
        answers: list[Answer] = []
        for start, row in rows:
            answers += [Answer(**answer) for answer in row["answers"]]
            done += tasks[start : start + len(row["answers"])]
        loads[load] = _load(done, answers, sum(row["took_s"] for _, row in rows))
        loads[load] |= {"tasks": len(done), "load_average": round(max(row["load_average"] for _, row in rows), 1)}
    return {"loads": loads, "peak_memory_mb": kept.values.get(f"{label} memory", 0)}


def _load(tasks: Sequence[Task], answers: Sequence[Answer], took_s: float) -> dict[str, Any]:
    good = [answer for answer in answers if not answer.failure]
    turns = percentiles([answer.turn_ms for answer in good])
    right: dict[str, list[bool]] = defaultdict(list)
    for task, answer in zip(tasks, answers, strict=True):
        right[task.kind].append(not answer.failure and task.right(answer.text))
    return {
        "throughput": round(len(good) / took_s, 3),
        "ttft_ms": percentiles([answer.ttft_ms for answer in good]),
        "turn_ms": turns,
        "p99_over_p50": round(turns["p99"] / turns["p50"], 2) if turns else None,
        "failure_rate": round(1 - len(good) / len(answers), 4),
        "failures": sorted({answer.failure for answer in answers if answer.failure})[:5],
        "accuracy": round(sum(map(sum, right.values())) / len(answers), 3),
        "accuracy_by_kind": {kind: f"{sum(row)}/{len(row)}" for kind, row in right.items()},
        "wrong": [task.name for task, a in zip(tasks, answers, strict=True) if a.failure or not task.right(a.text)],
    }


def run(profile: str, count: int, loads: Sequence[int], kept: Kept, *, peer: bool) -> dict[str, Any]:
    """Ours, then the peer; never both at work."""
    task_set = TaskSet()
    tasks, parts = task_set.some(count), _parts(count, loads)
    gguf = Store.open().source(MODEL, SOURCE)
    result: dict[str, Any] = {"machine": head(), "profile": profile, "tasks": len(tasks)}
    if _missing("cockpit", parts, kept):
        with cockpit_serving(profile) as server:
            measure("cockpit", server, tasks, task_set, parts, kept, 0.5 if peer else 1.0)
            kept.put("cockpit stats", server.get("/v1/stats"))
    result["cockpit"] = summary("cockpit", tasks, kept)
    result["stats"] = kept.values.get("cockpit stats")
    if not peer:
        return result | {"peer_failure": "left out (--no-peer)"}
    if program() is None:
        return result | {"peer_failure": HOW}
    if _missing("llama.cpp", parts, kept) and not kept.over():
        with llama_serving(gguf, threads=THREADS, slots=BURST, slot_tokens=SLOT_TOKENS) as server:
            measure("llama.cpp", server, tasks, task_set, parts, kept, 1.0)
    theirs = summary("llama.cpp", tasks, kept)
    result["llama.cpp"] = theirs
    result["throughput_ratio"] = {
        load: round(row["throughput"] / theirs["loads"][load]["throughput"], 2)
        for load, row in result["cockpit"]["loads"].items()
        if load in theirs["loads"] and theirs["loads"][load]["throughput"]
    }
    return result


def table(result: Mapping[str, Any]) -> str:
    """What people read."""
    lines = [
        f"{'':12}{'load':13}{'tasks/s':>9}{'TTFT P50':>10}{'P99':>8}{'turn P50':>10}{'P99':>8}"
        f"{'P99/P50':>9}{'failed':>8}{'right':>7}"
    ]
    for name in ("cockpit", "llama.cpp"):
        for load, row in result.get(name, {}).get("loads", {}).items():
            ttft, turn = row["ttft_ms"], row["turn_ms"]
            lines.append(
                f"{name:12}{load:13}{row['throughput']:9.2f}{ttft.get('p50', 0):10.0f}{ttft.get('p99', 0):8.0f}"
                f"{turn.get('p50', 0):10.0f}{turn.get('p99', 0):8.0f}{row['p99_over_p50'] or 0:9.2f}"
                f"{row['failure_rate']:8.1%}{row['accuracy']:7.0%}"
            )
        if name in result:
            lines.append(f"{name:12}highest memory {result[name]['peak_memory_mb']} MB")
    for load, ratio in result.get("throughput_ratio", {}).items():
        lines.append(f"tasks per second over llama.cpp, {load}: {ratio:.2f} (bar {RATIO} on two cores)")
    if "peer_failure" in result:
        lines.append(f"no peer: {result['peer_failure']}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--tasks", type=int, default=100, help="how many of the hundred (100)")
    parser.add_argument("--profile", default="cpu", help="the profile that is served (cpu)")
    parser.add_argument("--no-peer", action="store_true", help="only ours")
    most = sorted(set(LOADS.values()))
    parser.add_argument("--loads", type=int, nargs="+", choices=most, default=most, help="requests at once (all)")
    kept_options(parser)
    options = parser.parse_args(arguments)
    if not 1 <= options.tasks <= 100:
        parser.error("--tasks takes 1 to 100")
    try:
        kept = Kept.of(options, {"tasks": options.tasks, "profile": options.profile})
    except ValueError as error:
        parser.error(str(error))
    result = run(options.profile, options.tasks, options.loads, kept, peer=not options.no_peer)
    print(json.dumps(result, ensure_ascii=False) if options.json else table(result))
    return 0
