"""Over a reply: "okay" changes nothing, real speech stops it, and no command is lost whichever comes first."""

from __future__ import annotations

import time
from collections.abc import Iterator

import pytest

from cockpit.runtime import Runtime
from models.engines.base import Audio
from pipeline.audio.sink import WavSink
from pipeline.dialogue.own_words import is_own_words
from pipeline.endpointing.backchannel import is_backchannel, says_more
from tests.support.audio_frames import frames
from tests.support.fake_chain import MS, UNCLEAR, fake_parts, sound
from tests.support.fake_clock import FakeClock
from tests.support.waiting import until

COMMAND = "Turn on the rear defroster."


class Ear:
    """Hears a command in anything longer than 700 ms, and `short` in what is shorter."""

    def __init__(self) -> None:
        self.short = "Okay."
        self.long = COMMAND

    def __call__(self, samples: Audio) -> str:
        loud = int((abs(samples) > 0.1).sum())
        return self.long if loud > 550 * MS else self.short


@pytest.fixture
def ear() -> Ear:
    return Ear()


@pytest.fixture
def sink(tmp_path: object) -> WavSink:
    """A reply of ten seconds that is still sounding: its clock stands still."""
    return WavSink(str(tmp_path), pace="realtime", clock=FakeClock())


@pytest.fixture
def runtime(sink: WavSink, ear: Ear) -> Iterator[Runtime]:
    made = Runtime(fake_parts(sink, ear, reply_s=10.0))
    made.start()
    say(made, 900)
    until(sink.speaking)
    yield made
    made.abort()


def say(runtime: Runtime, *lengths_ms: int) -> None:
    for length_ms in lengths_ms:
        runtime.listen(frames(sound(300, length_ms, 900), start_ns=time.monotonic_ns() - 3_000_000_000))
        assert runtime.wait_idle(60.0)


@pytest.mark.parametrize("text", ["Okay.", "Mm-hmm.", "Yeah.", "Right.", "嗯", "对", "好的。"])
def test_a_backchannel_neither_stops_the_reply_nor_opens_a_turn(
    text: str, runtime: Runtime, sink: WavSink, ear: Ear
) -> None:
    ear.short = text
    say(runtime, 400)
    (turn,) = runtime.turn_log.closed()
    assert not turn.interrupted
    assert sink.speaking()
    assert runtime.parts.generations.current == 0


@pytest.mark.parametrize(("length_ms", "text"), [(400, "Stop."), (400, "不对"), (900, COMMAND)])
def test_other_words_stop_it_and_are_answered(
    length_ms: int, text: str, runtime: Runtime, sink: WavSink, ear: Ear
) -> None:
    ear.short = text
    say(runtime, length_ms)
    first, second = runtime.turn_log.closed()
    assert second.transcript == text
    assert second.generation == runtime.parts.generations.current == 1
    (cut,) = [reply for reply in sink.played() if reply.turn_id == first.turn_id]
    assert not cut.complete
    assert sink.played()[-1].turn_id == second.turn_id


def test_a_reply_stops_during_the_speech_and_not_behind_it(runtime: Runtime, sink: WavSink, ear: Ear) -> None:
    ear.long = ear.short = ""  # whatever the words: so long a sound is none
    stopped_at: list[float] = []
    for frame in frames(sound(300, 2000, 900)):
        runtime.listen([frame])
        until(lambda: len(runtime.edges.frames) == 0)
        if not stopped_at and not sink.speaking():
            stopped_at.append(frame.first_sample / MS)
    assert 300 + 600 <= stopped_at[0] < 300 + 1000


def test_two_turns_after_a_backchannel_are_both_answered(runtime: Runtime, ear: Ear) -> None:
    say(runtime, 400, 900, 400, 900)
    assert [turn.transcript for turn in runtime.turn_log.closed()] == [COMMAND] * 3


