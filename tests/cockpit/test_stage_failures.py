"""A fault in any stage costs one turn, is spoken, counted, traced and logged; three in a row end the chain."""

from __future__ import annotations

import logging
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from cockpit.runtime import STAGES, Runtime
from cockpit.scheduling.dispatcher import Refused
from cockpit.stage_failures import StageFailed, StageFailures
from cockpit.telemetry.trace import TraceRecorder
from pipeline.frames import AudioFrame, SpeechFrame, Utterance
from pipeline.nlg.apologies import ANSWER_LOST, NOT_TAKEN_BACK, SAY_AGAIN
from pipeline.vehicle.signals import SignalError
from tests.support.audio_frames import frames
from tests.support.fake_chain import MS, RecordingSink, fake_parts, sound, utterance
from tests.support.waiting import until

SECRET = "what the driver said"
DEFROSTER = "Vehicle.Cabin.HVAC.IsRearDefrosterActive"


class FailingSink(RecordingSink):
    """Its `play` fails while `broken` says so."""

    def __init__(self) -> None:
        super().__init__()
        self.broken: Callable[[SpeechFrame], bool] = lambda frame: False

    def play(self, frame: SpeechFrame) -> int:
        if self.broken(frame):
            raise RuntimeError(SECRET)
        return super().play(frame)


@pytest.fixture
def sink() -> FailingSink:
    return FailingSink()


@pytest.fixture
def tracer() -> TraceRecorder:
    return TraceRecorder()


@pytest.fixture
def runtime(sink: FailingSink, tracer: TraceRecorder) -> Iterator[Runtime]:
    made = Runtime(fake_parts(sink, tracer=tracer))
    made.start()
    yield made
    made.abort()


def say(runtime: Runtime) -> bool:
    runtime.listen(utterance())
    return runtime.wait_idle(30.0)


def break_stage(runtime: Runtime, sink: FailingSink, stage: str, monkeypatch: pytest.MonkeyPatch) -> None:
    """From now on `stage` fails on every turn, in the midst of it."""

    def fail(*_: Any, **__: Any) -> Any:
        raise RuntimeError(SECRET)

    parts = runtime.parts
    if stage == "endpoint":
        monkeypatch.setattr(parts.endpointer, "_silence", fail)
    elif stage == "recognise":
        monkeypatch.setattr(parts.asr, "_recogniser", None)
    elif stage == "understand":
        monkeypatch.setattr(type(parts.dialogue), "reply", fail)
    elif stage == "speak":
        monkeypatch.setattr(parts.tts._voices["en"], "synthesise", fail)
    else:
        monkeypatch.setattr(sink, "broken", lambda frame: len(frame.samples) > 0 and frame.text != ANSWER_LOST["en"])


@pytest.mark.parametrize("stage", STAGES)
def test_one_fault_costs_one_turn_and_the_next_is_answered(
    stage: str,
    runtime: Runtime,
    sink: FailingSink,
    tracer: TraceRecorder,
    monkeypatch: pytest.MonkeyPatch,
    caplog: pytest.LogCaptureFixture,
) -> None:
    caplog.set_level(logging.INFO)
    with monkeypatch.context() as broken:
        break_stage(runtime, sink, stage, broken)
        assert say(runtime)
    (lost,) = runtime.turn_log.closed()
    assert lost.failed == stage
    assert sink.said(lost.turn_id) == (ANSWER_LOST if stage in ("speak", "play") else SAY_AGAIN)["en"]
    assert sink.frames[-1].last
    assert [name for name, count in runtime.stage_failures.counts.items() if count] == [stage]
    assert any(span.stage == stage and span.name.startswith("failed: ") for span in tracer.spans())
    assert f"stage {stage} failed on turn {lost.turn_id}: " in caplog.text
    assert f"failed in {stage}" in caplog.text
    assert SECRET not in caplog.text

    assert say(runtime)
    answered = runtime.turn_log.closed()[-1]
    assert (answered.turn_id > lost.turn_id, answered.failed) == (True, None)
    assert [result.status for result in answered.tool_results] == ["done"]


@pytest.mark.parametrize("stage", ["recognise", "speak"])
def test_runs_that_the_arbiter_refuses_cost_their_turns_and_never_the_chain(
    stage: str, runtime: Runtime, sink: FailingSink, monkeypatch: pytest.MonkeyPatch, caplog: pytest.LogCaptureFixture
) -> None:
    def refuse(*_: Any, **__: Any) -> Any:
        raise Refused("speech_task: its queue is full")

    parts = runtime.parts
    with monkeypatch.context() as busy:
        if stage == "recognise":
            busy.setattr(parts.asr._recogniser, "transcribe", refuse)
        else:
            busy.setattr(parts.tts._runs, "around", refuse)
        for _ in range(4):
            assert say(runtime)
    lost = runtime.turn_log.closed()
    assert [turn.failed for turn in lost] == [stage] * 4
    assert [sink.said(turn.turn_id) for turn in lost] == [
        (ANSWER_LOST if stage == "speak" else SAY_AGAIN)["en"] for _ in lost
    ]
    assert not any(runtime.stage_failures.counts.values())
    assert "its queue is full" in caplog.text
    assert say(runtime)
    assert runtime.turn_log.closed()[-1].failed is None


