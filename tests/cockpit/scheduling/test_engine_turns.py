"""Who gets a shared voice next: guidance before the chain, between two chunks; nobody keeps it while it waits."""

from __future__ import annotations

import threading
from collections.abc import Iterator

import numpy as np

from cockpit.scheduling.engine_turns import ChainVoice, EngineTurns, GuidanceVoice
from models.engines.base import Audio
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


def test_nobody_keeps_a_voice_while_its_listener_lags() -> None:
    engine, turns = Voice(), EngineTurns()
    engine.may.release(8)
    lagging = ChainVoice(engine, turns).synthesise("reply")
    next(lagging)
    assert len(list(GuidanceVoice(engine, turns).synthesise("prompt"))) == 4
    with turns.at_once() as mine:
        assert mine
    assert len(list(lagging)) == 3
