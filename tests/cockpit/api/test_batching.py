"""Requests in one batch: each gets what it would get alone, joins and leaves between tokens, and hurts nobody."""

from __future__ import annotations

import queue
import threading
from collections.abc import Callable, Iterator
from dataclasses import replace
from itertools import pairwise
from pathlib import Path
from typing import Any

import pytest

from cockpit.api.errors import ApiError
from cockpit.api.generation import Finished, Generation, Piece, TextRequest
from cockpit.api.lengths import LengthsSeen
from cockpit.api.text import MIXED_CHUNK_CPU, TextService
from cockpit.scheduling.batch_lease import UnsharedLane
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.grammar import Grammar
from models.engines.llm.sampling import Sampling
from models.engines.llm.session import LmSession
from models.engines.preemption import enter, leave
from tests.support.dispatchers import EveryOther
from tests.support.waiting import until

TASK = "dialogue_task"
QUESTIONS = ("What is the capital of France?", "Count from one to twenty.", "请用中文说你好", "Name three colours.")
SCHEMA = {
    "type": "object",
    "properties": {"colour": {"enum": ["red", "green", "blue"]}, "warm": {"type": "boolean"}},
    "required": ["colour", "warm"],
    "additionalProperties": False,
}


@pytest.fixture(scope="module")
def lm(model_dir: Callable[[str], Path]) -> CausalLM:
    return CausalLM.load(model_dir("smollm2-135m-instruct-f32"), context_tokens=512, batch=6, width=4)


@pytest.fixture
def service(lm: CausalLM) -> Iterator[TextService]:
    made = TextService(lm, most_running=4, most_sessions=6, most_waiting=8)
    yield made
    made.close()


class Asked:
    """One request and what came of it."""

    def __init__(self, service: TextService, request: TextRequest) -> None:
        self.messages: queue.Queue[Piece | Finished | ApiError] = queue.Queue()
        self.pieces = 0
        self.generation: Generation = service.submit(request, self._take)

    def _take(self, message: Piece | Finished | ApiError) -> None:
        self.pieces += isinstance(message, Piece)
        self.messages.put(message)

    def answer(self) -> tuple[str, Finished]:
        text = ""
        while True:
            message = self.messages.get(timeout=300)
            if isinstance(message, ApiError):
                raise message
            if isinstance(message, Finished):
                return text, message
            text += message.text


def request(lm: CausalLM, question: str, most: int = 12, **options: Any) -> TextRequest:
    ids = lm.tokenizer.encode(lm.chat.render([{"role": "user", "content": question}]))
    return TextRequest(tuple(ids), TASK, most, **options)


def test_a_beginning_that_several_need_at_once_is_computed_once(lm: CausalLM, service: TextService) -> None:
    beginning = "The driver asked for a warmer cabin before the motorway, and it began to rain. " * 12
    requests = [request(lm, beginning + question, 4) for question in QUESTIONS]
    together = [asked.answer()[0] for asked in [Asked(service, one) for one in requests]]
    computed = service.stats.shown()[TASK]["prefill_tokens"]
    longest = max(len(one.prompt) for one in requests)
    assert sum(len(one.prompt) for one in requests) > 3 * longest
    assert computed < 2 * longest
    kv = service.shown()["kv"]
    assert kv["shared"]["texts"] == len(requests)  # and it is in memory once
    assert kv["shared"]["shown_bytes"] >= len(requests) * kv["shared"]["bytes"] * 0.8 > 0
    own_tokens = kv["bytes"] / lm.token_bytes
    assert own_tokens < sum(len(one.prompt) for one in requests) / 2
    shared = [seat.session.shown for seat in service.pool._seats]
    assert all(count > longest * 0.7 for count in shared)
    for seat, count in zip(service.pool._seats, shared, strict=True):
        booked = seat.session.expected - seat.session.kv_bytes // lm.token_bytes
        assert booked in (0, count)  # the arbiter books for whoever computed it, and not for the others
    assert sum(seat.session.kv_bytes == lm.token_bytes * seat.session.expected for seat in service.pool._seats) == 1
    assert [Asked(service, one).answer()[0] for one in requests] == together


