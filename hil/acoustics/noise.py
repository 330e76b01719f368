"""Road-like noise, mixed in at a stated signal-to-noise ratio."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

from hil.acoustics.level import active_speech_level

Audio = NDArray[np.float32]

RATE_HZ = 16_000


def road_noise(samples: int, seed: int, *, corner_hz: float = 120.0) -> Audio:
    """Float32 (samples,) of unit RMS that sounds like tyres and wind: pink above `corner_hz`, falling faster than pink
    below 40 Hz, its level swelling slowly by about 2 dB. The same seed gives the same noise. Not clipped.
    """
    if samples == 0:
        return np.zeros(0, np.float32)
    random = np.random.default_rng(seed)
    size = max(samples, RATE_HZ)
    spectrum = np.fft.rfft(random.standard_normal(size))
    hertz = np.fft.rfftfreq(size, 1.0 / RATE_HZ)
    tyres = 1.0 / np.sqrt(1.0 + (hertz / corner_hz) ** 2)
    wind = 0.12 / np.sqrt(np.maximum(hertz, 40.0) / 40.0)
    rumble = (hertz / 40.0) ** 2 / (1.0 + (hertz / 40.0) ** 2)
    noise = np.fft.irfft(spectrum * (tyres + wind) * rumble, size)
    seconds = np.arange(size) / RATE_HZ
    noise *= 1.0 + 0.25 * np.sin(2.0 * np.pi * 0.3 * seconds + random.uniform(0.0, 2.0 * np.pi))
    noise = noise[:samples]
    unit: Audio = (noise / np.sqrt(np.mean(noise**2))).astype(np.float32)
    return unit


def active_level(samples: Audio) -> float:
    """RMS while somebody speaks, by ITU-T P.56 (see hil.acoustics.level); 0.0 for silence."""
    return active_speech_level(samples)[0]


def mix(speech: Audio, noise: Audio, snr_db: float) -> tuple[Audio, float]:
    """Add `noise` (at least as long) to `speech` so that active speech is `snr_db` above it.

    Both are turned down together when the sum would pass full scale. Returns the mixture in [-1, 1] and the ratio
    achieved in dB, measured on the two parts as mixed. Raises ValueError for silence or noise that is too short.
    """
    level = active_level(speech)
    if level == 0.0:
        raise ValueError("there is no speech to set a signal-to-noise ratio by")
    if len(noise) < len(speech):
        raise ValueError(f"{len(noise)} samples of noise do not cover {len(speech)} of speech")
    part = noise[: len(speech)].astype(np.float64)
    part *= level / np.sqrt(np.mean(part**2)) * 10.0 ** (-snr_db / 20.0)
    mixed = speech + part
    gain = min(1.0, 0.999 / float(np.abs(mixed).max()))
    achieved_db = 20.0 * np.log10(
        active_level((speech * gain).astype(np.float32)) / np.sqrt(np.mean((part * gain) ** 2))
    )
    return (mixed * gain).astype(np.float32), float(achieved_db)
