"""A device is given its next step while the tokens of the last one are handed out, and nothing else changes."""

from __future__ import annotations

import asyncio
import queue
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from cockpit.api.generation import Finished, Piece, TextRequest
from cockpit.api.message_stream import MessageStream
from cockpit.api.text import TextService
from cockpit.scheduling.batch_lease import UnsharedLane
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.grammar import Grammar
from models.engines.llm.sampling import Sampling
from models.engines.placement import CpuPlacement

TASK = "dialogue_task"
QUESTIONS = ("What is the capital of France?", "Count from one to twenty.", "Name three colours.")
SCHEMA = {"type": "object", "properties": {"warm": {"type": "boolean"}}, "required": ["warm"]}

FINISHED = Finished(
    reason="stop", prompt_tokens=1, cached_tokens=0, new_tokens=1, queue_ms=0.0, ttft_ms=0.0, tpot_ms=None
)


@pytest.fixture(scope="module")
def lm(model_dir: Callable[[str], Path]) -> CausalLM:
    folder = model_dir("smollm2-135m-instruct-f32-device")
    return CausalLM.load(folder, context_tokens=256, placements={"lane": CpuPlacement(2)}, slots=1, batch=4, width=4)


@pytest.fixture
def service(lm: CausalLM) -> Iterator[TextService]:
    made = TextService(lm, most_running=4, most_sessions=4, most_waiting=8)
    yield made
    made.close()


def request(lm: CausalLM, question: str, most: int = 8, **options: Any) -> TextRequest:
    ids = lm.tokenizer.encode(lm.chat.render([{"role": "user", "content": question}]))
    return TextRequest(tuple(ids), TASK, most, **options)


def answers(service: TextService, requests: list[TextRequest]) -> list[str]:
    """All of them at once; the texts of their answers."""
    told: list[queue.Queue[Any]] = [queue.Queue() for _ in requests]
    for one, messages in zip(requests, told, strict=True):
        service.submit(one, messages.put)
    out = []
    for messages in told:
        text = ""
        while not isinstance(message := messages.get(timeout=300), Finished):
            assert isinstance(message, Piece), message
            text += message.text
        out.append(text)
    return out


def test_together_or_alone_with_or_without_a_queue(
    lm: CausalLM, service: TextService, monkeypatch: pytest.MonkeyPatch
) -> None:
    """Plain, sampled and constrained texts, one that ends at a stop text while its next token is computed."""

    def kinds() -> list[TextRequest]:
        return [
            request(lm, QUESTIONS[0]),
            request(lm, QUESTIONS[1], 12, stops=("2",)),
            request(lm, QUESTIONS[2], sampling=Sampling(temperature=0.8, seed=7)),
            request(lm, "Is fire warm?", constraint=Grammar.compile(SCHEMA, lm.tokenizer).start()),
        ]

    together = answers(service, kinds())
    alone = [answers(service, [one])[0] for one in kinds()]
    monkeypatch.setattr(UnsharedLane, "wanted", True)
    assert [answers(service, [one])[0] for one in kinds()] == together == alone
    assert together[3].startswith('{"warm')


@pytest.mark.parametrize("wanted", [False, True])
def test_the_next_step_is_queued_before_a_token_is_told_unless_the_lane_is_wanted(
    lm: CausalLM, service: TextService, monkeypatch: pytest.MonkeyPatch, wanted: bool
) -> None:
    seen: list[str] = []
    step = service.batch.step
    monkeypatch.setattr(UnsharedLane, "wanted", wanted)
    told: queue.Queue[Any] = queue.Queue()

    def noted_step(sessions: Any) -> Any:
        seen.append("step")
        return step(sessions)

    def tell(message: Any) -> None:
        seen.append("token" if isinstance(message, Piece) else "end")
        told.put(message)

    monkeypatch.setattr(service.batch, "step", noted_step)
    service.submit(request(lm, QUESTIONS[0], 5), tell)
    while not isinstance(told.get(timeout=300), Finished):
        pass
    # The prompt's token comes by itself; the run behind the last token is never asked for.
    late = ["token", "step", "token", "step", "token", "step", "token", "step", "token", "end"]
    early = ["token", "step", "step", "token", "step", "token", "step", "token", "token", "end"]
    assert seen == (late if wanted else early)


def test_who_hangs_up_leaves_the_others_their_tokens(lm: CausalLM, service: TextService) -> None:
    expected = answers(service, [request(lm, QUESTIONS[1], 20)])[0]
    first: queue.Queue[Any] = queue.Queue()
    leaving = service.submit(request(lm, QUESTIONS[2], 100), first.put)
    assert isinstance(first.get(timeout=300), Piece)
    told: queue.Queue[Any] = queue.Queue()
    service.submit(request(lm, QUESTIONS[1], 20), told.put)
    text = told.get(timeout=300).text
    leaving.cancel()
    while not isinstance(message := told.get(timeout=300), Finished):
        text += message.text
    assert text == expected


def test_a_loop_that_lags_is_woken_once_and_gets_every_message(lm: CausalLM) -> None:
    """What comes while nobody looks is handed over in one go, in order; nothing is lost when the two meet."""

    class Emitting:
        def submit(self, _request: TextRequest, emit: Callable[[Any], None]) -> None:
            self.emit = emit

    async def listened() -> tuple[list[str], int]:
        service = Emitting()
        stream = MessageStream(service, request(lm, QUESTIONS[0]))  # type: ignore[arg-type]
        loop, wakes = asyncio.get_running_loop(), 0
        call_soon = loop.call_soon_threadsafe

        def counted(*arguments: Any) -> Any:
            nonlocal wakes
            wakes += 1
            return call_soon(*arguments)

        loop.call_soon_threadsafe = counted  # type: ignore[assignment, method-assign]

        def emit_all() -> None:
            for number in range(2000):
                service.emit(Piece(f"{number} "))
                if number % 500 == 0:
                    time.sleep(0.01)
            service.emit(FINISHED)

        thread = threading.Thread(target=emit_all)
        thread.start()
        time.sleep(0.005)  # the loop lags
        texts = [message.text async for message in stream if isinstance(message, Piece)]
        thread.join()
        return texts, wakes

    texts, wakes = asyncio.run(listened())
    assert texts == [f"{number} " for number in range(2000)]
    assert 1 <= wakes < 2000
