"""The bounded channel between two stages. Messages pass by reference; nothing is copied or serialised."""

from __future__ import annotations

import threading
import time
from collections import deque
from dataclasses import dataclass
from typing import Generic, Literal, TypeVar

T = TypeVar("T")
Policy = Literal["block", "drop_oldest", "drop_newest"]
POLICIES: tuple[Policy, ...] = ("block", "drop_oldest", "drop_newest")


class Closed(Exception):
    """The channel is closed and, for a reader, empty. Not a fault: it is how a stage learns that its work is over."""


@dataclass(frozen=True, slots=True)
class ChannelCounts:
    """What went through a channel so far. `high_water`: the most messages that ever waited at once."""

    put: int
    got: int
    dropped: int
    high_water: int


class Channel(Generic[T]):
    """A bounded first-in first-out queue with a stated answer to being full. Thread-safe on both sides.

    policy: "block" makes the writer wait, "drop_oldest" forgets the message that waited longest, "drop_newest" the one
    that is being put. Every drop is counted.
    """

    def __init__(self, name: str, capacity: int, policy: Policy = "block") -> None:
        """Raises ValueError for a capacity below 1 or an unknown policy."""
        if capacity < 1:
            raise ValueError(f"channel {name}: capacity must be at least 1, not {capacity}")
        if policy not in POLICIES:
            raise ValueError(f"channel {name}: unknown policy {policy!r} (known: {', '.join(POLICIES)})")
        self.name = name
        self.capacity = capacity
        self.policy = policy
        self._items: deque[T] = deque()
        self._lock = threading.Lock()
        self._filled = threading.Condition(self._lock)
        self._emptied = threading.Condition(self._lock)
        self._closed = False
        self._put = self._got = self._dropped = self._high_water = 0

    def put(self, item: T, timeout_s: float | None = None) -> bool:
        """Hand over `item`. Returns False when a message was dropped for it (or it was dropped itself).

        With policy "block" waits for room, at most `timeout_s` (None: for ever). Raises Closed, and TimeoutError.
        """
        with self._lock:
            if self._closed:
                raise Closed(self.name)
            kept = True
            if len(self._items) >= self.capacity:
                if self.policy == "block":
                    self._wait_for_room(timeout_s)
                elif self.policy == "drop_newest":
                    self._dropped += 1
                    return False
                else:
                    self._items.popleft()
                    self._dropped += 1
                    kept = False
            self._items.append(item)
            self._put += 1
            self._high_water = max(self._high_water, len(self._items))
            self._filled.notify()
            return kept

    def get(self, timeout_s: float | None = None) -> T:
        """Take the message that waited longest. Waits at most `timeout_s` (None: for ever).

        What was put before `close()` is still handed out. Raises Closed when closed and empty, and TimeoutError.
        """
        with self._lock:
            if not self._items:
                self._wait_for_item(timeout_s)
            item = self._items.popleft()
            self._got += 1
            self._emptied.notify()
            return item

    def drain(self) -> list[T]:
        """Take everything that waits now, oldest first, without waiting."""
        with self._lock:
            items = list(self._items)
            self._items.clear()
            self._got += len(items)
            self._emptied.notify_all()
            return items

    def close(self) -> None:
        """No more may be put; readers get what is left and then Closed. May be called more than once."""
        with self._lock:
            self._closed = True
            self._filled.notify_all()
            self._emptied.notify_all()

    @property
    def closed(self) -> bool:
        """True once `close()` was called, even while messages are left."""
        return self._closed

    @property
    def counts(self) -> ChannelCounts:
        """A consistent snapshot. What "drop_newest" refused counts as dropped and not as put."""
        with self._lock:
            return ChannelCounts(self._put, self._got, self._dropped, self._high_water)

    def __len__(self) -> int:
        """Messages waiting now."""
        return len(self._items)

    def _wait_for_room(self, timeout_s: float | None) -> None:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while len(self._items) >= self.capacity:
            if not self._emptied.wait(None if deadline_s is None else deadline_s - time.monotonic()):
                raise TimeoutError(f"channel {self.name} stayed full for {timeout_s} s")
            if self._closed:
                raise Closed(self.name)

    def _wait_for_item(self, timeout_s: float | None) -> None:
        deadline_s = None if timeout_s is None else time.monotonic() + timeout_s
        while not self._items:
            if self._closed:
                raise Closed(self.name)
            if not self._filled.wait(None if deadline_s is None else deadline_s - time.monotonic()):
                raise TimeoutError(f"nothing came through channel {self.name} for {timeout_s} s")
