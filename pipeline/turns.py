"""Turn ids, generations and what was heard of a reply. Cancelling is by generation number only; nothing is cleared."""

from __future__ import annotations

import itertools
import threading
from collections import deque
from dataclasses import dataclass


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


@dataclass(frozen=True, slots=True)
class Heard:
    """The part of one reply that reached the ear."""

    turn_id: int
    generation: int
    text: str
    complete: bool
    """False when barge-in cut the reply: `text` then ends with the last clause that began to sound."""


class HeardLog:
    """The newest replies as they were heard, oldest first: only this may enter the dialogue history. Bounded."""

    def __init__(self, capacity: int = 64) -> None:
        """Raises ValueError for a capacity below 1."""
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._entries: deque[Heard] = deque(maxlen=capacity)
        self._lock = threading.Lock()

    def add(self, heard: Heard) -> None:
        """Record one reply, or replace what was recorded for the same turn and generation."""
        with self._lock:
            if self._entries and self._same_reply(self._entries[-1], heard):
                self._entries.pop()
            self._entries.append(heard)

    def entries(self) -> tuple[Heard, ...]:
        """What is remembered, oldest first."""
        with self._lock:
            return tuple(self._entries)

    @staticmethod
    def _same_reply(left: Heard, right: Heard) -> bool:
        return (left.turn_id, left.generation) == (right.turn_id, right.generation)
