"""The linear part of echo cancelling: a frequency-domain Kalman filter in partitioned blocks.

From G. Enzner and P. Vary, "Frequency-domain adaptive Kalman filter for acoustic echo control in hands-free
telephones", Signal Processing 86 (2006), with partitions as in F. Kuech et al., ICASSP 2014. Its step follows from how
well the path is known and how loud everything but the echo is, so that somebody who speaks over the loudspeaker neither
disturbs the filter nor is taken out. What is left is what no linear filter can take out: distortion, and a path that
moves.
"""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Audio = NDArray[np.float32]

_TRANSITION = 0.999
"""How alike the path is from block to block."""
_SMOOTHING = 0.9
_FLOOR = 1e-6


class KalmanEcho:
    """Takes the echo of one loudspeaker out of one microphone. One thread; state stays from call to call."""

    def __init__(self, block_samples: int, partitions: int) -> None:
        """The path may be `block_samples * partitions` long, the delay included."""
        bins = block_samples + 1
        self._block = block_samples
        self._inputs = np.zeros((partitions, bins), np.complex64)
        self._path = np.zeros((partitions, bins), np.complex64)
        self._uncertainty = np.ones((partitions, bins), np.float32)
        self._noise = np.zeros(bins, np.float32)
        self._last_far: Audio = np.zeros(block_samples, np.float32)
        self._zeros: Audio = np.zeros(block_samples, np.float32)

    def begin(self, near: Audio) -> None:
        """Before `process` after silence of the loudspeaker; near: the block before, without an echo."""
        error = np.fft.rfft(np.concatenate([self._zeros, near]))
        self._noise = np.maximum(self._noise, np.abs(error) ** 2).astype(np.float32)
        self._inputs[:] = 0.0
        self._last_far = self._zeros

    def process(self, near: Audio, far: Audio) -> Audio:
        """near, far: float32 (n,), n a multiple of the block. Returns near without its echo, no sample later."""
        size = self._block
        parts = [self._cancel(near[at : at + size], far[at : at + size]) for at in range(0, len(near), size)]
        return np.concatenate(parts)

    def _cancel(self, near: Audio, far: Audio) -> Audio:
        size = self._block
        self._inputs[1:] = self._inputs[:-1]
        self._inputs[0] = np.fft.rfft(np.concatenate([self._last_far, far]))
        self._last_far = far
        echo = np.fft.irfft((self._inputs * self._path).sum(axis=0), 2 * size)[size:]
        left: Audio = (near - echo).astype(np.float32)
        power = self._inputs.real**2 + self._inputs.imag**2
        if power.max() < _FLOOR:  # in silence nothing is learnt, and nothing forgotten
            return left
        error = np.fft.rfft(np.concatenate([self._zeros, left])).astype(np.complex64)
        step = self._uncertainty / ((power * self._uncertainty).sum(axis=0) + 2.0 * self._noise + _FLOOR)
        known = step * power
        unknown = np.abs((1.0 - 0.5 * known.sum(axis=0)) * error) ** 2
        self._noise = _SMOOTHING * self._noise + (1.0 - _SMOOTHING) * unknown
        change = np.fft.irfft(step * np.conj(self._inputs) * error, 2 * size, axis=1)
        change[:, size:] = 0.0
        self._path += np.fft.rfft(change, axis=1).astype(np.complex64)
        kept = _TRANSITION**2
        self._uncertainty = kept * (1.0 - 0.5 * known) * self._uncertainty + (1.0 - kept) * np.abs(self._path) ** 2
        return left
