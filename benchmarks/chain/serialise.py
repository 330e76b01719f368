"""Bytes at the edges beside json.dumps, and the hop between stages.

    python -m benchmarks serialise [--json]

Every edge where bytes are made, with a 16K-token context (about 0.5 MB of JSON) where one is involved. `ratio` is
how many times faster than `json.dumps` of the same object, both as medians of one run. `hop`: one message through a
channel to a thread that waits for it.
"""

from __future__ import annotations

import json
import statistics
import threading
import time
from collections.abc import Callable, Sequence
from typing import Any

from benchmarks.harness.report import command_line
from cockpit.telemetry.trace import Span, chrome_trace
from pipeline.channels import Channel, Closed
from pipeline.json_codec import ContextEncoder, StateEncoder, dumps, json_lines

CONTEXT_TOKENS = 16_384
CHARACTERS_PER_TOKEN = 4
HOP_LIMIT_US = 100.0
REQUIRED_RATIO = 20.0

Edge = tuple[str, Callable[[], object], Callable[[], object]]


def context_messages() -> list[dict[str, Any]]:
    """A conversation of 16K tokens: tool calls with arguments and read-back values, zh and en, ~544 KB as JSON."""
    messages: list[dict[str, Any]] = []
    for number in range(1_420):
        messages.append(
            {
                "role": ("user", "assistant", "tool")[number % 3],
                "turn_id": number,
                "content": "Set the driver temperature to 22.5 degrees. 把主驾温度调到二十二度。",
                "tool_calls": [
                    {
                        "name": "set_signal",
                        "arguments": {"path": "Vehicle.Cabin.HVAC.Station.Row1.Driver.Temperature", "value": 22.5},
                        "result": {"status": "done", "value": 22.5, "reason": None},
                    }
                ],
                "ms": {"asr": 112.25, "llm": 240.5, "first_audio": 512.125},
            }
        )
    return messages


def vehicle_state() -> dict[str, Any]:
    """What state injection puts in front of a prompt: every signal with its value and unit."""
    return {
        f"Vehicle.Cabin.Zone{zone}.{name}": {"value": zone * 1.5, "unit": unit}
        for zone in range(16)
        for name, unit in (
            ("Temperature", "celsius"),
            ("FanSpeed", "percent"),
            ("IsOpen", "bool"),
            ("Level", "percent"),
        )
    }


def edges() -> list[Edge]:
    """(edge, what Cockpit does, the same through json.dumps)."""
    messages = context_messages()
    state = vehicle_state()
    call = messages[0]["tool_calls"][0]
    spans = tuple(Span("asr", n, "asr", n * 1000, n * 1000 + 700, "recognise") for n in range(4_000))
    trace = chrome_trace(spans)
    turns = {"turns": messages[:20]}
    encoder = ContextEncoder()
    encoder.encode(messages)

    def next_turn() -> bytes:
        # What a turn changes: the newest message is another object, everything before it is not.
        messages[-1] = dict(messages[-1])
        return encoder.encode_in({"model": "m", "stream": True}, "messages", messages)

    table = StateEncoder()
    for path, value in state.items():
        table.set(path, value)
    changing = next(iter(state))

    def next_state() -> bytes:
        table.set(changing, state[changing])
        return table.encode()

    plain = {"model": "m", "stream": True, "messages": messages}
    return [
        ("16K context, next turn", next_turn, lambda: json.dumps(plain)),
        ("16K context, from nothing", lambda: dumps(plain), lambda: json.dumps(plain)),
        ("tool arguments", lambda: dumps(call), lambda: json.dumps(call)),
        ("state injection, one change", next_state, lambda: json.dumps(state)),
        ("state injection, from nothing", lambda: dumps(state), lambda: json.dumps(state)),
        ("trace of 4000 spans", lambda: dumps(trace), lambda: json.dumps(trace)),
        ("control socket, one line", lambda: json_lines([state]), lambda: json.dumps(state)),
        ("command line --json", lambda: dumps(turns), lambda: json.dumps(turns)),
    ]


def measure_hop(messages: int = 5_000) -> dict[str, float]:
    """P50 and P99, in us, from `put` to a waiting thread's `get` having returned."""
    channel: Channel[int] = Channel("hop", 4)
    taken_ns: list[int] = []
    acknowledge = threading.Semaphore(0)

    def take() -> None:
        try:
            while True:
                sent_ns = channel.get()
                taken_ns.append(time.monotonic_ns() - sent_ns)
                acknowledge.release()
        except Closed:
            return

    reader = threading.Thread(target=take)
    reader.start()
    for _ in range(messages):
        channel.put(time.monotonic_ns())
        acknowledge.acquire()
    channel.close()
    reader.join()
    ordered = sorted(taken_ns[messages // 10 :])
    return {"p50_us": ordered[len(ordered) // 2] / 1e3, "p99_us": ordered[len(ordered) * 99 // 100] / 1e3}


def measure_encoding(ours: Callable[[], object], theirs: Callable[[], object], repeats: int) -> dict[str, float]:
    """Median us of both, run in turn so that a busy machine slows them alike, and how many times faster ours is."""
    pairs = [(_time_us(ours), _time_us(theirs)) for _ in range(repeats)]
    ours_us = statistics.median(pair[0] for pair in pairs)
    json_us = statistics.median(pair[1] for pair in pairs)
    return {"us": ours_us, "json_dumps_us": json_us, "ratio": json_us / ours_us}


def measure() -> dict[str, Any]:
    """The whole table as one object."""
    rows = {}
    for edge, ours, theirs in edges():
        repeats = 15 if "context" in edge or "trace" in edge else 400
        rows[edge] = measure_encoding(ours, theirs, repeats)
    size = len(dumps(context_messages()))
    return {"context_tokens": CONTEXT_TOKENS, "context_bytes": size, "edges": rows, "hop": measure_hop()}


def _time_us(work: Callable[[], object]) -> float:
    start_ns = time.perf_counter_ns()
    work()
    return (time.perf_counter_ns() - start_ns) / 1e3


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table or, with --json, one object."""
    parser = command_line(__name__, __doc__)
    options = parser.parse_args(arguments)
    result = measure()
    if options.json:
        print(dumps(result).decode())
        return 0
    print(f"{'edge':31}{'us':>10}{'json.dumps us':>16}{'ratio':>9}   ({result['context_bytes']} bytes of context)")
    for edge, row in result["edges"].items():
        print(f"{edge:31}{row['us']:10.1f}{row['json_dumps_us']:16.1f}{row['ratio']:8.1f}x")
    hop = result["hop"]
    print(f"hop between stages: P50 {hop['p50_us']:.1f} us, P99 {hop['p99_us']:.1f} us (limit {HOP_LIMIT_US:.0f} us)")
    return 0