def test_each_answer_is_the_one_it_would_get_alone(lm: CausalLM, service: TextService) -> None:
    requests = [request(lm, question) for question in QUESTIONS]
    alone = [Asked(service, each).answer()[0] for each in requests]
    before = service.shown()["batch"]["steps_by_size"]
    for _ in range(2):  # the second time their prompts are cached
        together = [Asked(service, each) for each in requests]
        assert [each.answer()[0] for each in together] == alone
    shown = service.shown()
    assert before == {"1": shown["batch"]["steps_by_size"]["1"]} or set(before) == {"1"}
    assert {"3", "4"} & set(shown["batch"]["steps_by_size"])
    assert shown["batch"]["mean_size"] > 1
    assert shown["tasks"][TASK]["prefill_ms"]["p50"] > 0
    until(lambda: service.counts == (0, 0))


class Preempted(UnsharedLane):
    """A lane whose every other run is ended."""

    def __init__(self, switch: EveryOther) -> None:
        self._switch = switch
        self.boundaries = 0

    def wait(self, give_up: Callable[[], bool]) -> bool:
        self._before = enter(self._switch)
        return True

    def boundary(self, new_tokens: int) -> bool:
        self.boundaries += 1
        return True

    def give_back(self) -> None:
        leave(self._before)


def test_runs_that_are_ended_for_somebody_more_urgent_lose_no_token(
    lm: CausalLM, service: TextService, monkeypatch: pytest.MonkeyPatch
) -> None:
    requests = [request(lm, question, 5) for question in QUESTIONS[:2]]
    expected = [Asked(service, each).answer()[0] for each in requests]
    switch = EveryOther()
    lane = Preempted(switch)
    monkeypatch.setattr(service, "_lane_of", lambda _task: lane)
    asked = [Asked(service, replace(each, task="background_task")) for each in requests]
    assert [each.answer()[0] for each in asked] == expected
    assert switch.ended >= 5
    assert lane.boundaries > switch.ended, "the arbiter is asked before a run is done again"


def test_grammar_sampling_and_plain_texts_share_a_batch(lm: CausalLM, service: TextService) -> None:
    def kinds() -> list[TextRequest]:
        grammar = Grammar.compile(SCHEMA, lm.tokenizer)
        return [
            request(lm, "Which colour is warm?", 24, constraint=grammar.start()),
            request(lm, QUESTIONS[1]),
            request(lm, QUESTIONS[3], sampling=Sampling(temperature=0.8, seed=7, alternatives=2)),
            request(lm, "Which colour is cold?", 24, constraint=grammar.start()),
        ]

    alone = [Asked(service, each).answer()[0] for each in kinds()]
    assert [each.answer()[0] for each in [Asked(service, each) for each in kinds()]] == alone
    assert alone[0].startswith('{"colour": "')


def test_who_hangs_up_is_gone_at_the_next_token_and_the_others_go_on(lm: CausalLM, service: TextService) -> None:
    expected = Asked(service, request(lm, QUESTIONS[1], 24)).answer()[0]
    leaves, stays = Asked(service, request(lm, QUESTIONS[3], 200)), Asked(service, request(lm, QUESTIONS[1], 24))
    until(lambda: leaves.pieces >= 2)
    leaves.generation.cancel()
    assert stays.answer()[0] == expected
    until(lambda: service.active == 0)
    assert service.shown()["tasks"][TASK]["stopped"] == 1
    assert all(isinstance(message, Piece) for message in leaves.messages.queue)


