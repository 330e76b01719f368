"""Silero VAD on ONNX Runtime: one window in, one probability out, state carried."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from models.engines.placement import CpuPlacement

WINDOW_SAMPLES = 512
"""Samples the model takes at a time at 16 kHz (32 ms)."""
CONTEXT_SAMPLES = 64
"""Samples of the window before that the model expects in front."""

_STATE_SHAPE = (2, 1, 128)
_RATE_HZ = 16_000


class SileroVad:
    """The VAD model. Not thread-safe: one stage owns it.

    Input, context, state and probability live in buffers bound once: a window costs one copy and no allocation. The
    recurrent state moves back and forth between two buffers, so the graph never reads what it is writing.
    """

    def __init__(self, session: onnxruntime.InferenceSession) -> None:
        self._session = session
        self._input: NDArray[np.float32] = np.zeros((1, CONTEXT_SAMPLES + WINDOW_SAMPLES), np.float32)
        self._states = (np.zeros(_STATE_SHAPE, np.float32), np.zeros(_STATE_SHAPE, np.float32))
        self._rate = np.array(_RATE_HZ, np.int64)
        self._output: NDArray[np.float32] = np.zeros((1, 1), np.float32)
        self._bindings = (self._bind(0, 1), self._bind(1, 0))
        self._turn = 0

    @classmethod
    def load(cls, folder: Path) -> SileroVad:
        """Load `silero_vad.onnx` from a built folder. Raises ModelMissing or ModelDamaged."""
        return cls(CpuPlacement(1).open(folder / "silero_vad.onnx").inner)

    def probability(self, window: NDArray[np.float32]) -> float:
        """Probability in [0, 1] that `window`, float32 (512,) at 16 kHz following the last one, holds speech.

        Raises ValueError for another length.
        """
        if window.shape != (WINDOW_SAMPLES,):
            raise ValueError(f"a window has {WINDOW_SAMPLES} samples, not shape {window.shape}")
        row = self._input[0]
        row[CONTEXT_SAMPLES:] = window
        self._session.run_with_iobinding(self._bindings[self._turn])
        self._turn ^= 1
        row[:CONTEXT_SAMPLES] = row[WINDOW_SAMPLES:]
        return float(self._output[0, 0])

    def reset(self) -> None:
        """Forget what was heard: the next window begins a new stream."""
        self._input[:] = 0.0
        self._states[self._turn][:] = 0.0

    def warm_up(self) -> None:
        """Run the graph once in each direction, then forget it."""
        silence = np.zeros(WINDOW_SAMPLES, np.float32)
        self.probability(silence)
        self.probability(silence)
        self.reset()

    def _bind(self, source: int, target: int) -> onnxruntime.IOBinding:
        binding = self._session.io_binding()
        for name, array in (("input", self._input), ("state", self._states[source]), ("sr", self._rate)):
            binding.bind_input(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)
        for name, array in (("output", self._output), ("stateN", self._states[target])):
            binding.bind_output(name, "cpu", 0, array.dtype.type, list(array.shape), array.ctypes.data)
        return binding
