"""From a mouth in the cabin to the microphones in its roof: impulse responses that ship, and speech through them."""

from __future__ import annotations

from pathlib import Path
from typing import Literal, get_args

import numpy as np
import soundfile
from numpy.typing import NDArray

from hil.acoustics.noise import Audio, active_level
from pipeline.frames import SAMPLE_RATE_HZ

Mouth = Literal["driver", "passenger", "rear"]
Window = Literal["closed", "open"]
Microphone = Literal["left", "right", "both"]
MOUTHS: tuple[Mouth, ...] = get_args(Mouth)
WINDOWS: tuple[Window, ...] = get_args(Window)
FOLDER = Path(__file__).resolve().parent / "impulse_responses"
"""Made by `python -m hil.acoustics.make_impulse_responses`: 16 kHz, a channel for each microphone."""


def file_of(mouth: Mouth, window: Window) -> Path:
    return FOLDER / f"{mouth}-{window}.wav"


def response(mouth: Mouth, window: Window = "closed") -> Audio:
    """Float32 (samples, 2): left and right microphone."""
    samples, rate_hz = soundfile.read(file_of(mouth, window), dtype="float32", always_2d=True)
    if rate_hz != SAMPLE_RATE_HZ:
        raise ValueError(f"{file_of(mouth, window)} is at {rate_hz} Hz, not {SAMPLE_RATE_HZ}")
    made: Audio = samples
    return made


def through_cabin(speech: Audio, mouth: Mouth, window: Window = "closed", microphone: Microphone = "left") -> Audio:
    """`speech` as the microphone hears it, as loud as before while somebody speaks, and as long.

    both: the sum of the two, which is a beam straight ahead. Float32 (n,); turned down where it would pass full scale.
    """
    paths = response(mouth, window)
    chosen = {"left": paths[:, :1], "right": paths[:, 1:], "both": paths}[microphone]
    heard = np.mean([_convolved(speech, chosen[:, channel]) for channel in range(chosen.shape[1])], axis=0)
    level, before = active_level(heard.astype(np.float32)), active_level(speech)
    gain = 1.0 if level == 0.0 else before / level
    gain = min(gain, 0.999 / max(float(np.abs(heard).max()), 1e-9))
    made: Audio = (heard * gain).astype(np.float32)
    return made


def _convolved(speech: Audio, path: Audio) -> NDArray[np.float64]:
    """Without the delay of the direct sound, so that ends and beginnings stay where they were."""
    size = len(speech) + len(path)
    direct = int(np.argmax(np.abs(path)))
    whole = np.fft.irfft(np.fft.rfft(speech, size) * np.fft.rfft(path, size), size)
    part: NDArray[np.float64] = whole[direct : direct + len(speech)]
    return part
