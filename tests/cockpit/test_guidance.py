"""Guidance in the running process: beside the dialogue, never part of it."""

from __future__ import annotations

import time
from dataclasses import replace
from pathlib import Path

import pytest

from cockpit.runtime import NullSink, Runtime
from cockpit.scheduling.guidance_lease import guidance_lease
from models.errors import InputError
from pipeline.audio.sink import WavSink
from pipeline.frames import GuidancePrompt
from pipeline.guidance import GuidanceStage
from tests.support.audio_frames import frames
from tests.support.fake_chain import Voice, fake_parts, sound
from tests.support.fake_clock import FakeClock
from tests.support.waiting import until


def prompt(text: str = "In 200 metres turn left.") -> GuidancePrompt:
    return GuidancePrompt(text, "en", time.monotonic_ns())


def test_a_prompt_over_a_reply_opens_no_turn_and_enters_no_history(tmp_path: Path) -> None:
    clock = FakeClock()
    sink = WavSink(tmp_path, clock=clock)
    stage = GuidanceStage({"en": Voice(1.0)})
    runtime = Runtime(replace(fake_parts(sink, reply_s=10.0), guidance=stage))
    runtime.start()
    try:
        runtime.ask("Turn on the rear defroster.", "en", 1)
        assert runtime.wait_idle()
        until(sink.speaking)
        clock.ns += 2_000_000_000
        assert runtime.guide(prompt()) == 1
        until(lambda: stage.counts().spoken == 1)
        assert sink.prompting()
        assert sink.speaking()
        (turn,) = runtime.turn_log.closed()
        assert not turn.interrupted
        assert runtime.parts.generations.current == 0
        clock.ns += 60_000_000_000
        (played,) = sink.played()
        assert played.complete
        assert "left" not in played.text
    finally:
        runtime.abort()


def test_the_driver_interrupts_a_prompt_through_the_chain(tmp_path: Path) -> None:
    """One second of speech while a prompt sounds for ever stops it; the words are a turn like any other."""
    sink = WavSink(tmp_path, clock=FakeClock())
    stage = GuidanceStage({"en": Voice(30.0)})
    runtime = Runtime(replace(fake_parts(sink), guidance=stage))
    runtime.start()
    try:
        runtime.guide(prompt())
        until(lambda: stage.counts().spoken == 1)
        assert sink.prompting()
        runtime.listen(frames(sound(300, 1000, 900), start_ns=time.monotonic_ns() - 3_000_000_000))
        assert runtime.wait_idle()
        assert not sink.prompting()
        assert [turn.transcript for turn in runtime.turn_log.closed()] == ["Turn on the rear defroster."]
    finally:
        runtime.abort()


def test_a_process_that_ends_speaks_no_more_prompts() -> None:
    stage = GuidanceStage({"en": Voice()})
    runtime = Runtime(replace(fake_parts(NullSink()), guidance=stage))
    runtime.start()
    runtime.stop()
    assert not any(thread.is_alive() for thread in runtime._threads)


def test_a_runtime_without_guidance_says_so() -> None:
    with pytest.raises(InputError, match="no voice"):
        Runtime(fake_parts(NullSink())).guide(prompt())


def test_without_an_arbiter_nothing_is_leased() -> None:
    with guidance_lease(None)(bool):
        pass