def test_what_a_failed_turn_had_done_is_taken_back(
    runtime: Runtime, sink: FailingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    access = runtime.parts.dialogue.toolbox.access
    break_stage(runtime, sink, "understand", monkeypatch)
    assert say(runtime)
    assert access.read(DEFROSTER) is False
    assert runtime.turn_log.closed()[0].tool_results == ()

    def refuse(*_: Any) -> int:
        raise SignalError("no_answer", DEFROSTER)

    monkeypatch.setattr(type(runtime.parts.dialogue), "roll_back", refuse)
    assert say(runtime)
    assert sink.said(runtime.turn_log.closed()[-1].turn_id) == NOT_TAKEN_BACK["en"]


@pytest.mark.parametrize("stage", STAGES)
def test_three_turns_in_a_row_end_the_chain(
    stage: str, runtime: Runtime, sink: FailingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    break_stage(runtime, sink, stage, monkeypatch)
    assert say(runtime)
    assert say(runtime)
    with pytest.raises(StageFailed, match=f"stage {stage} failed on three turns in a row: ") as caught:
        say(runtime)
    assert caught.value.exit_code == 5
    assert SECRET not in str(caught.value)
    assert runtime.turn_log.all_closed()
    runtime.listen(utterance())  # takes nothing, and does not hang
    with pytest.raises(StageFailed):
        runtime.stop()


def test_an_answered_turn_between_two_faults_starts_the_count_anew(
    runtime: Runtime, sink: FailingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    for broken in (True, True, False, True, True):
        with monkeypatch.context() as patch:
            if broken:
                break_stage(runtime, sink, "recognise", patch)
            assert say(runtime)
    assert [turn.failed for turn in runtime.turn_log.closed()] == [
        "recognise",
        "recognise",
        None,
        "recognise",
        "recognise",
    ]


def test_a_fault_in_work_ahead_of_the_end_costs_nothing(runtime: Runtime, monkeypatch: pytest.MonkeyPatch) -> None:
    handle = runtime.parts.asr.handle

    def fail_early(item: Utterance, **more: Any) -> Any:
        if item.stage != "final":
            raise RuntimeError("too early")
        return handle(item, **more)

    def slow_at_the_end() -> Iterator[AudioFrame]:
        for frame in utterance():
            if frame.first_sample > 1300 * MS:  # the candidate is on its way: nothing newer may overtake it
                until(lambda: runtime.stage_failures.counts["recognise"] > 0)
            yield frame

    monkeypatch.setattr(runtime.parts.asr, "handle", fail_early)
    runtime.listen(slow_at_the_end())
    assert runtime.wait_idle(30.0)
    assert [turn.failed for turn in runtime.turn_log.closed()] == [None]


def test_the_rest_of_a_sentence_that_was_lost_is_no_command(
    runtime: Runtime, sink: FailingSink, monkeypatch: pytest.MonkeyPatch
) -> None:
    """The endpointer fails once in the midst of a sentence: "do not | open the window" must not open it."""
    speech = runtime.parts.endpointer._speech
    failures = iter([True])

    def fail_once(*arguments: Any) -> Any:
        if next(failures, False):
            raise RuntimeError("once")
        return speech(*arguments)

    monkeypatch.setattr(runtime.parts.endpointer, "_speech", fail_once)
    runtime.listen(frames(sound(300, 1500, 900, 800, 900)))
    assert runtime.wait_idle(30.0)
    lost, answered = runtime.turn_log.closed()
    assert (lost.failed, lost.tool_results) == ("endpoint", ())
    assert (answered.failed, len(answered.tool_results)) == (None, 1)


def test_a_speaker_that_is_broken_for_good_still_ends_its_turn(runtime: Runtime, sink: FailingSink) -> None:
    sink.broken = lambda frame: True
    assert say(runtime)
    assert [turn.failed for turn in runtime.turn_log.closed()] == ["play"]


def test_failures_on_one_turn_count_once() -> None:
    failures = StageFailures(STAGES)
    assert [failures.failed("speak", 1) for _ in range(5)] == [False] * 5
    failures.passed("speak", 1)  # the end of the turn on which it failed
    assert not failures.failed("speak", 2)
    assert failures.failed("speak", 3)
    assert not failures.failed("play", 3)
    failures.passed("speak", 4)
    assert not failures.failed("speak", 5)
    assert failures.counts["speak"] == 8
