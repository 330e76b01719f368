"""What a cabin sounds like besides words, each kind made from a seed: float32 at 16 kHz, of unit RMS, never clipped.

They are made by rule, not recorded: spectra and rhythms as in a car, good enough to tell whether something stands noise
of that kind, and no stand-in for a recording in the car itself.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import lru_cache, partial
from typing import Any, Literal, get_args

import numpy as np
from numpy.typing import NDArray

from hil import AUDIO
from hil.acoustics.noise import RATE_HZ, Audio, road_noise
from pipeline.audio.wav import read_wav

NoiseKind = Literal["road", "engine", "hvac", "rain", "music", "babble", "indicator"]
KINDS: tuple[NoiseKind, ...] = get_args(NoiseKind)
Surface = Literal["smooth", "rough", "cobbles", "wet"]
Spectrum = NDArray[np.floating]
_TALKERS = 6
_CHORDS_HZ = ((220.0, 277.2, 329.6), (174.6, 220.0, 261.6), (130.8, 164.8, 196.0), (196.0, 246.9, 293.7))


def noise_of(
    kind: NoiseKind,
    samples: int,
    seed: int,
    *,
    speed_kmh: float = 100.0,
    surface: Surface = "smooth",
    level: float = 50.0,
) -> Audio:
    """speed_kmh: of road and engine. surface: of road. level: of the fan (hvac) or the downpour (rain), 0 to 100."""
    makers: dict[NoiseKind, Callable[[], Audio]] = {
        "road": partial(_road, samples, seed, speed_kmh, surface),
        "engine": partial(_engine, samples, seed, speed_kmh),
        "hvac": partial(_hvac, samples, seed, level),
        "rain": partial(_rain, samples, seed, level),
        "music": partial(_music, samples, seed),
        "babble": partial(_babble, samples, seed),
        "indicator": partial(_indicator, samples, seed),
    }
    return _unit(makers[kind]())


def _unit(sound: NDArray[Any]) -> Audio:
    rms = float(np.sqrt(np.mean(np.square(sound, dtype=np.float64)))) if len(sound) else 0.0
    return sound.astype(np.float32) if rms == 0.0 else (sound / rms).astype(np.float32)


def _shaped(samples: int, seed: int, gain: Callable[[Spectrum], Spectrum]) -> Spectrum:
    """White noise through a gain over frequency in Hz."""
    size = max(samples, RATE_HZ)
    spectrum = np.fft.rfft(np.random.default_rng(seed).standard_normal(size))
    shaped: Spectrum = np.fft.irfft(spectrum * gain(np.fft.rfftfreq(size, 1.0 / RATE_HZ)), size)[:samples]
    return shaped


def corner_hz(speed_kmh: float, surface: Surface) -> float:
    """From here on road noise falls: tyres and wind move up with speed, a rough surface moves the energy down."""
    return float(np.clip((40.0 + 0.8 * speed_kmh) * {"rough": 0.8, "cobbles": 0.7}.get(surface, 1.0), 40.0, 1000.0))


def _road(samples: int, seed: int, speed_kmh: float, surface: Surface) -> Audio:
    sound = road_noise(samples, seed, corner_hz=corner_hz(speed_kmh, surface)).astype(np.float64)
    if surface == "wet":  # spray: a hiss above 2 kHz
        hiss = _shaped(samples, seed + 1, lambda hertz: (hertz > 2000.0) / np.sqrt(np.maximum(hertz, 2000.0) / 2000.0))
        sound += 0.5 * _unit(hiss)
    if surface == "cobbles":  # a stone every 15 cm
        seconds = np.arange(samples) / RATE_HZ
        sound *= 1.0 + 0.8 * np.sin(2.0 * np.pi * max(speed_kmh, 5.0) / 3.6 / 0.15 * seconds)
    return sound.astype(np.float32)


def _engine(samples: int, seed: int, speed_kmh: float) -> Audio:
    """Four cylinders, four strokes: two firings a turn, and the half orders between; speed stands for the gear too."""
    random = np.random.default_rng(seed)
    rpm = 900.0 + 18.0 * speed_kmh
    wander = np.cumsum(random.standard_normal(samples)) / RATE_HZ * 2.0
    turns = np.cumsum((rpm + wander) / 60.0 / RATE_HZ)
    sound = np.zeros(samples)
    for order in np.arange(0.5, 12.5, 0.5):
        gain = (1.0 if order % 2 == 0 else 0.25) / order
        sound += gain * np.sin(2.0 * np.pi * (order * turns + random.uniform()))
    return (sound + 0.3 * _unit(_shaped(samples, seed, lambda hertz: 1.0 / (1.0 + hertz / 200.0)))).astype(np.float32)


def _hvac(samples: int, seed: int, level: float) -> Audio:
    """A blower: broad noise whose corner rises with the fan's level, and the tone of its blades."""
    corner = 300.0 + 12.0 * level
    sound = _unit(_shaped(samples, seed, lambda hertz: (hertz > 60.0) / (1.0 + (hertz / corner) ** 2)))
    blades = np.sin(2.0 * np.pi * (120.0 + 4.0 * level) * np.arange(samples) / RATE_HZ)
    return (sound + 0.15 * blades).astype(np.float32)


