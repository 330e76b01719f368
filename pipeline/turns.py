"""Turn ids and generations. Cancelling is by generation number only; nothing is cleared."""

from __future__ import annotations

import itertools
import threading


class Generations:
    """The one counter that barge-in bumps. A message of an older generation is stale: every stage drops it."""

    def __init__(self) -> None:
        self._current = 0
        self._lock = threading.Lock()

    @property
    def current(self) -> int:
        """The generation that new messages carry. Read without a lock: an int is replaced as a whole."""
        return self._current

    def bump(self) -> int:
        """Make everything sent so far stale; returns the new generation."""
        with self._lock:
            self._current += 1
            return self._current

    def advance_to(self, generation: int) -> bool:
        """Make everything before `generation` stale; False when it is already."""
        with self._lock:
            ahead = generation > self._current
            self._current = max(self._current, generation)
            return ahead

    def is_stale(self, generation: int) -> bool:
        """True when a message of `generation` must be dropped."""
        return generation < self._current


class TurnIds:
    """Hands out turn ids, 1, 2, 3, ... to whoever opens a turn (endpointer or typed text). Thread-safe."""

    def __init__(self) -> None:
        self._ids = itertools.count(1)

    def next(self) -> int:
        """A turn id never handed out before in this process (`itertools.count` steps under the interpreter lock)."""
        return next(self._ids)
