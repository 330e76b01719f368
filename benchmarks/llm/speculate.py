"""Runs of the model that tool calls take: token by token, with forced tokens skipped, and with guesses from the text.

    python -m benchmarks speculate [--json] [--model NAME] [--drafts N]

The calls are written greedily under a JSON schema; the three ways must give the same tokens. A run is one pass over the
model whatever its width, so the times stand beside the counts.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Sequence
from typing import Any

from benchmarks.harness.report import command_line, head
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.grammar import Grammar, GrammarConstraint
from models.store.store import Store

DEFAULT = "qwen2.5-coder-0.5b-instruct"
ZONES = {"type": "string", "enum": ["driver", "passenger", "rear_left", "rear_right", "all"]}


def _tool(name: str, **properties: Any) -> dict[str, Any]:
    arguments = {
        "type": "object",
        "properties": properties,
        "required": list(properties),
        "additionalProperties": False,
    }
    call = {"name": {"const": name}, "arguments": arguments}
    return {"type": "object", "properties": call, "required": ["name", "arguments"], "additionalProperties": False}


_NUMBER, _ACTION = {"type": "integer"}, {"type": "string", "enum": ["set", "raise", "lower"]}
SCHEMA = {
    "anyOf": [
        _tool("set_temperature", zone=ZONES, action=_ACTION, value=_NUMBER),
        _tool("set_window", zone=ZONES, action=_ACTION, percent=_NUMBER),
        _tool("set_seat_heating", zone=ZONES, action=_ACTION, level=_NUMBER),
        _tool(
            "navigate_to", place={"type": "string"}, avoid={"type": "string", "enum": ["none", "tolls", "motorways"]}
        ),
    ]
}
EXAMPLES = (
    ("Open the passenger window halfway", "set_window", {"zone": "passenger", "action": "set", "percent": 50}),
    ("把后排左边的座椅加热调到二档", "set_seat_heating", {"zone": "rear_left", "action": "set", "level": 2}),
    ("Drive to the airport without tolls", "navigate_to", {"place": "the airport", "avoid": "tolls"}),
    ("It is two degrees too cold for me", "set_temperature", {"zone": "driver", "action": "raise", "value": 2}),
)
ASKED = (
    "Set the driver's temperature to 22 degrees",
    "主驾温度调到二十四度",
    "Close all the windows",
    "打开右后车窗百分之三十",
    "Warm my seat, level three",
    "副驾座椅加热关到一档",
    "Take me to the central station, no motorways",
    "导航去首都机场",
)


class _NothingForced(GrammarConstraint):
    """The same grammar, but the model is asked for every token."""

    def forced(self) -> list[int]:
        return []


def measure(lm: CausalLM, way: str, drafts: int) -> dict[str, Any]:
    """One way over all sentences."""
    session = lm.open_session()
    grammar = Grammar.compile(SCHEMA, lm.tokenizer)
    runs, seconds, texts, written = [], [], [], 0
    run = session.body.run
    counted = 0

    def counting(tokens: list[int], position: int, *, every_row: bool) -> Any:
        nonlocal counted
        counted += 1
        return run(tokens, position, every_row=every_row)

    session.body.run = counting  # type: ignore[method-assign]
    for sentence in ASKED:
        session.draft_tokens = drafts if way == "guesses" else 0
        session.set_tokens(lm.chat.encode(_messages(sentence), lm.tokenizer))
        constraint = grammar.start()
        if way == "every token":
            constraint = _NothingForced(constraint._matcher, constraint._mask, constraint._vocab_size)
        counted, start = 0, time.perf_counter()
        made = list(session.generate(max_new_tokens=96, constraint=constraint))
        seconds.append(time.perf_counter() - start)
        runs.append(counted)
        written += len(made)
        texts.append(lm.tokenizer.decode(made))
    session.close()
    return {
        "way": way,
        "runs_per_call": round(statistics.mean(runs), 1),
        "tokens_per_call": round(written / len(ASKED), 1),
        "call_ms_median": round(1e3 * statistics.median(seconds)),
        "call_ms_most": round(1e3 * max(seconds)),
        "drafted": session.drafted,
        "accepted": session.accepted,
        "pauses": session.drafting.pauses,
        "texts": texts,
    }


def _messages(sentence: str) -> list[dict[str, str]]:
    messages = [{"role": "system", "content": "You turn what a driver says into one JSON tool call."}]
    for said, name, arguments in EXAMPLES:
        call = json.dumps({"name": name, "arguments": arguments}, ensure_ascii=False)
        messages += [{"role": "user", "content": said}, {"role": "assistant", "content": call}]
    return [*messages, {"role": "user", "content": sentence}]


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line("speculate", __doc__)
    parser.add_argument("--model", default=DEFAULT)
    parser.add_argument("--drafts", type=int, default=8, help="most tokens guessed ahead")
    options = parser.parse_args(arguments)
    lm = CausalLM.load(Store.open().built(options.model), context_tokens=1024, threads=2)
    lm.warm_up()
    rows = [measure(lm, way, options.drafts) for way in ("every token", "forced skipped", "guesses")]
    first = rows[0]["texts"]
    for row in rows:
        row["same_texts"] = row.pop("texts") == first
        row["fewer_runs"] = round(rows[0]["runs_per_call"] / row["runs_per_call"], 2)
    if options.json:
        print(json.dumps(head() | {"model": options.model, "drafts": options.drafts, "rows": rows}, indent=1))
        return 0
    for row in rows:
        print(" ".join(f"{key}={value}" for key, value in row.items()))
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
