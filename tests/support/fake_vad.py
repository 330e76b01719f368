"""A VAD model that needs no weights."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray


class LoudnessVad:
    """Calls a window speech when it is loud: what an endpointer does with a verdict can be tested without a model."""

    def __init__(self) -> None:
        self.windows = 0

    def probability(self, window: NDArray[np.float32]) -> float:
        self.windows += 1
        return 0.9 if float(np.abs(window).max()) > 0.1 else 0.1

    def reset(self) -> None: ...


class OpenGate:
    """No gate: the VAD model gets every window."""

    def maybe_speech(self, window: NDArray[np.float32]) -> bool:
        """Always True."""
        return True

    def reset(self) -> None:
        """Nothing to forget."""
