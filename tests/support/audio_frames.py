"""Samples as a tone and as a stream of frames."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
from numpy.typing import NDArray

from pipeline.frames import AudioFrame


def tone(seconds: float, rate_hz: int, hertz: float = 440.0) -> NDArray[np.float64]:
    return 0.5 * np.sin(2 * np.pi * hertz * np.arange(round(seconds * rate_hz)) / rate_hz)


def frames(samples: NDArray[np.float32], size: int = 512, *, start_ns: int = 0) -> Iterator[AudioFrame]:
    """`samples` as a stream of frames of `size`, the last one flagged (and empty when there are no samples)."""
    for first in range(0, max(1, len(samples)), size):
        part = samples[first : first + size]
        end = first + len(part)
        yield AudioFrame(part, first, start_ns + end * 62_500, end_of_stream=end >= len(samples))
