"""What the KV gate saves and costs, by score and share: memory, needles, tool choice, agreement with the whole cache.

    python -m benchmarks kv_gate [--json] [--model NAME] [--tokens N] [--texts N] [--budget-s S] [--out FILE]

Dialogues of benchmarks/data/kv_gate.yaml are read with a whole cache. Every gate then drops from a copy of it, so all
of them see the same keys; `while read` is the gate as it serves, dropping as the text is read. needles: one fact asked
for; several: how many facts a list of all has; tools: the right call is the likeliest of four; agreement: of single
next tokens with the whole cache's.
"""

from __future__ import annotations

import json
import os
import time
from collections import defaultdict
from collections.abc import Sequence
from typing import Any

import numpy as np
from ruamel.yaml import YAML

from benchmarks.harness.paths import ROOT
from benchmarks.harness.report import Report, command_line, head, report_options
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.cpu import CpuBody
from models.engines.llm.kv.gate import DEFAULT_SCORE, SCORES, KvGate
from models.engines.llm.session import ParkedText
from models.store.store import Store

DATA = ROOT / "benchmarks" / "data" / "kv_gate.yaml"
SYSTEM = "You are the voice of a car. Answer briefly. To act, answer with one JSON object that names a tool."
WHOLE = KvGate(1.0, block=1 << 30)
NEEDLES = 4
Turns = list[dict[str, str]]


def gates() -> dict[str, KvGate]:
    """The whole cache first: others are compared with it."""
    named = {"whole": WHOLE}
    for ratio in (0.6, 0.8, 0.4):
        for score in SCORES if ratio == 0.6 else (DEFAULT_SCORE,):
            named[f"{score} {ratio:.0%}"] = KvGate(ratio, score)
    return named


