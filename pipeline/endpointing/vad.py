"""Is this window speech? A cheap gate in front of a model, with hysteresis."""

from __future__ import annotations

from typing import Protocol

import numpy as np
from numpy.typing import NDArray

Audio = NDArray[np.float32]

WINDOW_SAMPLES = 512
_BACKLOG_WINDOWS = 8


class Gate(Protocol):
    """The cheap detector that decides whether the model need run."""

    def maybe_speech(self, window: Audio) -> bool:
        """window: float32 (512,) at 16 kHz, each following the last."""
        ...

    def reset(self) -> None:
        """A new stream begins."""
        ...


class VadModel(Protocol):
    """The model that decides whether a window is speech."""

    def probability(self, window: Audio) -> float:
        """window: float32 (512,) at 16 kHz. Returns the probability of speech in [0, 1]."""
        ...

    def reset(self) -> None:
        """The next window does not follow the last one."""
        ...


class VoiceDetector:
    """Decides per window. The VAD model runs only while the gate has said "maybe" lately or the caller asks.

    When it starts to run it is first given the windows just before, so that its state holds the noise and the onset.
    Counts `windows` and `model_runs` (backlog included).
    """

    def __init__(self, gate: Gate, model: VadModel, *, onset: float, offset: float, hold_windows: int) -> None:
        """Speech begins at probability `onset` and ends below `offset`."""
        self.windows = 0
        self.model_runs = 0
        self._gate = gate
        self._model = model
        self._onset = onset
        self._offset = offset
        self._hold_windows = hold_windows
        self._hold = 0
        self._awake = False
        self._speech = False
        self._backlog: Audio = np.zeros((_BACKLOG_WINDOWS, WINDOW_SAMPLES), np.float32)

    def is_speech(self, window: Audio, *, listen: bool, onset: float | None = None) -> bool:
        """window: float32 (512,) at 16 kHz following the last. listen: run the model whatever the gate says. onset: in
        place of the usual one.
        """
        if self._gate.maybe_speech(window):
            self._hold = self._hold_windows
        else:
            self._hold -= self._hold > 0
        if listen or self._hold:
            if not self._awake:
                self._wake()
            probability = self._ask(window)
            self._speech = probability >= (self._offset if self._speech else onset or self._onset)
        else:
            self._awake = False
            self._speech = False
        self._backlog[self.windows % _BACKLOG_WINDOWS] = window
        self.windows += 1
        return self._speech

    def reset(self) -> None:
        """A new stream begins."""
        self._gate.reset()
        self._model.reset()
        self._hold = 0
        self._awake = False
        self._speech = False
        self._backlog[:] = 0.0

    def _wake(self) -> None:
        self._awake = True
        self._model.reset()
        for age in range(_BACKLOG_WINDOWS):
            self._ask(self._backlog[(self.windows + age) % _BACKLOG_WINDOWS])

    def _ask(self, window: Audio) -> float:
        self.model_runs += 1
        return self._model.probability(window)
