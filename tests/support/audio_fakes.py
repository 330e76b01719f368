"""What the audio tests share: time that passes only when somebody sleeps, a tone, a judge that obeys a script."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.frames import AudioFrame


class FakeClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def now_ns(self) -> int:
        return self.ns

    def sleep_until_ns(self, at_ns: int) -> None:
        self.ns = max(self.ns, at_ns)


def tone(seconds: float, rate_hz: int, hertz: float = 440.0) -> NDArray[np.float64]:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate_hz)) / rate_hz)


def frames(samples: NDArray[np.float32], size: int = 512, *, start_ns: int = 0) -> Iterator[AudioFrame]:
    """`samples` as a stream of frames of `size`, the last one flagged (and empty when there are no samples)."""
    for first in range(0, max(1, len(samples)), size):
        part = samples[first : first + size]
        end = first + len(part)
        yield AudioFrame(part, first, start_ns + end * 62_500, end_of_stream=end >= len(samples))


class LoudnessJudge:
    """Calls a window speech when it is loud: what an endpointer does with a verdict can be tested without a model."""

    def __init__(self) -> None:
        self.windows = 0

    def probability(self, window: NDArray[np.float32]) -> float:
        self.windows += 1
        return 0.9 if float(np.abs(window).max()) > 0.1 else 0.1

    def reset(self) -> None: ...
