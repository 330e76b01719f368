"""What the endpointer does with the judge's verdicts: stages, revisions, early end, re-opening, caps, odd lengths."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import replace
from itertools import pairwise

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.endpointing.endpointer import EndpointConfig, Endpointer
from pipeline.frames import AudioFrame, Utterance
from pipeline.turns import Generations, TurnIds
from tests.support.audio_frames import frames
from tests.support.fake_vad import LoudnessVad, OpenGate

MS = 16


def endpointer(**changes: int) -> Endpointer:
    return Endpointer(EndpointConfig(**changes), OpenGate(), LoudnessVad(), Generations(), TurnIds())  # type: ignore[arg-type]


def sound(*parts_ms: int) -> NDArray[np.float32]:
    """Silence, speech, silence, ... of these lengths. Every sample differs, so that a view's place can be checked."""
    pieces = []
    for number, length in enumerate(parts_ms):
        noise = np.random.default_rng(number).uniform(-1, 1, length * MS)
        pieces.append(noise * (0.8 if number % 2 else 0.001))
    return np.concatenate(pieces).astype(np.float32)


def run(pointer: Endpointer, samples: NDArray[np.float32], size: int = 512) -> list[Utterance]:
    return [utterance for frame in frames(samples, size) for utterance in pointer.push(frame)]


def stages(utterances: Sequence[Utterance]) -> str:
    return "".join(utterance.stage[0] for utterance in utterances)


def test_one_turn_goes_through_its_stages() -> None:
    samples = sound(500, 1500, 1000)
    got = run(endpointer(), samples)
    assert stages(got) == "ppppcf"
    assert [utterance.revision for utterance in got] == [0, 1, 2, 3, 4, 4]
    candidate, final = got[-2:]
    assert final.samples is candidate.samples
    for utterance in got:
        assert utterance.turn_id == 1
        first = utterance.first_sample
        assert np.array_equal(utterance.samples, samples[first : first + len(utterance.samples)])
        assert not utterance.samples.flags.writeable
        # The frame's time is that of its last sample, the utterance's that of its own last one.
        assert utterance.captured_ns == (first + len(utterance.samples)) * 62_500
    assert abs(final.speech_end_sample - 2000 * MS) <= 10 * MS
    assert 200 * MS - 512 <= final.first_sample <= 200 * MS  # the pre-roll, in whole windows
    assert len(final.samples) - (final.speech_end_sample - final.first_sample) <= 200 * MS


def test_later_audio_never_changes_what_was_handed_out() -> None:
    pointer = endpointer()
    kept = [(utterance.samples, utterance.samples.copy()) for utterance in run(pointer, sound(300, 3000, 900))]
    run(pointer, sound(300, 2000, 900))
    for view, copy in kept:
        assert np.array_equal(view, copy)
    assert len({id(view.base) for view, _ in kept}) == 1  # all of one block: no copy per message


@pytest.mark.parametrize("size", [1, 159, 160, 511, 512, 513, 4096])
def test_frame_length_does_not_matter(size: int) -> None:
    samples = sound(400, 700, 800)[:-5]
    want = run(endpointer(), samples, 512)
    got = run(endpointer(), samples, size)
    assert stages(got) == stages(want)
    for left, right in zip(got, want, strict=True):
        assert np.array_equal(left.samples, right.samples)
        assert (left.first_sample, left.speech_end_sample) == (right.first_sample, right.speech_end_sample)


@pytest.mark.parametrize("length", [0, 1, 511, 512, 513, 16_000])
def test_silence_of_any_length_is_no_turn(length: int) -> None:
    assert run(endpointer(), np.zeros(length, np.float32)) == []


