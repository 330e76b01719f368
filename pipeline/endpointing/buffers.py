"""Where the samples of a turn live, and where its speech ends."""

from __future__ import annotations

import numpy as np
from numpy.typing import NDArray

Audio = NDArray[np.float32]

STEP_SAMPLES = 128
"""8 ms: the grain at which loudness is kept."""

_ABOVE_NOISE = 3.0
_BELOW_SPEECH = 0.035
_NOISE_STEPS = 25
_PAUSE_STEPS = 16
"""Sound that is followed by 128 ms of quiet is no part of the word that follows."""


class PreRollBuffer:
    """The newest `capacity_samples` of the stream, contiguous, for the pre-roll. One writer, who is also the reader."""

    def __init__(self, capacity_samples: int) -> None:
        self._buffer = np.zeros(4 * capacity_samples, np.float32)
        self._capacity = capacity_samples
        self._filled = 0
        self._end = 0

    def append(self, samples: Audio, end_position: int) -> None:
        """Remember float32 (n,), n <= capacity, whose last sample is the one before `end_position` of the stream."""
        if self._filled + len(samples) > len(self._buffer):
            # Moving once per three capacities keeps the newest samples contiguous at a fraction of a copy per sample.
            self._buffer[: self._capacity] = self._buffer[self._filled - self._capacity : self._filled]
            self._filled = self._capacity
        self._buffer[self._filled : self._filled + len(samples)] = samples
        self._filled += len(samples)
        self._end = end_position

    def since(self, position: int) -> tuple[Audio, int]:
        """The samples from stream `position` on, as far as remembered, and the position of the first of them.

        The view is valid until the next `append`.
        """
        count = max(0, min(self._end - position, self._filled, self._capacity))
        return self._buffer[self._filled - count : self._filled], self._end - count

    def first_loud_sample(self, earliest: int, onset: int) -> int:
        """Stream position in [earliest, onset] from which on, without a pause, sound stands out of what came before.

        The VAD model reports a soft first consonant late or not at all; loudness shows it. Returns `onset` when nothing
        stands out.
        """
        samples, first = self.since(earliest)
        steps = len(samples) // STEP_SAMPLES
        before = (onset - first) // STEP_SAMPLES
        if not 0 < before <= steps:
            return onset
        peaks = np.abs(samples[: steps * STEP_SAMPLES]).reshape(-1, STEP_SAMPLES).max(axis=1)
        noise = float(np.percentile(peaks[:before], 20.0))
        loud = np.flatnonzero(peaks[:before] >= max(_ABOVE_NOISE * noise, _BELOW_SPEECH * float(peaks.max())))
        gaps = np.flatnonzero(np.diff(np.append(loud, before)) > _PAUSE_STEPS)
        joined = loud[gaps[-1] + 1 :] if len(gaps) else loud
        return first + int(joined[0]) * STEP_SAMPLES if len(joined) else onset

    def clear(self) -> None:
        """Forget everything."""
        self._filled = 0


class UtteranceBuffer:
    """All samples of one turn in one preallocated array that only grows. The endpointer alone writes, behind the end.

    What `view()` handed out is never written again, so every later stage may read it without a copy or a lock.
    """

    def __init__(self, capacity_samples: int, first_sample: int) -> None:
        self._samples = np.empty(capacity_samples, np.float32)
        self._peaks = np.empty(capacity_samples // STEP_SAMPLES + 2, np.float32)
        self._length = 0
        self._steps = 0
        self.first_sample = first_sample

    @property
    def end_sample(self) -> int:
        """Stream position just behind the newest sample."""
        return self.first_sample + self._length

    @property
    def room(self) -> int:
        """Samples that may still be appended."""
        return len(self._samples) - self._length

    def append(self, samples: Audio) -> None:
        """Copy float32 (n,) behind the end. Raises ValueError when there is no room."""
        if len(samples) > self.room:
            raise ValueError(f"{len(samples)} samples do not fit, {self.room} do")
        self._samples[self._length : self._length + len(samples)] = samples
        self._length += len(samples)
        steps = self._length // STEP_SAMPLES
        if steps > self._steps:
            fresh = self._samples[self._steps * STEP_SAMPLES : steps * STEP_SAMPLES]
            self._peaks[self._steps : steps] = np.abs(fresh).reshape(-1, STEP_SAMPLES).max(axis=1)
            self._steps = steps

    def view(self) -> Audio:
        """Everything so far: float32 (n,), read-only, no copy."""
        view = self._samples[: self._length]
        view.setflags(write=False)
        return view

    def last_loud_sample(self, earliest: int, usual: int, latest: int) -> int:
        """Stream position behind the last sample in [earliest, latest) that stands out of the noise before the speech.

        The VAD model reports the end of speech up to 160 ms late, and sometimes misses a soft last consonant; loudness
        does neither, but is unreliable in heavy noise. So the model gives the bounds and loudness the place between.
        Returns `usual` when noise hides the end, `earliest` when there is none and all is quiet.
        """
        peaks = self._peaks[: self._steps]
        low = max(0, (earliest - self.first_sample) // STEP_SAMPLES)
        high = min(self._steps, -((self.first_sample - latest) // STEP_SAMPLES))
        if high <= low:
            return min(latest, self.end_sample)
        noise = _ABOVE_NOISE * float(np.median(peaks[: min(_NOISE_STEPS, max(1, low))]))
        quiet = _BELOW_SPEECH * float(peaks.max())
        loud = np.flatnonzero(peaks[low:high] >= max(noise, quiet))
        if not len(loud):
            return usual if noise > quiet else earliest
        return min(self.end_sample, self.first_sample + (low + int(loud[-1]) + 1) * STEP_SAMPLES)
