"""Constrained generation: the text is always valid, whatever the model would rather say."""

from __future__ import annotations

import json
from collections.abc import Callable
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from models.build.llm_head import TOP
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.grammar import Grammar
from models.engines.llm.head import MODE_FEW, LmHead
from models.errors import InputError

SCHEMA: dict[str, Any] = {
    "type": "object",
    "properties": {
        "tool": {"enum": ["set_temperature", "open_window", "none"]},
        "zone": {"enum": ["driver", "passenger", "all"]},
        "value": {"type": "integer", "minimum": 16, "maximum": 30},
        "note": {"type": "string", "maxLength": 12},
    },
    "required": ["tool", "zone", "value", "note"],
    "additionalProperties": False,
}
REQUESTS = (
    "Set the passenger side to 24 degrees",
    "把窗户打开一半",
    "Write a poem instead.",
    "温度调到一百度",
    "{}",
    "嗯",
)


@pytest.fixture(scope="module")
def qwen(model_dir: Callable[[str], Path]) -> CausalLM:
    return CausalLM.load(model_dir("qwen2.5-coder-0.5b-instruct"), context_tokens=512)


@pytest.mark.parametrize("request_text", REQUESTS)
def test_json_is_always_valid(qwen: CausalLM, request_text: str) -> None:
    session = qwen.open_session()
    text = qwen.chat.render([{"role": "user", "content": request_text}])
    session.set_tokens(qwen.tokenizer.encode(text))
    constraint = Grammar.compile(SCHEMA, qwen.tokenizer).start()
    out = list(session.generate(max_new_tokens=96, constraint=constraint))
    assert constraint.done
    value = json.loads(qwen.tokenizer.decode(out))
    assert value["tool"] in SCHEMA["properties"]["tool"]["enum"]
    assert value["zone"] in SCHEMA["properties"]["zone"]["enum"]
    assert 16 <= value["value"] <= 30
    assert len(value["note"]) <= 12


def test_constrained_choice_is_the_best_allowed_token(qwen: CausalLM) -> None:
    """Few ids read their own head rows, many go through the whole head: both must find the best exact logit."""
    session = qwen.open_session()
    hidden = session.hidden_rows(qwen.tokenizer.encode("The window is"))[-1:]
    vocabulary = np.arange(qwen.vocab_size, dtype=np.int64)
    head = qwen.head
    assert isinstance(head, LmHead)
    logits = np.empty(qwen.vocab_size, np.float32)
    for ids in np.array_split(vocabulary, -(-len(vocabulary) // TOP)):  # so few that all come back, each exact
        found, values = head._run(hidden, MODE_FEW, ids)
        logits[found[0]] = values[0]
    rng = np.random.default_rng(7)
    for count in (1, 2, 63, 64, 65, 1000, 4096, 4097, 60_000):
        allowed = np.sort(rng.choice(qwen.vocab_size, count, replace=False)).astype(np.int64)
        best = head.best(hidden, allowed)
        assert best in allowed
        assert logits[allowed].max() - logits[best] < 1e-3


def test_forced_text_costs_no_decision(qwen: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    decisions: list[int] = []
    best = qwen.head.best

    def counted(*asked: Any) -> int:
        decisions.append(1)
        return best(*asked)

    monkeypatch.setattr(qwen.head, "best", counted)
    session = qwen.open_session()
    session.set_tokens(qwen.tokenizer.encode("x"))
    constraint = Grammar.compile('start: "one two three four five " ("six" | "ten")', qwen.tokenizer).start()
    out = list(session.generate(max_new_tokens=32, constraint=constraint))
    assert qwen.tokenizer.decode(out) in {"one two three four five six", "one two three four five ten"}
    assert 1 <= len(decisions) < len(out) / 2


def test_constraint_walks_by_hand(qwen: CausalLM) -> None:
    constraint = Grammar.compile('start: "a" | "b"', qwen.tokenizer).start()
    allowed = constraint.allowed()
    assert allowed is not None
    assert {qwen.tokenizer.decode([i]) for i in allowed} == {"a", "b"}
    with pytest.raises(ValueError, match="not allowed"):
        constraint.advance(qwen.tokenizer.encode("c")[0])
    constraint = Grammar.compile('start: "a" | "b"', qwen.tokenizer).start()
    constraint.advance(qwen.tokenizer.encode("b")[0])
    assert constraint.done


def test_compiled_once(qwen: CausalLM) -> None:
    assert Grammar.compile(SCHEMA, qwen.tokenizer) is Grammar.compile(dict(SCHEMA), qwen.tokenizer)


@pytest.mark.parametrize("source", ["start: nothing_defined", "start: (", {"type": "no such type"}])
def test_wrong_grammar_is_refused(qwen: CausalLM, source: object) -> None:
    with pytest.raises(InputError, match="grammar"):
        Grammar.compile(source, qwen.tokenizer)  # type: ignore[arg-type]