def _rain(samples: int, seed: int, level: float) -> Audio:
    """Drops on a roof, at random times, over a hiss."""
    random = np.random.default_rng(seed)
    hits = np.zeros(samples)
    drops = random.integers(0, max(samples, 1), round(samples / RATE_HZ * (20.0 + 8.0 * level)))
    np.add.at(hits, drops, random.exponential(1.0, len(drops)))
    seconds = np.arange(RATE_HZ // 50) / RATE_HZ
    drop = np.exp(-seconds * 300.0) * np.sin(2.0 * np.pi * 700.0 * seconds)
    hiss = _shaped(samples, seed + 1, lambda hertz: (hertz > 1000.0).astype(np.float64))
    made: Audio = (np.convolve(hits, drop)[:samples] + 0.1 * _unit(hiss)).astype(np.float32)
    return made


def _music(samples: int, seed: int) -> Audio:
    """Chords of two seconds with overtones, and a beat at 120 a minute."""
    random = np.random.default_rng(seed)
    seconds = np.arange(samples) / RATE_HZ
    chord = (seconds // 2.0).astype(int) + int(random.integers(4))
    sound = np.zeros(samples)
    for number, notes in enumerate(_CHORDS_HZ):
        tones = sum(np.sin(2.0 * np.pi * k * note * seconds) / k**1.5 for note in notes for k in range(1, 6))
        sound += np.where(chord % len(_CHORDS_HZ) == number, tones, 0.0)
    beat = np.exp(-((seconds % 0.5) * 25.0)) * random.standard_normal(samples)
    return (sound + 2.0 * beat).astype(np.float32)


def _babble(samples: int, seed: int) -> Audio:
    """Six people of the rig's recordings at once, each beginning anywhere."""
    random = np.random.default_rng(seed)
    recordings = sorted(AUDIO.glob("*.wav"))
    sound = np.zeros(samples)
    for chosen in random.choice(len(recordings), min(_TALKERS, len(recordings)), replace=False):
        voice = _unit(_recording(recordings[chosen].name))
        sound += np.resize(np.roll(voice, int(random.integers(len(voice)))), samples)
    return sound.astype(np.float32)


@lru_cache(maxsize=32)
def _recording(name: str) -> Audio:
    made: Audio = read_wav(AUDIO / name)
    return made


def _indicator(samples: int, seed: int) -> Audio:
    """Tick and tock, 90 a minute."""
    seconds = np.arange(samples) / RATE_HZ + np.random.default_rng(seed).uniform(0.0, 1.0 / 3.0)
    since, tock = seconds % (1.0 / 3.0), (seconds // (1.0 / 3.0)) % 2
    click: Spectrum = np.exp(-since * 250.0) * np.sin(2.0 * np.pi * np.where(tock, 1300.0, 1900.0) * since)
    return click.astype(np.float32)
