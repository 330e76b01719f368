"""The cheap gate before the VAD model: WebRTC's voice detector, a few microseconds per 10 ms."""

from __future__ import annotations

import importlib
from collections.abc import Callable
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import StartupError

_RATE_HZ = 16_000
_STEP_SAMPLES = 160
"""10 ms, the shortest piece the detector takes."""


class WebRtcGate:
    """Says "maybe speech" per window. Not thread-safe: one stage owns it. Its own noise estimate follows the stream."""

    def __init__(self, vad_class: Callable[[int], Any], aggressiveness: int) -> None:
        self._vad_class = vad_class
        self._aggressiveness = aggressiveness
        self._vad = vad_class(aggressiveness)
        self._pending: NDArray[np.int16] = np.zeros(0, np.int16)

    @classmethod
    def load(cls, aggressiveness: int = 1) -> WebRtcGate:
        """aggressiveness: 0 (lets most through) to 3. Raises ValueError, and StartupError without the module."""
        if aggressiveness not in range(4):
            raise ValueError(f"aggressiveness must be 0 to 3, not {aggressiveness}")
        try:
            module = importlib.import_module("webrtcvad")
        except ImportError as error:
            raise StartupError("webrtcvad is not installed; run: pip install webrtcvad-wheels") from error
        return cls(module.Vad, aggressiveness)

    def maybe_speech(self, window: NDArray[np.float32]) -> bool:
        """True when any whole 10 ms up to the end of `window`, float32 (n,) in [-1, 1] at 16 kHz, sounds like speech.

        What does not fill 10 ms is looked at with the next window.
        """
        pcm = np.concatenate([self._pending, (window * 32767.0).astype(np.int16)])
        whole = len(pcm) - len(pcm) % _STEP_SAMPLES
        self._pending = pcm[whole:]
        speech = False
        for start in range(0, whole, _STEP_SAMPLES):
            # Every piece is looked at, even after a hit: the detector's noise estimate must hear the whole stream.
            speech |= self._vad.is_speech(pcm[start : start + _STEP_SAMPLES].tobytes(), _RATE_HZ)
        return speech

    def reset(self) -> None:
        """Forget what was heard."""
        self._vad = self._vad_class(self._aggressiveness)
        self._pending = np.zeros(0, np.int16)
