"""One hundred in-car tasks through the API, beside llama.cpp's server with the same weights and the same grammar.

    python -m benchmarks tasks100 [--json] [--tasks N] [--profile cpu] [--no-peer]

Both servers get the same messages and the same JSON schema and stream their answers: steady with 1, 2 and 4 requests
open, and pulsed in bursts of 8. The tasks are in benchmarks/data/tasks100.yaml: zh and en; navigation, climate, media,
several steps, follow-ups, questions, refusals, chat. accuracy: exactly the right calls. It is the language model's own;
the voice chain's parse and guards have no part in it.
"""

from __future__ import annotations

import json
from collections import defaultdict
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

from ruamel.yaml import YAML

from benchmarks.harness.paths import ROOT
from benchmarks.harness.report import command_line, head, percentiles
from benchmarks.harness.served import Answer, Progress, ServerProcess, cockpit_serving, pulsed, steady
from benchmarks.peers.llama_server import HOW, llama_serving, program
from models.store.store import Store

DATA = ROOT / "benchmarks" / "data" / "tasks100.yaml"
MODEL, SOURCE = "qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"
STEADY = (1, 2, 4)
BURST = 8
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


def measure(label: str, server: ServerProcess, tasks: Sequence[Task], task_set: TaskSet) -> dict[str, Any]:
    """Every pattern of load on one server, after a warm-up burst that fills its prompt cache."""
    bodies = [task_set.body(task) for task in tasks]
    pulsed(server.address, bodies[:BURST], BURST, lambda: None)
    loads: dict[str, Any] = {}
    for at_once in STEADY:
        progress = Progress(f"{label}, {at_once} at once", len(bodies))
        answers, took_s = steady(server.address, bodies, at_once, progress)
        loads[f"steady_{at_once}"] = _load(tasks, answers, took_s)
    progress = Progress(f"{label}, bursts of {BURST}", len(bodies))
    answers, took_s = pulsed(server.address, bodies, BURST, progress)
    loads[f"pulsed_{BURST}"] = _load(tasks, answers, took_s)
    return {"loads": loads, "peak_memory_mb": round(server.peak_mb)}


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


def run(profile: str, count: int, *, peer: bool) -> dict[str, Any]:
    """Ours, then the peer; never both at work."""
    task_set = TaskSet()
    tasks = task_set.some(count)
    store = Store.open()
    gguf = store.source(MODEL, SOURCE)
    result: dict[str, Any] = {"machine": head(), "profile": profile, "tasks": len(tasks)}
    with cockpit_serving(profile) as server:
        result["cockpit"] = measure("cockpit", server, tasks, task_set)
        result["stats"] = server.get("/v1/stats")
    if not peer:
        return result | {"peer_failure": "left out (--no-peer)"}
    if program() is None:
        return result | {"peer_failure": HOW}
    with llama_serving(gguf, threads=THREADS, slots=BURST, slot_tokens=SLOT_TOKENS) as server:
        result["llama.cpp"] = measure("llama.cpp", server, tasks, task_set)
    result["throughput_ratio"] = {
        load: round(row["throughput"] / result["llama.cpp"]["loads"][load]["throughput"], 2)
        for load, row in result["cockpit"]["loads"].items()
    }
    return result


def table(result: Mapping[str, Any]) -> str:
    """What people read."""
    lines = [
        f"{'':12}{'load':10}{'tasks/s':>9}{'TTFT P50':>10}{'P99':>8}{'turn P50':>10}{'P99':>8}"
        f"{'P99/P50':>9}{'failed':>8}{'right':>7}"
    ]
    for name in ("cockpit", "llama.cpp"):
        for load, row in result.get(name, {}).get("loads", {}).items():
            ttft, turn = row["ttft_ms"], row["turn_ms"]
            lines.append(
                f"{name:12}{load:10}{row['throughput']:9.2f}{ttft.get('p50', 0):10.0f}{ttft.get('p99', 0):8.0f}"
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
    options = parser.parse_args(arguments)
    if not 1 <= options.tasks <= 100:
        parser.error("--tasks takes 1 to 100")
    result = run(options.profile, options.tasks, peer=not options.no_peer)
    print(json.dumps(result, ensure_ascii=False) if options.json else table(result))
    return 0
