"""The active speech level of ITU-T P.56, method B: how loud speech is while somebody speaks."""

from __future__ import annotations

from itertools import accumulate

import numpy as np
from numpy.typing import NDArray

Audio = NDArray[np.float32]

RATE_HZ = 16_000
_SMOOTHING_S = 0.03
_HANGOVER_S = 0.2
_MARGIN_DB = 15.9
_THRESHOLDS = 2.0 ** -np.arange(0, 16)
"""Of the envelope, against full scale: a factor of two each, as the recommendation has it for 16 bits."""


def active_speech_level(samples: Audio, rate_hz: int = RATE_HZ) -> tuple[float, float]:
    """(RMS over the time that counts as speech, that time's share of the whole), of float32 (n,) in [-1, 1].

    (0.0, 0.0) for silence and for what is quieter than 16 bits can hold. After P.56 (12/2011): the envelope is smoothed
    twice with 30 ms, a threshold counts for 200 ms after it was passed, and the level lies 15.9 dB above the threshold
    that it belongs to; between two thresholds it is interpolated.
    """
    energy = float(np.sum(samples.astype(np.float64) ** 2))
    if not len(samples) or energy == 0.0:
        return 0.0, 0.0
    envelope = _envelope(samples, rate_hz)
    index = np.arange(len(samples))
    hangover = round(_HANGOVER_S * rate_hz)
    before: tuple[float, float] | None = None
    for threshold in _THRESHOLDS:
        above = envelope >= threshold
        if not above.any():
            continue
        last = np.maximum.accumulate(np.where(above, index, -hangover - 1))
        active = int(np.count_nonzero(index - last <= hangover))
        level_db = 10.0 * np.log10(energy / active)
        over_db = level_db - 20.0 * np.log10(threshold)
        if over_db >= _MARGIN_DB:
            if before is not None and over_db > before[1]:
                share = (_MARGIN_DB - before[1]) / (over_db - before[1])
                level_db = before[0] + share * (level_db - before[0])
            rms = 10.0 ** (level_db / 20.0)
            return float(rms), float(min(1.0, energy / (rms**2 * len(samples))))
        before = level_db, over_db
    return 0.0, 0.0


def _envelope(samples: Audio, rate_hz: int) -> NDArray[np.float64]:
    keep = float(np.exp(-1.0 / (_SMOOTHING_S * rate_hz)))
    smoothed = np.abs(samples).astype(np.float64)
    for _ in range(2):
        parts = accumulate(((1.0 - keep) * smoothed).tolist(), lambda held, new: keep * held + new)
        smoothed = np.fromiter(parts, np.float64, len(smoothed))
    return smoothed