def test_a_reply_that_hears_itself_goes_on_and_opens_no_turn(runtime: Runtime, sink: WavSink, ear: Ear) -> None:
    """Whatever the canceller left of it: said again by itself, a command is nobody's."""
    runtime.turn_log.closed()[0].reply = "Say turn on the rear defroster, and it is done."
    say(runtime, 580)
    ear.short = "on the rear defroster"
    say(runtime, 400)
    assert len(runtime.turn_log.closed()) == 1
    assert sink.speaking()


@pytest.mark.parametrize(
    ("heard", "said", "own"),
    [
        ("The driver temperature is now 22 degrees.", "The driver temperature is now 22 degrees.", True),
        ("temperature is now 22 degree", "The driver temperature is now 22 degrees.", True),
        ("驾驶座温度现在是", "驾驶座温度现在是22度。", True),
        ("Open the driver window.", "The driver window is now open.", False),
        ("Set the passenger temperature to 22 degrees.", "The driver temperature is now 22 degrees.", False),
        ("driver", "Driver or passenger", False),
        ("关闭驾驶座车窗", "驾驶座车窗已打开。", False),
    ],
)
def test_only_a_stretch_of_the_reply_is_its_own(heard: str, said: str, own: bool) -> None:
    assert is_own_words(heard, said) is own


def test_a_short_answer_to_a_question_is_an_answer(runtime: Runtime, ear: Ear) -> None:
    runtime.turn_log.closed()[0].reply = "Do you mean the driver's window?"
    say(runtime, 400)
    assert [turn.transcript for turn in runtime.turn_log.closed()] == [COMMAND, "Okay."]


def test_a_short_sound_over_a_reply_that_nobody_can_tell_changes_nothing(
    runtime: Runtime, sink: WavSink, ear: Ear
) -> None:
    ear.short = UNCLEAR
    say(runtime, 400)
    (turn,) = runtime.turn_log.closed()
    assert not turn.interrupted
    assert sink.speaking()


def test_an_answer_that_nobody_can_tell_is_asked_for_again(runtime: Runtime, ear: Ear) -> None:
    ear.short = UNCLEAR
    runtime.turn_log.closed()[0].reply = "Do you mean the driver's window?"
    say(runtime, 400)
    assert runtime.turn_log.closed()[-1].reply == "Please say that again."


@pytest.mark.parametrize(
    ("before", "heard", "replies"),
    [
        ([], UNCLEAR, ["Please say that again."]),
        (["打开后窗除雾"], UNCLEAR, ["后窗除雾已打开。", "请再说一遍。"]),
        ([], "", []),
    ],
)
def test_a_word_that_nobody_can_tell_is_asked_for_again_and_noise_is_not(
    before: list[str], heard: str, replies: list[str], tmp_path: object
) -> None:
    words = [*before, heard]
    runtime = Runtime(fake_parts(WavSink(str(tmp_path), pace="fast"), lambda samples: words[0]))
    runtime.start()
    while words:
        say(runtime, 400)
        words.pop(0)
    turns = runtime.stop()
    assert [turn.reply for turn in turns] == replies
    assert all(turn.tool_results == () for turn in turns[len(before) :])


def test_without_a_reply_the_same_word_is_a_turn(ear: Ear, tmp_path: object) -> None:
    runtime = Runtime(fake_parts(WavSink(str(tmp_path), pace="fast"), ear))
    runtime.start()
    say(runtime, 400)
    assert [turn.transcript for turn in runtime.stop()] == ["Okay."]


@pytest.mark.parametrize(
    "text",
    [
        "Okay.",
        "OK",
        "Mm-hmm.",
        "Yeah, yeah.",
        "Right.",
        "Uh-huh",
        "I see.",
        "Okay, got it.",
        "嗯嗯",
        "对对对",
        "好的，好的",
        "知道了",
    ],
)
def test_backchannels(text: str) -> None:
    assert is_backchannel(text)
    assert not says_more(text)


@pytest.mark.parametrize(
    "text", ["", "No.", "Yes.", "Stop.", "Right window down", "okay open it", "不", "对了", "好热", "行驶模式"]
)
def test_no_backchannels(text: str) -> None:
    assert not is_backchannel(text)
