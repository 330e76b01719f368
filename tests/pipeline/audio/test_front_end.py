"""Echo cancelling on a synthetic cabin: what is left of a reply, of the driver over it, and of nothing at all."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Iterator
from dataclasses import replace
from functools import cache
from itertools import pairwise
from pathlib import Path

import numpy as np
import pytest
import soundfile
import soxr

from hil.cabin import BEGIN_NS, NS_PER_S, EchoPath, Loudspeaker, frames, heard
from models.engines.vad.silero import SileroVad
from models.engines.vad.webrtc_gate import WebRtcGate
from models.errors import DeviceUnavailable
from pipeline.audio.far_end import FarEnd, PlayedSound
from pipeline.audio.front_end import FrontConfig, FrontEnd
from pipeline.endpointing.endpointer import EndpointConfig, Endpointer
from pipeline.frames import SAMPLE_RATE_HZ, AudioFrame
from pipeline.turns import Generations, TurnIds
from tests.support.paths import AUDIO

Audio = np.ndarray
QUIET = 1e-4


@cache
def speech(*names: str) -> Audio:
    return np.concatenate([soundfile.read(AUDIO / f"{name}.wav", dtype="float32")[0] for name in names])


REPLY = ("en06", "en09", "en14", "en11")


def loudspeaker(rate_hz: int = SAMPLE_RATE_HZ, *, start_s: float = 0.0, ppm: float = 0.0) -> Loudspeaker:
    reply = 0.5 * speech(*REPLY)
    at_rate = reply if rate_hz == SAMPLE_RATE_HZ else soxr.resample(reply, SAMPLE_RATE_HZ, rate_hz)
    return Loudspeaker(PlayedSound(rate_hz), at_rate.astype(np.float32), start_s, ppm)


def noise(samples: int) -> Audio:
    return (QUIET * np.random.default_rng(1).standard_normal(samples)).astype(np.float32)


def db(samples: Audio) -> float:
    return float(10 * np.log10(np.mean(np.square(samples, dtype=np.float64)) + 1e-20))


def joined(cleaned: Iterable[AudioFrame]) -> Audio:
    return np.concatenate([frame.samples for frame in cleaned])


def detected(cleaned: Iterable[AudioFrame]) -> Audio:
    """What decides whether somebody speaks."""
    return np.concatenate([frame.samples if frame.for_detection is None else frame.for_detection for frame in cleaned])


def cancelled(
    source: Loudspeaker, near: Audio, *, delay_ms: float = 60.0, late_ms: float = 0.0
) -> tuple[Audio, Audio, Audio]:
    """The microphone, what is recognised and what decides whether somebody speaks, as if nothing had a delay."""
    microphone, _ = heard(near, [source], EchoPath(delay_ms), 1.0)
    front = FrontEnd(FrontConfig(), lambda: source.sound)
    cleaned = list(front.frames(frames(microphone, [source], late_ms=late_ms)))
    late, end = front.delay_samples, len(microphone)
    return microphone, joined(cleaned)[late:][:end], detected(cleaned)[late:][:end]


@pytest.mark.parametrize(
    ("source", "delay_ms", "late_ms"),
    [
        (loudspeaker(), 60.0, 0.0),
        (loudspeaker(48_000), 15.0, 8.0),
        (loudspeaker(44_100, ppm=-100.0), 300.0, 8.0),
        (loudspeaker(48_000, ppm=100.0, start_s=2.0), 60.0, 8.0),
    ],
    ids=["one clock", "short way", "long way and slow clock", "late start and fast clock"],
)
def test_a_reply_is_taken_out(source: Loudspeaker, delay_ms: float, late_ms: float) -> None:
    length = len(speech(*REPLY)) + round(source.start_s * SAMPLE_RATE_HZ)
    microphone, out, deciding = cancelled(source, noise(length), delay_ms=delay_ms, late_ms=late_ms)
    behind = round((source.start_s + 3.0) * SAMPLE_RATE_HZ)
    assert db(microphone[behind:]) - db(deciding[behind:]) > 20.0
    settling = deciding[round(source.start_s * SAMPLE_RATE_HZ) : behind - SAMPLE_RATE_HZ]
    assert np.abs(settling).max() < 10 * QUIET, "nothing of the first words"
    if delay_ms < 200.0:  # as far as the linear filter reaches
        assert db(microphone[behind:]) - db(out[behind:]) > 8.0


def test_the_driver_is_heard_over_a_reply() -> None:
    source = loudspeaker()
    near = noise(len(source.samples))
    command, at = 0.5 * speech("en05"), 4 * SAMPLE_RATE_HZ
    near[at : at + len(command)] += command
    _, out, deciding = cancelled(source, near)
    over, alone = out[at : at + len(command)], near[at : at + len(command)]
    alike = float(np.dot(over, alone) / np.sqrt(np.dot(over, over) * np.dot(alone, alone)))
    assert alike > 0.95
    assert abs(db(alone) - db(over)) < 1.0
    assert db(alone) - db(deciding[at : at + len(command)]) < 6.0


def test_a_reply_is_a_turn_without_the_canceller_and_none_with_it(model_dir: Callable[[str], Path]) -> None:
    vad = SileroVad.load(model_dir("silero-vad"))
    for echo, expected in (("off", True), ("cancel", False)):
        source = loudspeaker()
        microphone, _ = heard(noise(len(source.samples) + SAMPLE_RATE_HZ), [source], EchoPath(), 1.0)
        sound = source.sound
        front = FrontEnd(FrontConfig(echo="off" if echo == "off" else "cancel"), lambda sound=sound: sound)  # type: ignore[misc]
        vad.reset()
        endpointer = Endpointer(EndpointConfig(), WebRtcGate.load(), vad, Generations(), TurnIds())
        pushed = [turn for frame in front.frames(frames(microphone, [source])) for turn in endpointer.push(frame)]
        assert bool(pushed) is expected, echo


def test_a_device_that_is_opened_anew_is_followed() -> None:
    """The second one begins to count at zero, at another rate."""
    first, second = loudspeaker(), loudspeaker(48_000, start_s=5.0)
    first = replace(first, samples=first.samples[: 4 * SAMPLE_RATE_HZ])
    length = len(speech(*REPLY)) + 5 * SAMPLE_RATE_HZ
    microphone, _ = heard(noise(length), [first, second], EchoPath(), 1.0)
    open_now = [first.sound]

    def feed() -> Iterator[AudioFrame]:
        for frame in frames(microphone, [first, second]):
            if frame.first_sample > 4.5 * SAMPLE_RATE_HZ:
                open_now[0] = second.sound
            yield frame

    front = FrontEnd(FrontConfig(), lambda: open_now[0])
    out = detected(front.frames(feed()))[front.delay_samples :][:length]
    behind = 7 * SAMPLE_RATE_HZ
    assert db(microphone[behind:]) - db(out[behind:]) > 30.0
    assert front.status().jumps == 2


@pytest.mark.parametrize("ppm", [100.0, -100.0])
def test_the_reference_follows_a_clock_that_drifts(ppm: float) -> None:
    """For five minutes, with callbacks that come up to 8 ms late: it never jumps, and is off by 20 ms at most."""
    source = Loudspeaker(PlayedSound(48_000), np.zeros(0, np.float32), ppm=ppm)
    far = FarEnd(source.sound)
    minutes = np.zeros(300 * SAMPLE_RATE_HZ, np.float32)
    read, due = 0.0, 0.0
    for frame in frames(minutes, [source], frame_samples=1600, late_ms=8.0):
        assert far.samples(len(frame.samples), frame.captured_ns, wait=False) is not None
        assert far._position is not None
        read, due = far._position, (frame.captured_ns - BEGIN_NS) * 48_000 * (1.0 + ppm * 1e-6) / NS_PER_S
        assert abs(read - due) < 0.020 * 48_000
    assert far.jumps == 1
    assert abs(far.drift_ppm - ppm) < 40.0


def test_the_reference_is_what_was_handed_out_at_the_time() -> None:
    tone = np.sin(2 * np.pi * 440.0 * np.arange(48_000) / 48_000).astype(np.float32)
    sound = PlayedSound(48_000)
    for start in range(0, 48_000, 480):
        sound.wrote(tone[start : start + 480], BEGIN_NS + start * NS_PER_S // 48_000)
    far = FarEnd(sound)
    taken = far.samples(1600, BEGIN_NS + NS_PER_S // 2, wait=True)
    assert taken is not None
    seconds = 0.5 + (np.arange(1600) - 1600) / SAMPLE_RATE_HZ
    assert np.abs(taken - np.sin(2 * np.pi * 440.0 * seconds)).max() < 0.01
    ahead = far.samples(8_800, BEGIN_NS + NS_PER_S * 21 // 20, wait=True)
    assert ahead is None, "the callback has yet to hand it out"
    assert far.samples(8_800, BEGIN_NS + NS_PER_S * 21 // 20, wait=False) is not None


# --- where there is nothing to cancel ------------------------------------------------------------------------------
def plain(samples: Audio, *, size: int = 512) -> Iterator[AudioFrame]:
    yield from frames(samples, [], frame_samples=size)


@pytest.mark.parametrize("config", [FrontConfig(), FrontConfig(noise="high"), FrontConfig(gain="adaptive")])
def test_silence_stays_silence(config: FrontConfig) -> None:
    sound = PlayedSound(SAMPLE_RATE_HZ)
    assert not joined(FrontEnd(config, lambda: sound).frames(plain(np.zeros(20_000, np.float32)))).any()


@pytest.mark.parametrize("played", [None, PlayedSound(48_000)], ids=["no speaker", "quiet"])
@pytest.mark.parametrize("size", [160, 512, 777])
def test_without_an_echo_the_samples_are_the_same(played: PlayedSound | None, size: int) -> None:
    front = FrontEnd(FrontConfig(), lambda: played)
    cleaned = list(front.frames(plain(speech("en05"), size=size)))
    assert np.array_equal(joined(cleaned)[front.delay_samples :], speech("en05"))
    places = [(frame.first_sample, len(frame.samples)) for frame in cleaned]
    assert all(left + count == right for (left, count), (right, _) in pairwise(places))
    assert [frame.end_of_stream for frame in cleaned] == [False] * (len(cleaned) - 1) + [True]
    assert not any(frame.over_playback for frame in cleaned)


def test_a_loss_is_handed_on_where_it_was() -> None:
    source = list(plain(speech("en05")))
    kept = [*source[:20], replace(source[25], after_loss=True), *source[26:]]
    cleaned = list(FrontEnd(FrontConfig(), lambda: None).frames(kept))
    (place,) = [number for number, frame in enumerate(cleaned) if frame.after_loss]
    assert cleaned[place].first_sample == source[25].first_sample
    before = cleaned[place - 1]
    assert before.first_sample + len(before.samples) == source[20].first_sample


def test_half_duplex_hears_nothing_while_the_speaker_sounds() -> None:
    tone = (0.1 * np.sin(np.arange(3 * SAMPLE_RATE_HZ) / 5.0)).astype(np.float32)
    source = Loudspeaker(PlayedSound(SAMPLE_RATE_HZ), tone, start_s=1.0)
    near = speech("en05", "en06", "en09")[: 4 * SAMPLE_RATE_HZ]
    front = FrontEnd(FrontConfig(echo="half_duplex"), lambda: source.sound)
    cleaned = list(front.frames(frames(near, [source])))
    out = joined(cleaned)
    assert np.array_equal(out[: SAMPLE_RATE_HZ - 512], near[: SAMPLE_RATE_HZ - 512])
    assert not out[SAMPLE_RATE_HZ + 512 :].any()
    assert "not heard while the speaker sounds" in str(front.status())
    assert not any(frame.after_loss for frame in cleaned)


def test_speech_that_began_while_nothing_was_heard_is_asked_for_again() -> None:
    """Its beginning is missing, in half duplex and before the canceller has settled."""
    tone = (0.1 * np.sin(np.arange(SAMPLE_RATE_HZ) / 5.0)).astype(np.float32)
    for config in (FrontConfig(echo="half_duplex"), FrontConfig()):
        source = Loudspeaker(PlayedSound(SAMPLE_RATE_HZ), tone, start_s=0.5)
        sound = source.sound
        front = FrontEnd(config, lambda sound=sound: sound)  # type: ignore[misc]
        cleaned = list(front.frames(frames(speech("en05"), [source])))
        (heard_again,) = [frame for frame in cleaned if frame.after_loss]
        assert heard_again.first_sample >= 2 * SAMPLE_RATE_HZ


def test_the_status_says_what_is_done() -> None:
    sound = PlayedSound(SAMPLE_RATE_HZ)
    there: list[PlayedSound | None] = [None]
    front = FrontEnd(FrontConfig(), lambda: there[0])
    assert "echo is not cancelled: there is no speaker" in str(front.status())
    there[0] = sound
    assert str(front.status()).startswith("echo is cancelled;")
    assert "audio.front.echo is off" in str(FrontEnd(FrontConfig(echo="off"), lambda: sound).status())


def test_a_missing_package_is_named_at_the_start(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(__import__("sys").modules, "pywebrtc_audio", None)
    with pytest.raises(DeviceUnavailable, match=r"cockpit-voice\[audio\].*half_duplex"):
        FrontEnd(FrontConfig(), lambda: None)
    FrontEnd(FrontConfig(echo="half_duplex"), lambda: None)
