"""The far end of echo cancelling: what a loudspeaker was given, and the same at the microphone's pace.

`PlayedSound` is written by the loudspeaker's callback and read by the thread that takes the microphone's frames;
neither locks nor waits. `FarEnd` says what was being handed to the loudspeaker while given microphone samples were
captured. The two devices have clocks of their own: the reading position follows the loudspeaker's, slowly, so that
neither late callbacks nor rates that differ by some 100 ppm move the echo's delay faster than a canceller can follow.
"""

from __future__ import annotations

import math

import numpy as np
from numpy.typing import NDArray

from pipeline.frames import SAMPLE_RATE_HZ

Audio = NDArray[np.float32]

_KEPT_S = 4.0
_STALE_NS = 100_000_000
"""A loudspeaker whose callback is so late is not waited for: it hands out nothing now."""
_JUMP_S = 0.1
"""An error of the position beyond this is no drift: a device was stopped or opened anew."""
_SMOOTH_S = 10.0
_PULL_PER_S = 0.02
_MOST_PPM = 1_000
_PHASES = 256
_HALF_WIDTH = 8
"""Of the interpolation kernel, in samples of the lower rate: 60 dB against images below 6.5 kHz."""


class PlayedSound:
    """The newest seconds that a device was given, mono, at its own rate, with the times at which they were due."""

    def __init__(self, rate_hz: int) -> None:
        self.rate_hz = rate_hz
        self._buffer = np.zeros(round(_KEPT_S * rate_hz), np.float32)
        self._newest = (0, 0)

    def wrote(self, block: Audio, now_ns: int) -> None:
        """The device's callback: float32 (n,) was handed out at `now_ns` (monotonic). Writer only."""
        written, size = self._newest[0], len(self._buffer)
        start = written % size
        head = min(len(block), size - start)
        self._buffer[start : start + head] = block[:head]
        self._buffer[: len(block) - head] = block[head:]
        self._newest = (written + len(block), now_ns + len(block) * 1_000_000_000 // self.rate_hz)

    @property
    def written(self) -> int:
        """Samples handed out so far."""
        return self._newest[0]

    def position_at(self, at_ns: int) -> float:
        """The sample that was due at `at_ns`, before the first or behind the last one too."""
        written, due_ns = self._newest
        return written + (at_ns - due_ns) * self.rate_hz / 1e9

    def stale_at(self, at_ns: int) -> bool:
        """Whether the device has long asked for nothing."""
        return at_ns > self._newest[1] + _STALE_NS

    def read(self, start: int, stop: int) -> Audio:
        """float32 (stop - start,); zeros for what is not there any more, or not yet."""
        written, size = self.written, len(self._buffer)
        out = np.zeros(stop - start, np.float32)
        first, last = max(start, 0, written - size), min(stop, written)
        if first < last:
            at = np.arange(first, last) % size
            out[first - start : last - start] = self._buffer[at]
        return out


class FarEnd:
    """`PlayedSound` at 16 kHz and at the microphone's pace. One thread.

    `jumps` counts how often the position was set anew, the first time included; `drift_ppm` is how much faster the
    loudspeaker's clock is taken to run just now.
    """

    def __init__(self, played: PlayedSound) -> None:
        self.played = played
        self.jumps = 0
        self.drift_ppm = 0.0
        self._ratio = played.rate_hz / SAMPLE_RATE_HZ
        self._kernel = _kernel(self._ratio)
        self._taps = self._kernel.shape[1]
        self._position: float | None = None
        self._error = 0.0

    def restart(self) -> None:
        """The next samples do not follow the last ones."""
        self._position = None

    def samples(self, count: int, end_ns: int, *, wait: bool) -> Audio | None:
        """float32 (count,): what the loudspeaker was given during `count` microphone samples captured until `end_ns`.

        None where its callback has yet to hand out some of it and `wait` allows to ask again later. Samples must
        follow each other, or `restart` be called.
        """
        played = self.played
        target = played.position_at(end_ns) - count * self._ratio
        position, error, step = target, 0.0, self._ratio
        jumps = self._position is None or abs(target - self._position) > _JUMP_S * played.rate_hz
        if self._position is not None and not jumps:
            position = self._position
            seconds = count / SAMPLE_RATE_HZ
            error = self._error + (target - position - self._error) * min(1.0, seconds / _SMOOTH_S)
            pull = error / played.rate_hz * _PULL_PER_S
            step = self._ratio * (1.0 + max(-_MOST_PPM * 1e-6, min(_MOST_PPM * 1e-6, pull)))
        last_needed = position + count * step + self._taps
        if wait and last_needed > played.written and not played.stale_at(end_ns):
            return None
        self.jumps += jumps
        self._position, self._error = position + count * step, error
        self.drift_ppm = (step / self._ratio - 1.0) * 1e6
        return self._interpolated(position, step, count)

    def _interpolated(self, position: float, step: float, count: int) -> Audio:
        first = math.floor(position) - self._taps // 2 + 1
        given = self.played.read(first, first + math.ceil(count * step) + self._taps + 1)
        if not given.any():
            return np.zeros(count, np.float32)
        places = (position - first) + step * np.arange(count)
        whole = np.floor(places).astype(np.int64)
        phases = ((places - whole) * _PHASES).astype(np.int64)
        windows = np.lib.stride_tricks.sliding_window_view(given, self._taps)[whole - self._taps // 2 + 1]
        out: Audio = np.einsum("ij,ij->i", windows, self._kernel[phases])
        return out


def _kernel(ratio: float) -> Audio:
    """Windowed sinc, float32 (phases, taps): row p interpolates (p + 0.5) / phases behind the middle tap."""
    wide = max(1.0, ratio)
    half = math.ceil(_HALF_WIDTH * wide)
    offsets = np.arange(1 - half, half + 1)[None, :] - (np.arange(_PHASES)[:, None] + 0.5) / _PHASES
    inside = np.sqrt(np.maximum(0.0, 1.0 - (offsets / half) ** 2))
    shape = np.sinc(offsets * 0.92 / wide) * np.i0(6.0 * inside)
    kernel: Audio = (shape / shape.sum(axis=1, keepdims=True)).astype(np.float32)
    return kernel
