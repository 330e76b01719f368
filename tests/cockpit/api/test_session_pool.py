"""Few caches for many dialogues: shared beginnings, parked texts, and what the arbiter evicts."""

from __future__ import annotations

from collections.abc import Callable
from itertools import pairwise
from pathlib import Path

import pytest

from cockpit.api.sessions import SessionPool
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.kv.gate import KvGate

SYSTEM = "You are the voice of a car. You open windows, heat seats and find the way. Answer in one short sentence. "
NAMES = [f"dialogue-{index}" for index in range(24)]
MIB = 1 << 20


@pytest.fixture(scope="module")
def lm(model_dir: Callable[[str], Path]) -> CausalLM:
    return CausalLM.load(model_dir("smollm2-135m-instruct-f32"), context_tokens=192)


def prompt(lm: CausalLM, question: str, system: str = SYSTEM) -> list[int]:
    messages = [{"role": "system", "content": system}, {"role": "user", "content": question}]
    return lm.tokenizer.encode(lm.chat.render(messages))


def ask(pool: SessionPool, ids: list[int], name: str = "") -> tuple[list[int], int]:
    """The answer, and how many tokens of the prompt were there already."""
    seat = pool.take(ids, name)
    assert seat is not None
    reused = pool.prepare(seat, ids)
    seat.session.set_tokens(ids)
    answer = list(seat.session.generate(max_new_tokens=4))
    pool.settle(seat)
    pool.give(seat)
    return answer, reused


def alone(lm: CausalLM, ids: list[int]) -> list[int]:
    session = lm.open_session()
    session.set_tokens(ids)
    return list(session.generate(max_new_tokens=4))


def test_another_dialogue_s_beginning_is_copied(lm: CausalLM) -> None:
    pool = SessionPool(lm.open_session, 3)
    first, second = prompt(lm, "Is it cold? It is 08:15."), prompt(lm, "Is it cold? It is 08:16.")
    assert ask(pool, first, "a")[1] == 0
    answer, reused = ask(pool, second, "b")
    assert reused > len(second) * 0.8
    assert answer == alone(lm, second)


def test_a_text_at_work_gives_its_beginning_too(lm: CausalLM) -> None:
    pool = SessionPool(lm.open_session, 2)
    first, second = prompt(lm, "One"), prompt(lm, "Two")
    seat = pool.take(first, "a")
    assert seat is not None
    pool.prepare(seat, first)
    seat.session.set_tokens(first)
    going = seat.session.generate(max_new_tokens=8)
    begun = [next(going)]
    answer, reused = ask(pool, second, "b")
    assert reused > len(second) / 2
    assert answer == alone(lm, second)
    assert [*begun, *(next(going) for _ in range(3))] == alone(lm, first)
    assert pool.take(first, "a") is None  # one request of a dialogue at a time
    assert pool.take(first, "c", most_busy=1) is None


def test_a_beginning_that_two_shared_is_there_for_a_third_when_both_are_gone(lm: CausalLM) -> None:
    pool = SessionPool(lm.open_session, 1, 64 * MIB)
    ask(pool, prompt(lm, "One"))
    ask(pool, prompt(lm, "Two"))
    assert pool.status().parked.prefixes == 1
    unrelated = "Quite another thing that begins otherwise. "
    ask(pool, prompt(lm, "Three", unrelated * 3))
    third = prompt(lm, "Four")
    answer, reused = ask(pool, third)
    assert reused > len(third) / 2
    assert answer == alone(lm, third)


def test_dozens_of_dialogues_go_on_over_two_caches(lm: CausalLM) -> None:
    pool = SessionPool(lm.open_session, 2, 128 * MIB)
    texts = {name: prompt(lm, f"My number is {index}.", f"{index} {SYSTEM}") for index, name in enumerate(NAMES)}
    for name in NAMES:
        texts[name] += ask(pool, texts[name], name)[0]
    assert len(pool) == 2
    assert pool.status().parked.dialogues == len(NAMES) - 2
    for name in NAMES:
        ids = texts[name] + lm.tokenizer.encode("\nAnd again?")
        answer, reused = ask(pool, ids, name)
        assert reused >= len(texts[name]) - 1, name
        if name in NAMES[::6]:
            assert answer == alone(lm, ids)
    assert pool.status().parked.restored == len(NAMES)


