"""The real `cockpit serve` whose microphone hears its speaker."""

from __future__ import annotations

import time
from functools import partial

from tests.support.paths import AUDIO, short_folder
from tests.support.service.processes import START_S, FakeManager, ServedProcess
from tests.support.waiting import until

ECHO = 0.5
"""Loudness of the speaker at the microphone."""
REPLY_S = 8.0
"""The reply has sounded by then, and would have been recognised."""


def test_its_own_reply_acts_on_nothing(served_models: None) -> None:
    with short_folder() as folder:
        manager = FakeManager(folder)
        profile = folder / "car.yaml"
        profile.write_text("extends: cpu\n")
        served = ServedProcess(folder, "serve", "--profile", profile, manager=manager, echo=ECHO)
        try:
            until(lambda: served.alive() and manager.count("READY"), within_s=START_S)
            for done, name in enumerate(("en01", "en05"), 1):  # over the first reply the microphone is not heard
                served.say(AUDIO / f"{name}.wav")
                until(partial(has_acted, served, done), within_s=START_S)
                time.sleep(REPLY_S)
                assert acted(served) == done, served.log
        finally:
            served.end()
            manager.close()


def has_acted(served: ServedProcess, times: int) -> bool:
    return served.alive() and acted(served) == times


def acted(served: ServedProcess) -> int:
    return sum("calls done" in line for line in served.turns())
