"""A run against a baseline: how much later or earlier, and how sure that is."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

STAGES = ("first_audio", "endpoint", "asr", "llm", "tts_first")
FEWEST = 5
"""Turns on either side below which an interval would say nothing."""
_RESAMPLINGS = 2000
_SEED = 1


@dataclass(frozen=True, slots=True)
class Difference:
    """Of one stage of one scenario, in ms, now minus baseline: of the medians, with its 95 % interval by bootstrap.

    low_ms, high_ms: None where there are fewer than FEWEST turns on a side. outcomes: baseline and now.
    """

    id: str
    stage: str
    before_ms: float
    now_ms: float
    low_ms: float | None
    high_ms: float | None
    turns: tuple[int, int]
    outcomes: tuple[str, str]

    @property
    def verdict(self) -> str:
        """slower or faster where the interval excludes 0; `too few turns` where there is none."""
        if self.low_ms is None or self.high_ms is None:
            return "too few turns"
        return "slower" if self.low_ms > 0 else "faster" if self.high_ms < 0 else "no difference shown"


def differences(now: Sequence[Mapping[str, Any]], baseline: Sequence[Mapping[str, Any]]) -> list[Difference]:
    """Of every scenario and stage that both have. Rows as in `results.jsonl`."""
    before = {row["id"]: row for row in baseline}
    found = []
    for row in now:
        other = before.get(row["id"])
        if other is None:
            continue
        for stage in STAGES:
            old, new = _times(other, stage), _times(row, stage)
            if len(old) and len(new):
                low, high = bootstrap(old, new) if min(len(old), len(new)) >= FEWEST else (None, None)
                medians = float(np.median(old)), float(np.median(new))
                outcomes = str(other["outcome"]), str(row["outcome"])
                found.append(Difference(row["id"], stage, *medians, low, high, (len(old), len(new)), outcomes))
    return found


def bootstrap(old: NDArray[np.float64], new: NDArray[np.float64]) -> tuple[float, float]:
    """The 95 % percentile interval of the difference of medians, new minus old; the same each time."""
    random = np.random.default_rng(_SEED)
    medians = [
        np.median(values[random.integers(0, len(values), (_RESAMPLINGS, len(values)))], axis=1) for values in (new, old)
    ]
    low, high = np.percentile(medians[0] - medians[1], (2.5, 97.5))
    return float(low), float(high)


def _times(row: Mapping[str, Any], stage: str) -> NDArray[np.float64]:
    turns = (turn for repetition in row["repetitions"] for turn in repetition["turns"])
    return np.array([turn["ms"][stage] for turn in turns if turn["ms"].get(stage) is not None], np.float64)