def test_parked_memory_is_bounded_and_the_oldest_goes_first(lm: CausalLM) -> None:
    texts = [prompt(lm, f"My number is {index}.", f"{index} {SYSTEM}") for index in range(6)]
    one = lm.open_session().bytes_of(len(texts[0]) + 8)
    pool = SessionPool(lm.open_session, 1, 3 * one)
    for index, ids in enumerate(texts):
        ask(pool, ids, f"d{index}")
    parked = pool.status().parked
    assert parked.bytes <= 3 * one
    assert parked.dialogues < 5
    assert parked.dropped == 5 - parked.dialogues
    assert ask(pool, texts[4], "d4")[1] > len(texts[4]) / 2
    assert ask(pool, texts[0], "d0")[1] < len(texts[0]) / 2


def test_without_memory_nothing_is_parked(lm: CausalLM) -> None:
    pool = SessionPool(lm.open_session, 1)
    first = prompt(lm, "One")
    expected = ask(pool, first, "a")[0]
    ask(pool, prompt(lm, "Two", "Another beginning. " * 3), "b")
    assert pool.status().parked.bytes == 0
    assert ask(pool, first, "a")[0] == expected


def test_an_evicted_text_is_forgotten_while_it_is_idle(lm: CausalLM) -> None:
    pool = SessionPool(lm.open_session, 1, 64 * MIB)
    ids = prompt(lm, "One")
    expected = ask(pool, ids, "a")[0]
    name = pool.status().sessions[0][0]
    pool.forget_evicted(lambda session: session == name)
    status = pool.status()
    assert (status.cached_tokens, status.bytes, status.parked.bytes) == (0, 0, 0)
    assert ask(pool, ids, "a") == (expected, 0)


def test_a_growing_dialogue_is_never_parked_by_itself(lm: CausalLM) -> None:
    pool = SessionPool(lm.open_session, 1, 64 * MIB)
    ids = prompt(lm, "One")
    lengths = []
    for _ in range(3):
        answer, reused = ask(pool, ids, "a")
        lengths.append(reused)
        ids = [*ids, *answer, *lm.tokenizer.encode("\nAnd?")]
    assert all(a < b for a, b in pairwise(lengths))
    assert pool.status().parked.bytes == 0


def test_a_dialogue_with_dropped_keys_is_parked_and_comes_back(model_dir: Callable[[str], Path]) -> None:
    """What it holds less is seen in the status, parked as it is, and what others share of it stays whole."""
    gate = KvGate(0.6, block=32, recent=16, last_turns=16)
    lm = CausalLM.load(model_dir("smollm2-135m-instruct-f32"), context_tokens=192, gate=gate)
    pool = SessionPool(lm.open_session, 1, 64 * MIB)
    first = prompt(lm, "Which of these is a colour: " + "a stone, a car, green, a house, " * 8)
    ask(pool, first, "a")
    status = pool.status()
    assert status.dropped_tokens == 13 * (status.dropped_tokens // 13) > 0
    assert status.dropped_bytes == status.dropped_tokens * lm.token_bytes
    assert status.bytes == (status.cached_tokens - status.dropped_tokens) * lm.token_bytes
    ask(pool, prompt(lm, "Hello?"), "b")  # takes the only cache
    parked, _ = pool.parked.best(first)
    assert parked is not None
    assert parked.size_bytes == status.bytes
    seat = pool.take(first, "a")
    assert seat is not None
    assert pool.prepare(seat, first) == len(first)  # nothing of it is computed again
    assert seat.session.span is not None
    pool.give(seat)
    pool.close()