def test_a_long_prompt_is_computed_between_others_tokens(
    lm: CausalLM, service: TextService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Beside a text that is written, no more than a chunk of prompt is computed before its next token."""
    runs: list[tuple[str, int]] = []
    compute, step = LmSession.compute, service.batch.step

    def noted_compute(session: LmSession, at_most: int) -> None:
        before = session.missing
        compute(session, at_most)
        runs.append(("prompt", before - session.missing))

    def noted_step(sessions: Any) -> Any:
        runs.append(("tokens", len(sessions)))
        return step(sessions)

    monkeypatch.setattr(LmSession, "compute", noted_compute)
    monkeypatch.setattr(service.batch, "step", noted_step)
    written = Asked(service, request(lm, QUESTIONS[1], 60))
    until(lambda: written.pieces >= 2)
    joined = len(runs)
    long = Asked(service, request(lm, "Tell me of winter. " * 60, 4))
    long.answer()
    written.answer()
    beside = runs[joined:]
    prompts = [index for index, (kind, _) in enumerate(beside) if kind == "prompt"]
    assert len(prompts) > 4
    assert all(beside[index][1] <= MIXED_CHUNK_CPU for index in prompts)
    assert all(second - first > 1 for first, second in pairwise(prompts))  # a token between two


def test_a_short_prompt_is_answered_before_a_long_one(lm: CausalLM, service: TextService) -> None:
    written = Asked(service, request(lm, QUESTIONS[1], 100))
    until(lambda: written.pieces >= 1)
    long = Asked(service, request(lm, "Tell me of winter. " * 60, 4))
    short = Asked(service, request(lm, QUESTIONS[0], 2))
    short.answer()
    assert long.pieces == 0
    long.answer()
    written.generation.cancel()


def test_more_sessions_than_share_runs_keep_their_caches(lm: CausalLM, service: TextService) -> None:
    for round_number in range(2):
        asked = [Asked(service, request(lm, f"{i} is my number.", 2, session=f"d{i}")) for i in range(6)]
        answers = [each.answer() for each in asked]
        if round_number:
            assert all(finished.cached_tokens > 10 for _, finished in answers)
    pool = service.pool.status()
    assert pool.open == 6
    assert pool.moved > 0


def test_a_failing_run_ends_its_requests_and_not_the_service(
    lm: CausalLM, service: TextService, monkeypatch: pytest.MonkeyPatch
) -> None:
    with monkeypatch.context() as patched:
        patched.setattr(service.batch, "step", lambda sessions: 1 // 0)
        with pytest.raises(ApiError, match="ZeroDivisionError"):
            Asked(service, request(lm, QUESTIONS[0])).answer()
    assert Asked(service, request(lm, QUESTIONS[0])).answer()[0]
    until(lambda: service.active == 0)


def test_too_many_are_refused_with_the_reason_and_the_others_are_answered(lm: CausalLM, service: TextService) -> None:
    gate = threading.Event()
    step = service.batch.step
    service.batch.step = lambda sessions: (gate.wait(60), step(sessions))[1]  # type: ignore[method-assign]
    asked = [Asked(service, request(lm, QUESTIONS[0], 3)) for _ in range(12)]
    with pytest.raises(ApiError, match="12 requests run or wait already, 4 at a time"):
        Asked(service, request(lm, QUESTIONS[0], 3))
    gate.set()
    assert len({each.answer()[0] for each in asked}) == 1
    assert service.shown()["tasks"][TASK]["refused"] == 1


class Full(UnsharedLane):
    """A lane without room for any text."""

    timeout_ns = 50_000_000

    def join(self, session: LmSession, arrived_ns: int) -> None:  # type: ignore[override]
        return None


def test_who_waits_for_a_place_past_the_timeout_of_its_task_is_told_so(
    lm: CausalLM, service: TextService, monkeypatch: pytest.MonkeyPatch
) -> None:
    full = Full()
    monkeypatch.setattr(service, "_lane_of", lambda _task: full)
    with pytest.raises(ApiError, match="waited past the task's timeout"):
        Asked(service, request(lm, QUESTIONS[0], 3)).answer()
    until(lambda: service.counts == (0, 0))
    assert service.shown()["tasks"][TASK]["stopped"] == 1


def test_memory_is_booked_by_the_longest_of_a_hundred_and_not_by_the_mean() -> None:
    seen = LengthsSeen()
    assert seen.booking(100, 500) == 600  # nothing is known yet
    assert seen.at_once(1000, 1, 8) == 8
    for _ in range(95):
        seen.add(100, 10)
    for _ in range(5):
        seen.add(100, 300)
    assert 400 < seen.booking(100, 500) < 600
    assert seen.booking(100, 40) == 140
    assert seen.at_once(1300, 1, 8) == 3  # of 400 tokens each, while the mean would say 11
    assert seen.at_once(10, 1, 8) == 1


def test_a_place_is_kept_for_the_higher_of_two_tasks(lm: CausalLM) -> None:
    service = TextService(lm, most_running=4, priorities={"navigation_task": 9, "dialogue_task": 5})
    try:
        assert service.may_run("dialogue_task", None) == 3
        assert service.may_run("navigation_task", None) == 4
    finally:
        service.close()