def dialogue(lm: CausalLM, data: dict[str, Any], tokens: int, number: int) -> tuple[Turns, list[dict[str, Any]]]:
    """Turns of about `tokens` tokens, with four facts at even depths, and these facts."""
    facts = [data["facts"][(number * NEEDLES + at) % len(data["facts"])] for at in range(NEEDLES)]
    turns: Turns = [{"role": "system", "content": SYSTEM}]
    said = 0
    while (length := len(lm.tokenizer.encode(lm.chat.render(turns)))) < tokens:
        if said < NEEDLES and length > tokens * (said + 0.5) / (NEEDLES + 1):
            question, answer = facts[said]["say"], "I will remember that."
            said += 1
        else:
            question, answer = data["talk"][(len(turns) // 2 + number * 5) % len(data["talk"])]
        turns += [{"role": "user", "content": question}, {"role": "assistant", "content": answer}]
    return turns, facts


class Measured:
    """One text in one cache."""

    def __init__(self, lm: CausalLM, turns: Turns, gate: KvGate) -> None:
        self.lm = lm
        self.turns = turns
        self.session = lm.open_session()
        assert isinstance(self.session.body, CpuBody)
        assert self.session.body.gate is not None
        self.session.body.gate.policy = gate
        self.tokens = lm.tokenizer.encode(lm.chat.render(turns))
        self.tpot_ms: list[float] = []

    def read(self) -> float:
        """Read the text; seconds."""
        began_s = time.perf_counter()
        self.session.set_tokens(self.tokens)
        return time.perf_counter() - began_s

    def take(self, parked: ParkedText) -> None:
        self.session.restore(parked, self.tokens)

    def _asked(self, question: str) -> None:
        self.session.set_tokens(self.lm.tokenizer.encode(self.lm.chat.render([*self.turns, _user(question)])))

    def answer(self, question: str, most: int) -> str:
        self._asked(question)
        out: list[int] = []
        last_s = time.perf_counter()
        for token in self.session.generate(max_new_tokens=most):
            out.append(token)
            now_s = time.perf_counter()
            self.tpot_ms.append((now_s - last_s) * 1e3)
            last_s = now_s
        return self.lm.tokenizer.decode(out)

    def chooses(self, command: str, calls: Sequence[str]) -> str:
        """The likeliest of `calls`, by the mean of its tokens."""
        self._asked(command)
        ids = [self.lm.tokenizer.encode(call) for call in calls]
        totals = [total / len(one) for total, one in zip(self.session.score(ids), ids, strict=True)]
        return calls[int(np.argmax(totals))]

    def next_tokens(self, text: str) -> list[int]:
        """What the model says after each token of `text`."""
        self._asked(text)
        added = self.session.tokens[len(self.tokens) - 2 :]
        hidden = self.session.body.run(list(added), len(self.tokens) - 2, every_row=True)
        said: list[int] = self.lm.head.best_rows(hidden).tolist()
        return said


def _user(text: str) -> dict[str, str]:
    return {"role": "user", "content": text}


def ask_all(one: Measured, data: dict[str, Any], facts: list[dict[str, Any]]) -> dict[str, Any]:
    """Everything that is asked of one text."""
    said = one.next_tokens(data["continued"])
    right = [any(each in one.answer(fact["ask"], 8) for each in fact["answer"]) for fact in facts]
    listed = one.answer(data["both"], 32)
    calls = [command["call"] for command in data["commands"]]
    chosen = [one.chooses(command["say"], calls) == command["call"] for command in data["commands"]]
    return {
        "said": said,
        "needles": right,
        "several": [any(each in listed for each in fact["answer"]) for fact in facts],
        "tools": chosen,
        "tpot_ms": one.tpot_ms,
        "rows": one.session.rows,
        "tokens": one.session.cached,
    }


def table(found: dict[str, list[dict[str, Any]]], token_bytes: int) -> list[dict[str, Any]]:
    """A row for each gate."""
    rows = []
    for name, texts in found.items():
        pairs = zip(texts, found["whole"], strict=False)
        same = [a == b for text, whole in pairs for a, b in zip(text["said"], whole["said"], strict=True)]
        kept = sum(text["rows"] for text in texts)
        times = [spent for text in texts for spent in text["tpot_ms"][1:]]
        row: dict[str, Any] = {"gate": name, "texts": len(texts)}
        row["mb"] = round(kept * token_bytes / 2**20 / len(texts), 1)
        row["saved"] = round(1 - kept / sum(text["tokens"] for text in texts), 3)
        for key in ("needles", "several", "tools"):
            values = [value for text in texts for value in text[key]]
            row[key] = f"{sum(values)}/{len(values)}"
        row["agreement"] = round(float(np.mean(same)), 3)
        row["tpot_p50_ms"], row["tpot_p99_ms"] = (round(float(np.percentile(times, at)), 1) for at in (50, 99))
        rows.append(row)
    return rows


def measure(report: Report, model: str, tokens: int, texts: int) -> None:
    """Fill the report, text by text."""
    data = YAML(typ="safe").load(DATA.read_text(encoding="utf-8"))
    lm = CausalLM.load(Store.open().ensure(model), context_tokens=tokens + 512, slots=2, gate=WHOLE)
    found: dict[str, list[dict[str, Any]]] = defaultdict(list)
    for number in range(texts):
        if report.over(0.6):
            break
        turns, facts = dialogue(lm, data, tokens, number)
        first = Measured(lm, turns, WHOLE)
        report.say(f"text {number}: {len(first.tokens)} tokens read in {first.read():.0f} s")
        parked: ParkedText = first.session.park()
        first.session.close()
        for name, gate in gates().items():
            one = Measured(lm, turns, gate)
            one.take(parked)
            found[name].append(ask_all(one, data, facts))
            one.session.close()
            report.say(f"{name}: done")
            report.put(machine=head(), model=model, load_average=os.getloadavg()[0], rows=table(found, lm.token_bytes))
        if not report.over(0.7):
            served = Measured(lm, turns, KvGate(0.6))
            served.read()
            found[f"{DEFAULT_SCORE} 60%, while read"].append(ask_all(served, data, facts))
            served.session.close()
            report.put(rows=table(found, lm.token_bytes))


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--model", default="qwen2.5-coder-0.5b-instruct")
    parser.add_argument("--tokens", type=int, default=4096, help="length of a dialogue (4096)")
    parser.add_argument("--texts", type=int, default=2, help="dialogues (2)")
    report_options(parser, 540)
    options = parser.parse_args(arguments)
    report = Report(options.out, options.budget_s)
    measure(report, options.model, options.tokens, options.texts)
    if options.json:
        print(json.dumps(report.values))
        return 0
    for row in report.values["rows"]:
        print("  ".join(f"{key} {value}" for key, value in row.items()))
    return 0
