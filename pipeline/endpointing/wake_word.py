"""The wake-word stage: nothing passes until the word was heard, and then nothing that followed it is lost.

Frames go in one by one and come out unchanged, late ones first: the last `pre_roll` before the decision, so that wake
word and command spoken without a pause arrive whole.
"""

from __future__ import annotations

from collections import deque
from collections.abc import Callable
from dataclasses import dataclass, replace
from typing import Protocol

import numpy as np

from models.engines.base import Audio
from pipeline.frames import SAMPLE_RATE_HZ, AudioFrame


class WakeDetector(Protocol):
    """What the stage expects of a detector (models/engines/wake/microwakeword.py, openwakeword.py)."""

    chunk_samples: int
    buffer_samples: int
    threshold: float
    """Probability from which its makers count the word as heard."""

    def probability(self, samples: Audio) -> float:
        """samples: float32 (chunk_samples,). Highest probability since the last call, 0 to 1."""
        ...

    def reset(self) -> None: ...


@dataclass(frozen=True, slots=True)
class WakeConfig:
    """threshold: probability from which the word counts, None for the detector's own.

    patience: chunks in a row above it (one click is no word). refractory_ms: no further decision for so long after one.
    pre_roll_ms: audio before the decision that is passed on; the detector decides up to 300 ms after the word's end.
    awake_ms: without speech for so long, back to sleep.
    """

    threshold: float | None = None
    patience: int = 1
    pre_roll_ms: int = 600
    refractory_ms: int = 2_000
    awake_ms: int = 8_000

    def samples(self, milliseconds: int) -> int:
        return milliseconds * SAMPLE_RATE_HZ // 1000


@dataclass(slots=True)
class WakeCounters:
    """Since start. masked: decisions ignored because the detector's buffer was not full or the word just heard."""

    wakes: int = 0
    masked: int = 0
    frames_held: int = 0
    frames_passed: int = 0


class WakeGate:
    """Passes frames while awake. One thread owns it; `stay_awake` may be called from any.

    on_wake: called once per wake-up, before the first frame comes out (the arbiter warms its tasks up there).
    """

    def __init__(
        self, detector: WakeDetector, config: WakeConfig, on_wake: Callable[[int], None] = lambda _sample: None
    ) -> None:
        self.counters = WakeCounters()
        self.awake = False
        self._woken_by_hand = False
        self._detector = detector
        self._config = config
        self._on_wake = on_wake
        self._threshold = detector.threshold if config.threshold is None else config.threshold
        self._held: deque[AudioFrame] = deque()
        self._held_samples = 0
        self._pending: Audio = np.zeros(0, np.float32)
        self._heard = 0
        self._in_a_row = 0
        self._refractory_until = 0
        self._asleep_at = 0
        self._position = 0

    def push(self, frame: AudioFrame) -> list[AudioFrame]:
        """Take the next frame; the frames that pass now, in order. The end of the stream always passes."""
        start = frame.first_sample
        if start < self._position:
            self.awake = False  # another stream: nobody has woken it yet
            self._asleep_at = 0
        if start != self._position and self._heard:
            self._restart()
        self._position = start + len(frame.samples)
        found = self._listen(frame.samples if frame.for_detection is None else frame.for_detection)
        if self._woken_by_hand:
            self._woken_by_hand, found = False, True
            self._held.clear()
            self._held_samples = 0
        if self.awake:
            if found or frame.end_of_stream:
                self._asleep_at = max(self._asleep_at, self._position + self._config.samples(self._config.awake_ms))
            if self._position > self._asleep_at and not frame.end_of_stream:
                self.awake = False
            else:
                self.counters.frames_passed += 1
                return [frame]
        if not found:
            return self._hold(frame)
        return self._wake(frame)

    def wake(self) -> None:
        """As if the word had been heard, with the next frame; nothing of what was said before passes. Any thread."""
        self._woken_by_hand = True

    def stay_awake(self, until_sample: int) -> None:
        """Somebody speaks or a turn goes on: do not sleep before this position of the stream plus `awake_ms`."""
        self._asleep_at = max(self._asleep_at, until_sample + self._config.samples(self._config.awake_ms))

    def _wake(self, frame: AudioFrame) -> list[AudioFrame]:
        self.awake = True
        self.counters.wakes += 1
        self._asleep_at = self._position + self._config.samples(self._config.awake_ms)
        self._on_wake(self._position)
        passed = [*self._held, frame]
        self._held.clear()
        self._held_samples = 0
        self.counters.frames_passed += len(passed)
        return passed

    def _hold(self, frame: AudioFrame) -> list[AudioFrame]:
        self._held.append(frame)
        self._held_samples += len(frame.samples)
        room = self._config.samples(self._config.pre_roll_ms)
        # One frame more than fits stays: the pre-roll is never shorter than asked for.
        while self._held and self._held_samples - len(self._held[0].samples) >= room:
            self._held_samples -= len(self._held.popleft().samples)
        self.counters.frames_held += 1
        if frame.end_of_stream:
            return [replace(frame, samples=frame.samples[:0], for_detection=None, first_sample=self._position)]
        return []

    def _listen(self, samples: Audio) -> bool:
        """Feed the detector in chunks of its own size; True when the word was decided on in these samples."""
        chunk = self._detector.chunk_samples
        self._pending = np.concatenate([self._pending, samples])
        found = False
        while len(self._pending) >= chunk:
            probability = self._detector.probability(self._pending[:chunk])
            self._pending = self._pending[chunk:]
            self._heard += chunk
            found |= self._decide(probability)
        return found

    def _decide(self, probability: float) -> bool:
        if probability < self._threshold:
            self._in_a_row = 0
            return False
        self._in_a_row += 1
        if self._in_a_row < self._config.patience:
            return False
        if self._heard < self._detector.buffer_samples or self._heard < self._refractory_until:
            self.counters.masked += 1
            return False
        self._refractory_until = self._heard + self._config.samples(self._config.refractory_ms)
        return True

    def _restart(self) -> None:
        """The stream has a gap: what the detector remembers does not adjoin what comes."""
        self._detector.reset()
        self._pending = np.zeros(0, np.float32)
        self._heard = 0
        self._in_a_row = 0
        self._refractory_until = 0
        self._held.clear()
        self._held_samples = 0
