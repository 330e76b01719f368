"""Who gets a shared voice next: guidance before the chain, between two chunks; nobody keeps it while it waits."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any, cast

import numpy as np

from cockpit.api.speech import SpeechService
from cockpit.scheduling.engine_turns import ChainVoice, EngineTurns, GuidanceVoice
from models.engines.base import Audio
from models.engines.preemption import redone, run
from pipeline.frames import SpeechFrame, Task, TextDelta
from pipeline.tts.stage import TtsStage
from tests.support.waiting import ended, until


class Voice:
    """Four chunks; each waits until the test lets it go."""

    sample_rate_hz = 16_000

    def __init__(self) -> None:
        self.made: list[str] = []
        self.may = threading.Semaphore(0)

    def synthesise(self, text: str) -> Iterator[Audio]:
        for _ in range(4):
            self.may.acquire()
            self.made.append(text)
            yield np.zeros(1, np.float32)

    def warm_up(self) -> None: ...


def test_guidance_takes_the_voice_between_two_chunks_of_a_reply() -> None:
    engine, turns = Voice(), EngineTurns()
    chain, guidance = ChainVoice(engine, turns), GuidanceVoice(engine, turns)
    reply = threading.Thread(target=lambda: list(chain.synthesise("reply")))
    reply.start()
    engine.may.release()
    until(lambda: engine.made == ["reply"])
    prompt = threading.Thread(target=lambda: list(guidance.synthesise("prompt")))
    prompt.start()
    until(lambda: not turns._nobody_first.is_set(), "guidance waits for the voice")
    engine.may.release(2)
    until(lambda: len(engine.made) == 3)
    assert engine.made == ["reply", "reply", "prompt"]
    engine.may.release(10)
    ended(reply)
    ended(prompt)
    assert sorted(engine.made) == ["prompt"] * 4 + ["reply"] * 4


class RunningVoice:
    """Two chunks. Once `slow` is set a run takes until it is ended, if nobody lets it go."""

    sample_rate_hz = 16_000

    def __init__(self) -> None:
        self.runs: list[str] = []
        self.slow = True
        self.over: list[str] = []

    def _run(self, text: str, options: Any) -> Audio:
        self.runs.append(text)
        if self.slow and options is not None:
            until(lambda: options.terminate, "guidance ends the run")
            self.slow = False
            raise ValueError("terminated")
        self.over.append(text)
        return np.ones(1, np.float32)

    def synthesise(self, text: str) -> Iterator[Audio]:
        for _ in range(2):
            yield (yield from redone(lambda: run(lambda options: self._run(text, options))))

    def warm_up(self) -> None: ...


def test_guidance_ends_the_run_of_a_reply_and_the_reply_loses_nothing() -> None:
    engine, turns = RunningVoice(), EngineTurns()
    tts = TtsStage({"en": ChainVoice(engine, turns)})
    held: list[bool] = []

    class Runs:
        @contextmanager
        def around(self, task: Task | None, cancelled: Callable[[], bool]) -> Iterator[bool]:
            held.append(True)
            yield True

    tts.under(Runs())
    (clause,) = tts.handle(TextDelta(1, 1, "One sentence.", "en", captured_ns=1, last=True))
    frames: list[SpeechFrame] = []
    reply = threading.Thread(target=lambda: frames.extend(tts.speak(clause, lambda: False)))
    reply.start()
    until(lambda: engine.runs)
    assert [chunk.size for chunk in GuidanceVoice(engine, turns).synthesise("prompt")] == [1, 1]
    ended(reply)
    assert engine.over[0] == "prompt"
    assert [frame.samples.size for frame in frames] == [1, 1, 0]
    assert len(held) == 4, "a lane is asked for again before the run is done again: 1 ended, 2 chunks, the end"
    assert turns.for_guidance.ended == 1


def test_guidance_ends_the_run_of_a_request_that_speaks_and_its_clause_loses_nothing() -> None:
    engine, turns = RunningVoice(), EngineTurns()
    speech = SpeechService(cast("Any", None), {"en": engine}, ("en",), EngineTurns(), turns)
    chunks: list[Audio] = []
    asked = threading.Thread(target=lambda: chunks.extend(speech.speak("one sentence", "en", lambda: False)))
    asked.start()
    until(lambda: engine.runs)
    assert [chunk.size for chunk in GuidanceVoice(engine, turns).synthesise("prompt")] == [1, 1]
    ended(asked)
    assert engine.over[0] == "prompt"
    assert [chunk.size for chunk in chunks] == [1, 1]


def test_nobody_keeps_a_voice_while_its_listener_lags() -> None:
    engine, turns = Voice(), EngineTurns()
    engine.may.release(8)
    lagging = ChainVoice(engine, turns).synthesise("reply")
    next(lagging)
    assert len(list(GuidanceVoice(engine, turns).synthesise("prompt"))) == 4
    with turns.at_once() as mine:
        assert mine
    assert len(list(lagging)) == 3
