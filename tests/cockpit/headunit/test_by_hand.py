"""What the driver does with a button: on a chain whose frames are handed in one by one, so that nothing is a race."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from dataclasses import replace

import numpy as np
import pytest

from cockpit.headunit.by_hand import MOST_ORDERS
from cockpit.runtime import Runtime
from models.errors import InputError
from pipeline.audio.sink import WavSink
from pipeline.endpointing.wake_word import WakeConfig, WakeGate
from pipeline.frames import AudioFrame, Utterance
from tests.support.audio_frames import frames
from tests.support.fake_chain import RecordingSink, fake_parts, sound
from tests.support.fake_clock import FakeClock
from tests.support.waiting import until


@pytest.fixture
def runtime() -> Runtime:
    """Not started: `hear` is its endpointing thread."""
    return Runtime(fake_parts(RecordingSink()))


def hear(runtime: Runtime, *parts_ms: int, at: dict[int, Callable[[], object]] | None = None) -> list[Utterance]:
    """Silence, speech, ... of these lengths; `at`: what is done by hand after so many ms. The finals that came."""
    finals = []
    whole = list(frames(sound(*parts_ms)))
    waiting = dict(sorted((at or {}).items()))
    for frame in whole:
        for when in [ms for ms in waiting if frame.first_sample >= ms * 16]:
            waiting.pop(when)()
        runtime._hear(replace(frame, end_of_stream=False))
        for sent in runtime.edges.utterances.drain():
            assert isinstance(sent, Utterance)
            finals += [sent] if sent.stage == "final" else []
    assert not waiting
    return finals


def test_silence_ends_no_turn_while_the_button_is_held(runtime: Runtime) -> None:
    assert len(hear(runtime, 300, 800, 1500, 800, 900)) == 2
    assert not runtime.by_hand.talking
    held = Runtime(fake_parts(RecordingSink()))
    (one,) = hear(held, 300, 800, 1500, 800, 900, at={0: held.by_hand.press, 3450: held.by_hand.release})
    assert len(one.samples) > 3000 * 16, "the pause and both halves are one turn"
    assert not held.by_hand.talking


def test_a_released_turn_ends_sooner_than_one_that_is_waited_for() -> None:
    waited_ms, let_go_ms = _sent_at_ms(button=False), _sent_at_ms(button=True)
    assert let_go_ms < waited_ms - 300, "candidate_silence instead of end_silence"


def _sent_at_ms(*, button: bool) -> int:
    runtime = Runtime(fake_parts(RecordingSink()))
    if button:
        runtime.by_hand.press()
    for frame in frames(sound(300, 800, 900)):
        if button and frame.first_sample >= 1090 * 16:
            runtime.by_hand.release()
        runtime._hear(replace(frame, end_of_stream=False))
        if any(isinstance(sent, Utterance) and sent.stage == "final" for sent in runtime.edges.utterances.drain()):
            return frame.first_sample // 16
    raise AssertionError("no turn")


def test_a_button_that_nobody_lets_go_is_over_after_the_longest_utterance(runtime: Runtime) -> None:
    longest_ms = runtime.parts.endpointer.config.max_utterance_ms
    finals = hear(runtime, 300, 800, longest_ms + 500, at={0: runtime.by_hand.press})
    assert len(finals) == 1
    assert not runtime.by_hand.talking


def test_the_button_wakes_without_the_word_and_passes_nothing_from_before() -> None:
    class Deaf:
        chunk_samples, buffer_samples, threshold = 512, 512, 0.5

        def probability(self, samples: np.ndarray) -> float:
            return 0.0

        def reset(self) -> None: ...

    gate = WakeGate(Deaf(), WakeConfig())
    runtime = Runtime(replace(fake_parts(RecordingSink()), wake=gate))
    assert hear(runtime, 300, 800, 900) == []
    woken = Runtime(replace(fake_parts(RecordingSink()), wake=WakeGate(Deaf(), WakeConfig())))
    (turn,) = hear(woken, 300, 800, 900, at={600: woken.by_hand.press, 1100: woken.by_hand.release})
    assert turn.first_sample >= 600 * 16


def test_a_sentence_that_is_cancelled_is_no_command_and_the_next_one_is(runtime: Runtime) -> None:
    (second,) = hear(runtime, 300, 800, 900, 800, 900, at={700: runtime.cancel})
    assert second.first_sample > 1100 * 16
    assert hear(Runtime(fake_parts(RecordingSink())), 300, 800, 900), "without it the same sound is a command"


def test_cancel_while_nobody_speaks_costs_the_next_command_nothing(runtime: Runtime) -> None:
    assert len(hear(runtime, 300, 800, 900, at={250: runtime.cancel})) == 1


def test_nothing_is_heard_while_muted_and_no_half_sentence_is_a_command(runtime: Runtime) -> None:
    mute = runtime.by_hand.mute
    assert hear(runtime, 300, 800, 900, at={0: lambda: mute(True)}) == []
    assert runtime.by_hand.muted
    assert hear_on(runtime, 300, 1600, 900, at={600: lambda: mute(False)}, begins=40_000) == []
    assert not runtime.by_hand.muted
    assert hear_on(runtime, 300, 1600, 900, at={900: lambda: mute(True)}, begins=90_000) == []


def hear_on(runtime: Runtime, *parts_ms: int, at: dict[int, Callable[[], object]], begins: int) -> list[Utterance]:
    """The stream goes on from `begins`: commands that came of it; what is asked for again is none."""
    finals = []
    waiting = dict(at)
    for frame in frames(sound(*parts_ms)):
        for when in [ms for ms in waiting if frame.first_sample >= ms * 16]:
            waiting.pop(when)()
        runtime._hear(replace(frame, first_sample=frame.first_sample + begins, end_of_stream=False))
        finals += [s for s in runtime.edges.utterances.drain() if isinstance(s, Utterance) and s.stage == "final"]
    return finals


def test_muting_counts_at_once_and_orders_do_not_pile_up_while_no_frames_come(runtime: Runtime) -> None:
    runtime.by_hand.mute(True)
    assert runtime.by_hand.muted, "before any frame"
    runtime.by_hand.mute(True)
    for _ in range(MOST_ORDERS - 1):
        runtime.by_hand.press()
    with pytest.raises(InputError, match="delivers nothing"):
        runtime.by_hand.press()
    runtime.cancel()  # of the reply: that is possible still
    with pytest.raises(InputError, match="delivers nothing"):
        runtime.by_hand.mute(False)
    assert runtime.by_hand.muted, "what was refused was not done"


class HeldSpeaker(WavSink):
    """A reply of ten seconds whose clock stands still: it sounds until it is stopped."""


@pytest.fixture
def talking(tmp_path: object) -> Iterator[tuple[Runtime, WavSink]]:
    sink = HeldSpeaker(str(tmp_path), clock=FakeClock())
    runtime = Runtime(fake_parts(sink, reply_s=10.0))
    runtime.start()
    yield runtime, sink
    runtime.abort()


@pytest.mark.parametrize("how", ["cancel", "press"])
def test_a_reply_stops_at_cancel_and_at_the_button(talking: tuple[Runtime, WavSink], how: str) -> None:
    runtime, sink = talking
    runtime.ask("Turn on the rear defroster.", "en", 1)
    until(sink.speaking)
    assert runtime.doing() == "speaking"
    if how == "cancel":
        runtime.cancel()
        assert not sink.speaking(), "at once, without waiting for a frame"
    else:
        runtime.by_hand.press()
        runtime.edges.frames.put(AudioFrame(np.zeros(512, np.float32), 0, 0))
        until(lambda: not sink.speaking())
        assert runtime.doing() == "listening"
