"""Several texts in one run: the tokens of each are those it gets alone, whatever runs beside it."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import pytest

from benchmarks.llm.batching import QUESTIONS
from models.engines.llm.batch import TextBatch
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.session import LmSession, ParkedText
from models.engines.placement import CpuPlacement
from models.errors import InputError
from tests.support.batches import together

SERVED = "qwen2.5-coder-0.5b-instruct"
EXACT = "smollm2-135m-instruct-f32"
TIE = 0.1
"""Two logits nearer than this are a tie: a run of one row rounds its int8 activations other than a run of several."""


def prompt(lm: CausalLM, question: str) -> list[int]:
    return lm.tokenizer.encode(lm.chat.render([{"role": "user", "content": question}]))


def alone(lm: CausalLM, ids: Sequence[int], count: int) -> list[int]:
    session = lm.open_session()
    session.set_tokens(ids)
    out = list(session.generate(max_new_tokens=count))
    session.close()
    return out


def opened(batch: TextBatch, lm: CausalLM, questions: Sequence[str]) -> list[LmSession]:
    sessions = [batch.open() for _ in questions]
    for session, question in zip(sessions, questions, strict=True):
        session.set_tokens(prompt(lm, question))
    return sessions


def load(model_dir: Callable[[str], Path], name: str, batch: int = 8) -> CausalLM:
    placements = {"only": CpuPlacement(2)} if name.endswith("-device") else None
    return CausalLM.load(model_dir(name), context_tokens=256, placements=placements, slots=2, batch=batch)


@pytest.mark.parametrize("name", [EXACT, EXACT + "-device"])
def test_a_batch_gives_the_tokens_of_each_text_alone(model_dir: Callable[[str], Path], name: str) -> None:
    lm = load(model_dir, name)
    expected = [alone(lm, prompt(lm, question), 8) for question in QUESTIONS]
    batch = lm.open_batch()
    sessions = opened(batch, lm, QUESTIONS)
    assert together(batch, sessions, 8) == expected
    for chosen in ((1, 2), (0, 3, 6), (5,)):  # with holes between them, in which other texts are cached
        for index in chosen:
            sessions[index].set_tokens(prompt(lm, QUESTIONS[index]))
        assert together(batch, [sessions[index] for index in chosen], 8) == [expected[index] for index in chosen]
    rest = sessions[4].cached
    sessions[4].set_tokens(sessions[4].tokens)  # a hole's cache was not harmed
    assert rest > len(prompt(lm, QUESTIONS[4]))
    batch.close()


def test_texts_join_and_leave_at_tokens(model_dir: Callable[[str], Path]) -> None:
    lm = load(model_dir, EXACT)
    expected = [alone(lm, prompt(lm, question), 12) for question in QUESTIONS[:3]]
    batch = lm.open_batch()
    first, second, third = opened(batch, lm, QUESTIONS[:3])
    out = together(batch, [first], 4)[0]
    both = together(batch, [first, second], 4)
    out += both[0]
    later = together(batch, [second, third], 8)
    assert out == expected[0][:8]
    assert [*both[1], *later[0]] == expected[1][: len(both[1]) + len(later[0])]
    assert later[1] == expected[2][: len(later[1])]


def test_the_first_difference_is_a_tie(model_dir: Callable[[str], Path], capsys: pytest.CaptureFixture[str]) -> None:
    """With the shipped weights: equal tokens, or at the first other one the two logits lie within rounding."""
    lm = load(model_dir, SERVED)
    batch = lm.open_batch()
    sessions = opened(batch, lm, QUESTIONS)
    got = together(batch, sessions, 24)
    for question, tokens in zip(QUESTIONS, got, strict=True):
        ids = prompt(lm, question)
        expected = alone(lm, ids, 24)
        place = next((i for i, (a, b) in enumerate(zip(tokens, expected, strict=False)) if a != b), None)
        if place is None:
            assert tokens == expected
            continue
        judge = lm.open_session()
        judge.set_tokens([*ids, *expected[:place]])
        logits = lm.head.logits(judge.hidden())[0]
        ours, theirs = float(logits[tokens[place]]), float(logits[expected[place]])
        with capsys.disabled():
            print(f"\n{question} token {place}: {ours:.3f} in the batch, {theirs:.3f} alone")
        assert abs(ours - theirs) < TIE
        assert sorted(np.argsort(logits)[-2:]) == sorted((tokens[place], expected[place]))
        judge.close()


def test_a_text_outside_the_front_changes_places(model_dir: Callable[[str], Path]) -> None:
    for name in (EXACT, EXACT + "-device"):
        lm = load(model_dir, name, batch=10)
        expected = [alone(lm, prompt(lm, question), 4) for question in QUESTIONS[:2]]
        batch = lm.open_batch()
        sessions = [batch.open() for _ in range(10)]
        front, back = sessions[3], sessions[9]
        front.set_tokens(prompt(lm, QUESTIONS[0]))
        back.set_tokens(prompt(lm, QUESTIONS[1]))
        assert not batch.in_front(back)
        batch.bring_to_front(back, front)
        assert batch.in_front(back)
        assert not batch.in_front(front)
        assert back.set_tokens(prompt(lm, QUESTIONS[1])) == len(prompt(lm, QUESTIONS[1]))  # nothing is computed anew
        assert together(batch, [back], 4) == expected[1:]
        assert list(front.generate(max_new_tokens=4)) == expected[0]
        batch.close()


def test_a_full_text_may_lie_between_others(model_dir: Callable[[str], Path]) -> None:
    """What is computed in its slot for nothing has a place behind its last token."""
    lm = CausalLM.load(model_dir(EXACT), context_tokens=48, slots=1, batch=3)
    expected = alone(lm, prompt(lm, "Hi")[:12], 8)
    batch = lm.open_batch()
    first, full, last = (batch.open() for _ in range(3))
    full.set_tokens((prompt(lm, QUESTIONS[1]) * 4)[:48])
    rows = full.body.read_rows(48)
    for session in (first, last):
        session.set_tokens(prompt(lm, "Hi")[:12])
    assert together(batch, [first, last], 8) == [expected, expected]
    assert np.array_equal(full.body.read_rows(48), rows)


def test_the_block_is_taken_once(model_dir: Callable[[str], Path]) -> None:
    lm = load(model_dir, EXACT, batch=1)
    batch = lm.open_batch()
    batch.open()
    with pytest.raises(InputError, match="all 1 texts of this batch"):
        batch.open()
    with pytest.raises(InputError, match="is taken"):
        lm.open_batch()
    with pytest.raises(InputError, match="no power of two"):
        CausalLM.load(model_dir(EXACT), context_tokens=64, width=6)


def test_texts_of_16k_tokens_run_beside_short_ones(model_dir: Callable[[str], Path]) -> None:
    """Only the last tokens of the long one are computed here: what is before them is put into its cache."""
    lm = CausalLM.load(model_dir(SERVED), context_tokens=16_384, batch=2)
    short_ids = prompt(lm, QUESTIONS[0])
    expected = alone(lm, short_ids, 6)
    batch = lm.open_batch()
    long, short = batch.open(), batch.open()
    short.set_tokens(short_ids)
    head = prompt(lm, QUESTIONS[1])
    long.set_tokens(head)
    rows = long.park().rows
    ids = (head * (16_300 // len(head) + 1))[:16_300]
    repeated = np.take(rows, np.arange(16_300) % rows.shape[2], axis=2)
    long.restore(ParkedText(tuple(ids), repeated), ids)
    assert long.cached == 16_300
    long.extend(head[:4])
    long.compute(4)
    made = together(batch, [long, short], 6)
    assert made[1] == expected
    assert long.cached > 16_304
