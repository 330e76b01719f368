"""Guesses under a grammar: the same tokens as without, in fewer runs; off by itself where they do not pay."""

from __future__ import annotations

import json
from collections.abc import Callable

import pytest

from benchmarks.harness import families_reference as reference
from models.build.families.build import build_family
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.grammar import Grammar
from models.engines.llm.session import Hidden, LmSession
from models.engines.llm.speculation.gate import JUDGED, PAUSE_TOKENS, DraftGate

CALL = '{"name": "set_window", "arguments": {"zone": "driver", "percent": 50}}'
OTHER = '{"name": "set_window", "arguments": {"zone": "rear", "percent": 55}}'
GRAMMAR = (
    r'start: "{\"name\": \"" /[a-z_]{3,12}/ "\", \"arguments\": {\"zone\": \"" /[a-z]{3,8}/ '
    r'"\", \"percent\": " /[0-9]{1,3}/ "}}"'
)


@pytest.fixture(scope="module", params=["qwen2", "nemotron-h"])
def lm(request: pytest.FixtureRequest, tmp_path_factory: pytest.TempPathFactory) -> CausalLM:
    folder = tmp_path_factory.mktemp("speculation")
    config = reference.CONFIGS[request.param] | {"max_position_embeddings": 1024}
    (folder / "config.json").write_text(json.dumps(config), encoding="utf-8")
    build_family(folder / "config.json", folder / "out", quant="f32", seed=5)
    return CausalLM.load(folder / "out", context_tokens=512, threads=1, slots=2, batch=1)


def said(
    lm: CausalLM, prompt: str, draft: int, monkeypatch: pytest.MonkeyPatch, stop: Callable[[], bool] = lambda: False
) -> tuple[list[int], int, LmSession]:
    """The tokens, and how many runs of the model they took."""
    session, runs = lm.open_session(), 0
    session.draft_tokens = draft
    session.set_tokens(lm.tokenizer.encode(prompt))
    run = session.body.run

    def counted(tokens: list[int], position: int, *, every_row: bool) -> Hidden:
        nonlocal runs
        runs += 1
        return run(tokens, position, every_row=every_row)

    monkeypatch.setattr(session.body, "run", counted)
    constraint = Grammar.compile(GRAMMAR, lm.tokenizer).start()
    tokens = list(session.generate(max_new_tokens=200, constraint=constraint, cancelled=stop))
    assert session.tokens[-len(tokens) :] == tuple(tokens)
    return tokens, runs, session


@pytest.mark.parametrize("draft", [1, 3, 8])
def test_guesses_under_a_grammar_change_nothing(draft: int, lm: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    prompt = f"{CALL}\n{OTHER}\n{CALL}\n"
    plain, runs, _ = said(lm, prompt, 0, monkeypatch)
    guessed, fewer, session = said(lm, prompt, draft, monkeypatch)
    assert guessed == plain
    assert fewer <= runs
    assert 0 <= session.accepted <= session.drafted


def test_what_follows_is_the_same_text(lm: CausalLM, monkeypatch: pytest.MonkeyPatch) -> None:
    """What guesses left in the cache is not taken for text."""
    ends = []
    for draft in (0, 6):
        _, _, session = said(lm, CALL + "\n" + CALL + "\n", draft, monkeypatch)
        session.draft_tokens = 0
        ends.append(list(session.generate(max_new_tokens=12)))
    assert ends[0] == ends[1]


def test_possible_changes_nothing(lm: CausalLM) -> None:
    constraint = Grammar.compile(GRAMMAR, lm.tokenizer).start()
    ids = lm.tokenizer.encode(CALL)
    assert constraint.possible(ids) == len(ids)
    assert constraint.possible([*ids[:12], 0, *ids[13:]]) <= 12
    assert constraint.possible([]) == 0
    for token in ids:
        constraint.advance(token)
    assert constraint.done


def test_the_gate_closes_when_guesses_are_wrong_and_opens_again() -> None:
    gate = DraftGate()
    gate.saw(JUDGED - 1, 0)
    assert gate.open
    gate.saw(1, 0)
    assert not gate.open
    assert gate.pauses == 1
    gate.passed(PAUSE_TOKENS - 1)
    assert not gate.open
    gate.passed()
    assert gate.open
    gate.saw(JUDGED, JUDGED // 2)
    assert gate.open