@pytest.mark.parametrize("tail", [0, 1, 100, 511])
def test_a_file_cut_at_its_last_sample_of_speech_is_flushed(tail: int) -> None:
    samples = sound(300, 800)[: 1100 * MS // 512 * 512 + tail]
    final = run(endpointer(), samples)[-1]
    assert final.stage == "final"
    assert final.first_sample + len(final.samples) == len(samples)
    assert len(samples) - final.speech_end_sample <= 16 * MS


def test_a_last_word_shorter_than_the_onset_is_flushed() -> None:
    assert stages(run(endpointer(), sound(320, 70))) == "pf"


def test_a_click_is_no_turn() -> None:
    assert run(endpointer(), sound(320, 20, 800)) == []


def test_a_pause_within_a_sentence_does_not_cut_it() -> None:
    got = run(endpointer(), sound(300, 600, 400, 600, 900))
    assert {utterance.turn_id for utterance in got} == {1}
    assert stages(got).count("f") == 1
    assert stages(got).count("c") == 2  # one per silence, each with a revision of its own
    assert not any(utterance.reopened for utterance in got)


def test_two_sentences_are_two_turns() -> None:
    got = run(endpointer(), sound(300, 600, 800, 600, 800))
    finals = [utterance for utterance in got if utterance.stage == "final"]
    assert [final.turn_id for final in finals] == [1, 2]
    assert finals[1].first_sample >= finals[0].first_sample + len(finals[0].samples)


def run_completing(pointer: Endpointer, samples: NDArray[np.float32]) -> list[tuple[int, Utterance]]:
    """Run with an understanding that finds every candidate complete; returns each utterance and when it came (ms)."""
    got = []
    for frame in frames(samples):
        for utterance in pointer.push(frame):
            got.append(((frame.first_sample + len(frame.samples)) // MS, utterance))
            if utterance.stage == "candidate":
                pointer.command_complete(utterance.turn_id, utterance.revision)
    return got


def test_a_complete_command_ends_the_turn_early() -> None:
    samples = sound(300, 900, 1500)
    late = next(frame for frame in run_with_times(endpointer(), samples) if frame[1].stage == "final")
    early = next(item for item in run_completing(endpointer(), samples) if item[1].stage == "final")
    assert 1200 + 200 <= early[0] < 1200 + 200 + 64
    assert 1200 + 500 <= late[0] < 1200 + 500 + 64
    assert np.array_equal(early[1].samples, late[1].samples)


def run_with_times(pointer: Endpointer, samples: NDArray[np.float32]) -> list[tuple[int, Utterance]]:
    return [
        ((frame.first_sample + len(frame.samples)) // MS, utterance)
        for frame in frames(samples)
        for utterance in pointer.push(frame)
    ]


def test_a_verdict_on_an_older_revision_does_not_end_the_turn() -> None:
    pointer = endpointer()
    pointer.command_complete(1, 0)
    finals = [item for item in run_with_times(pointer, sound(300, 900, 1500)) if item[1].stage == "final"]
    assert finals[0][0] >= 1700


def test_speech_after_an_early_end_reopens_the_turn() -> None:
    samples = sound(300, 900, 600, 900, 1500)
    got = [utterance for _, utterance in run_completing(endpointer(), samples)]
    finals = [utterance for utterance in got if utterance.stage == "final"]
    assert [final.turn_id for final in finals] == [1, 1]
    assert [final.reopened for final in finals] == [False, True]
    first, second = finals
    assert second.revision > first.revision
    assert np.array_equal(second.samples[: len(first.samples)], first.samples)
    end = second.first_sample + len(second.samples)
    assert np.array_equal(second.samples, samples[second.first_sample : end])
    assert abs(second.speech_end_sample - 2700 * MS) <= 10 * MS
    after = got[got.index(first) + 1 :]
    assert after[0].stage == "partial"
    assert all(utterance.reopened for utterance in after)


def test_speech_long_after_an_early_end_is_a_new_turn() -> None:
    got = [utterance for _, utterance in run_completing(endpointer(), sound(300, 900, 1300, 900, 900))]
    assert [utterance.turn_id for utterance in got if utterance.stage == "final"] == [1, 2]
    assert not any(utterance.reopened for utterance in got)


def test_an_endless_utterance_is_capped_and_goes_on_as_the_next_turn() -> None:
    samples = sound(300, 5000, 900)
    finals = [item for item in run(endpointer(max_utterance_ms=2000), samples) if item.stage == "final"]
    assert [final.turn_id for final in finals] == [1, 2, 3]
    for left, right in pairwise(finals):
        assert right.first_sample == left.first_sample + len(left.samples)  # nothing lost, nothing heard twice
    assert all(len(final.samples) <= 2000 * MS + 512 for final in finals)


def test_when_frames_stop_an_open_turn_is_closed() -> None:
    pointer = endpointer()
    stream = [frame for frame in frames(sound(300, 900, 900)) if frame.first_sample < 1000 * MS]
    for frame in stream:
        pointer.push(frame)
    assert pointer.tick(900.0) == []
    (final,) = pointer.tick(1000.0)
    assert (final.stage, final.torn) == ("final", True)  # in the midst of speech: what is there may mean something else
    assert pointer.tick(2000.0) == []


def test_lost_frames_count_as_silence_and_positions_stay_true() -> None:
    pointer = endpointer()
    samples = sound(300, 900, 900)
    got: list[Utterance] = []
    for frame in frames(samples):
        if not 10_240 <= frame.first_sample < 11_264:
            got.extend(pointer.push(frame))
    assert pointer.gap_samples == 1024
    final = got[-1]
    assert abs(final.speech_end_sample - 1200 * MS) <= 10 * MS
    assert not final.samples[10_240 - final.first_sample : 11_264 - final.first_sample].any()


def test_a_long_gap_closes_the_turn_and_a_new_stream_begins() -> None:
    pointer = endpointer()
    loud = sound(0, 600)
    pointer.push(AudioFrame(loud, 0, 0))
    got = pointer.push(AudioFrame(loud, 500_000, 0))
    assert [(item.turn_id, item.stage, item.torn) for item in got] == [(1, "final", True)]
    got = [item for frame in frames(sound(700, 600, 900)) for item in pointer.push(moved(frame, 509_600))]
    assert {(item.turn_id, item.torn) for item in got} == {(2, False)}


def moved(frame: AudioFrame, by: int, *, after_loss: bool = False) -> AudioFrame:
    return replace(frame, first_sample=frame.first_sample + by, after_loss=after_loss)


@pytest.mark.parametrize("lost_ms", [250, 900, 4000])
def test_a_sentence_that_lost_sound_in_its_midst_is_asked_for_again_once(lost_ms: int) -> None:
    """ "Do not | open the window": neither half may be taken for a command."""
    pointer = endpointer()
    got: list[Utterance] = []
    for frame in frames(sound(300, 2000, 900, 800, 900)):
        if frame.first_sample < 1000 * MS:
            got.extend(pointer.push(frame))
        elif frame.first_sample >= 1200 * MS:
            first = 1184 * MS <= frame.first_sample < 1216 * MS
            got.extend(pointer.push(moved(frame, (lost_ms - 200) * MS, after_loss=first)))
    finals = [(item.turn_id, item.torn) for item in got if item.stage == "final"]
    assert finals == [(1, True), (2, False)]


def test_speech_right_behind_a_loss_is_asked_for_again() -> None:
    """Nobody spoke before the loss, as far as is known: the beginning may have been lost."""
    pointer = endpointer()
    got: list[Utterance] = []
    for frame in frames(sound(0, 700, 900, 800, 900)):
        got.extend(pointer.push(moved(frame, 80_000, after_loss=frame.first_sample == 0)))
    assert [(item.torn, len(item.samples) > 0) for item in got if item.stage == "final"] == [
        (True, False),
        (False, True),
    ]


def test_silence_behind_a_loss_costs_nothing() -> None:
    pointer = endpointer()
    got: list[Utterance] = []
    for frame in frames(sound(700, 800, 900)):
        got.extend(pointer.push(moved(frame, 80_000, after_loss=frame.first_sample == 0)))
    assert [item.torn for item in got if item.stage == "final"] == [False]


def test_a_sentence_that_had_ended_before_the_loss_is_obeyed() -> None:
    pointer = endpointer()
    got: list[Utterance] = []
    for frame in frames(sound(300, 800, 2000)):
        if frame.first_sample < 1300 * MS:
            got.extend(pointer.push(frame))
        else:
            got.extend(pointer.push(moved(frame, 64_000, after_loss=not any(item.stage == "final" for item in got))))
    assert [item.torn for item in got if item.stage == "final"] == [False]


def test_one_endpointer_serves_stream_after_stream() -> None:
    pointer = endpointer()
    samples = sound(300, 600, 900)
    first, second = run(pointer, samples), run(pointer, samples)
    assert [item.turn_id for item in second] == [2] * len(second)
    assert np.array_equal(first[-1].samples, second[-1].samples)


def test_barge_in_needs_speech_for_a_while_and_ends_with_it() -> None:
    pointer = endpointer()
    raised = []
    for frame in frames(sound(320, 800, 800)):
        pointer.push(frame)
        raised.append(pointer.speech_started)
    first, last = raised.index(True), len(raised) - 1 - raised[::-1].index(True)
    assert 320 + 128 <= first * 32 <= 320 + 192
    assert abs((last + 1) * 32 - 1120) <= 32
    assert all(raised[first : last + 1])


def test_an_utterance_carries_the_generation_of_the_moment() -> None:
    generations = Generations()
    pointer = Endpointer(EndpointConfig(), OpenGate(), LoudnessVad(), generations, TurnIds())
    got = []
    for frame in frames(sound(300, 900, 900)):
        got.extend(pointer.push(frame))
        if pointer.speech_started and generations.current == 0:
            generations.bump()
    assert got[0].generation == 0
    assert got[-1].generation == 1


@pytest.mark.parametrize(
    "changes",
    [
        {"offset": 0.6},
        {"onset": 1.0},
        {"candidate_silence_ms": 300},
        {"end_silence_ms": 100},
        {"max_utterance_ms": 400},
    ],
)
def test_settings_that_contradict_each_other_are_refused(changes: dict[str, float]) -> None:
    with pytest.raises(ValueError, match=r"does not hold|leaves no room"):
        EndpointConfig(**changes)  # type: ignore[arg-type]


def test_ten_minutes_of_turns_do_not_grow() -> None:
    pointer = endpointer()
    once = sound(300, 600, 1100)
    blocks = set()
    for turn in range(300):
        final = next(item for item in run(pointer, once) if item.stage == "final")
        assert final.turn_id == turn + 1
        blocks.add(final.samples.base.shape if final.samples.base is not None else None)
    assert len(blocks) == 1
    assert len(pointer._recent) <= 8
