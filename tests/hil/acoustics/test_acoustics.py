"""Levels, noises, the cabin, and all of them together."""

from __future__ import annotations

import numpy as np
import pytest

from hil import AUDIO
from hil.acoustics.kinds import KINDS, corner_hz, noise_of
from hil.acoustics.level import active_speech_level
from hil.acoustics.noise import RATE_HZ, Audio, active_level
from hil.acoustics.rooms import MOUTHS, WINDOWS, response, through_cabin
from hil.acoustics.scene import CabinPath, NoiseSource, heard
from pipeline.audio.wav import read_wav

SECONDS = 3


@pytest.fixture(scope="module")
def speech() -> Audio:
    return read_wav(AUDIO / "en05.wav")


def decibels(ratio: float) -> float:
    return float(20 * np.log10(ratio))


def test_the_active_level_leaves_pauses_out(speech: Audio) -> None:
    """A tone has its RMS and is active always; the same with as much silence behind it has nearly that level still."""
    tone = (0.1 * np.sin(np.arange(4 * RATE_HZ) * 0.3)).astype(np.float32)
    level, share = active_speech_level(tone)
    assert decibels(level / (0.1 / np.sqrt(2))) == pytest.approx(0, abs=0.1)
    assert share == pytest.approx(1, abs=0.02)
    paused, half = active_speech_level(np.concatenate([tone, np.zeros_like(tone)]))
    assert decibels(paused / level) == pytest.approx(0, abs=0.5)
    assert half == pytest.approx(0.5, abs=0.05)
    spoken, share = active_speech_level(speech)
    assert 0.3 < share < 0.9
    assert decibels(active_speech_level(speech * 0.1)[0] / spoken) == pytest.approx(-20, abs=0.1)
    assert active_speech_level(np.zeros(100, np.float32)) == (0.0, 0.0)
    assert active_speech_level(np.zeros(0, np.float32)) == (0.0, 0.0)


@pytest.mark.parametrize("kind", KINDS)
def test_noise_is_the_seeds_own(kind: str) -> None:
    first, again, other = (noise_of(kind, SECONDS * RATE_HZ, seed) for seed in (1, 1, 2))  # type: ignore[arg-type]
    assert first.dtype == np.float32
    assert np.sqrt(np.mean(first**2)) == pytest.approx(1, abs=0.01)
    assert np.array_equal(first, again)
    assert not np.array_equal(first, other)


def centre_hz(sound: Audio) -> float:
    power = np.abs(np.fft.rfft(sound)) ** 2
    return float(np.sum(np.fft.rfftfreq(len(sound), 1 / RATE_HZ) * power) / np.sum(power))


def test_noise_follows_speed_surface_and_fan() -> None:
    assert corner_hz(150, "smooth") > corner_hz(50, "smooth") > corner_hz(50, "rough")
    samples = SECONDS * RATE_HZ
    assert centre_hz(noise_of("road", samples, 1, speed_kmh=150)) > centre_hz(
        noise_of("road", samples, 1, speed_kmh=40)
    )
    assert centre_hz(noise_of("road", samples, 1, surface="wet")) > 2 * centre_hz(noise_of("road", samples, 1))
    assert centre_hz(noise_of("hvac", samples, 1, level=90)) > centre_hz(noise_of("hvac", samples, 1, level=10))


def late_db(path: Audio) -> float:
    """Energy later than 20 ms behind the direct sound, against all of it."""
    energy = path.astype(np.float64) ** 2
    direct = int(np.argmax(np.abs(path)))
    return float(10 * np.log10(energy[direct + RATE_HZ // 50 :].sum() / energy.sum()))


def test_the_cabins_that_ship_are_small_rooms_and_an_open_window_makes_them_drier() -> None:
    late = {(mouth, window): late_db(response(mouth, window)[:, 0]) for mouth in MOUTHS for window in WINDOWS}
    assert all(-20 < level_db < -5 for level_db in late.values()), late
    assert all(late[mouth, "open"] < late[mouth, "closed"] - 1 for mouth in MOUTHS)
    driver, passenger = (np.abs(response(mouth)).argmax(axis=0) for mouth in ("driver", "passenger"))
    assert driver[0] < driver[1]
    assert passenger[0] > passenger[1], "the nearer microphone hears it first"


def test_a_cabin_changes_the_sound_and_not_the_level(speech: Audio) -> None:
    made = through_cabin(speech, "rear", "open", "both")
    assert len(made) == len(speech)
    assert decibels(active_level(made) / active_level(speech)) == pytest.approx(0, abs=0.2)
    assert np.corrcoef(made, speech)[0, 1] < 0.95


def test_a_scene_has_the_ratio_that_is_asked_for(speech: Audio) -> None:
    sound, ratio = heard(speech, [NoiseSource("road", 10.0)], None)
    assert ratio == pytest.approx(10, abs=0.2)
    assert np.abs(sound).max() < 1
    _, two = heard(speech, [NoiseSource("road", 10.0), NoiseSource("rain", 10.0)], None)
    assert two == pytest.approx(7, abs=0.3)
    _, beam = heard(speech, [NoiseSource("road", 10.0)], CabinPath(microphone="both"))
    assert beam == pytest.approx(13, abs=0.5), "noise differs between the microphones, speech does not"
    silent, none = heard(np.zeros(RATE_HZ, np.float32), [NoiseSource("hvac", 6.0)], None)
    assert none is None
    assert decibels(float(np.sqrt(np.mean(silent**2)))) == pytest.approx(-32, abs=0.2)
    assert heard(speech, [], None)[0] is speech
