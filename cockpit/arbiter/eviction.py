"""Whose KV memory goes first: LRU-K, or LRU-K with an age limit that bites once memory is short.

Keys only grow as a session is used, so the heap holds one entry per session and is corrected when it surfaces.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass

from cockpit.arbiter.config import EvictionPolicy

_FULL_HISTORY = 1 << 64
"""Added to the key of a session used K times or more: those with fewer uses go first (LRU-K's infinite distance)."""


@dataclass(frozen=True, slots=True)
class EvictionCandidate:
    """One session as an eviction candidate. rank 0 goes first. `age_s` counts from the session's first use."""

    session: str
    task: str
    bytes: int
    age_s: float
    idle_s: float
    uses: int
    rank: int
    reason: str
    running: bool


class SessionRecord:
    """KV memory held by one conversation.

    bytes: in whole pages; asked: before rounding. recent_ns: ring of the last K uses. pins: requests that run on it.
    doomed: an operator evicted it while a request ran; it goes when that request ends.
    """

    __slots__ = (
        "asked",
        "born_ns",
        "bytes",
        "doomed",
        "key",
        "last_ns",
        "name",
        "pins",
        "priority",
        "recent_ns",
        "serial",
        "task",
        "uses",
    )

    def __init__(self, k: int) -> None:
        self.name = ""
        self.task = 0
        self.priority = 0
        self.bytes = 0
        self.asked = 0
        self.born_ns = 0
        self.last_ns = 0
        self.uses = 0
        self.pins = 0
        self.doomed = False
        self.recent_ns = [0] * k
        self.key = 0
        self.serial = 0


def _may_go(session: SessionRecord, only_task: int, max_priority: int) -> bool:
    return session.task == only_task if only_task >= 0 else session.priority <= max_priority


class EvictionTable:
    """Sessions in birth order with an LRU-K heap beside. Not thread-safe: the arbiter owns it."""

    __slots__ = ("_age_ns", "_heap", "_hybrid", "_k", "_serial", "_spare", "_threshold", "sessions")

    def __init__(self, policy: EvictionPolicy) -> None:
        self._k = policy.lru_k
        self._hybrid = policy.type == "hybrid"
        self._age_ns = int(policy.age_threshold_seconds * 1e9)
        self._threshold = policy.memory_pressure_threshold
        self._heap: list[tuple[int, int, SessionRecord]] = []
        self._serial = 0
        self._spare: list[SessionRecord] = []
        self.sessions: dict[str, SessionRecord] = {}

    def touch(self, name: str, task: int, priority: int, now_ns: int) -> SessionRecord:
        """Note a use at `now_ns` and return the session, made on its first use."""
        session = self.sessions.get(name)
        if session is None:
            session = self._spare.pop() if self._spare else SessionRecord(self._k)
            session.name = name
            session.task = task
            session.priority = priority
            session.born_ns = now_ns
            session.uses = 0
            self._serial += 1
            session.serial = self._serial
            self.sessions[name] = session
            heapq.heappush(self._heap, (now_ns, self._serial, session))
        ring = session.recent_ns
        index = session.uses % self._k
        ring[index] = now_ns
        session.uses += 1
        session.last_ns = now_ns
        session.key = now_ns if session.uses < self._k else _FULL_HISTORY + ring[(index + 1) % self._k]
        return session

    def remove(self, session: SessionRecord) -> None:
        """Forget a session; its heap entry is dropped when it surfaces, or at once when dead entries prevail."""
        del self.sessions[session.name]
        session.bytes = 0
        session.asked = 0
        session.pins = 0
        session.doomed = False
        session.serial = 0
        self._spare.append(session)
        if len(self._heap) > 2 * len(self.sessions) + 16:
            self._heap = [entry for entry in self._heap if entry[1] == entry[2].serial]
            heapq.heapify(self._heap)

    def victim(self, now_ns: int, pressure: float, only_task: int, max_priority: int) -> SessionRecord | None:
        """The next session to drop; None when all that may go are in use.

        pressure: share of memory in use, 0 to 1. only_task: take from this task alone (-1: from any whose priority is
        at most max_priority). A session with a request on it is never returned.
        """
        if self._hybrid and pressure >= self._threshold:
            oldest_ns = now_ns - self._age_ns
            for session in self.sessions.values():  # birth order: the first young one ends the search
                if session.born_ns > oldest_ns:
                    break
                if session.pins == 0 and _may_go(session, only_task, max_priority):
                    return session
        return self._by_rank(only_task, max_priority)

    def aged(self, now_ns: int, pressure: float) -> SessionRecord | None:
        """An idle session past the age limit while memory is short (hybrid only): it goes whatever its rank."""
        if not self._hybrid or pressure < self._threshold:
            return None
        for session in self.sessions.values():  # birth order: the first young one ends the search
            if now_ns - session.born_ns < self._age_ns:
                return None
            if session.pins == 0:
                return session
        return None

    def _by_rank(self, only_task: int, max_priority: int) -> SessionRecord | None:
        heap = self._heap
        kept: list[tuple[int, int, SessionRecord]] | None = None
        found: SessionRecord | None = None
        while heap:
            entry = heap[0]
            session = entry[2]
            if entry[1] != session.serial:
                heapq.heappop(heap)
            elif session.key != entry[0]:
                heapq.heapreplace(heap, (session.key, entry[1], session))
            elif session.pins == 0 and _may_go(session, only_task, max_priority):
                found = session
                break
            else:
                kept = kept or []
                kept.append(heapq.heappop(heap))
        for entry in kept or ():
            heapq.heappush(heap, entry)
        return found

    def candidates(self, now_ns: int, pressure: float, task_names: tuple[str, ...]) -> tuple[EvictionCandidate, ...]:
        """All sessions in the order they would go, with the reason. For people: not on the hot path."""
        short = self._hybrid and pressure >= self._threshold

        def order(session: SessionRecord) -> tuple[bool, int, int]:
            old = short and now_ns - session.born_ns >= self._age_ns
            return (not old, session.born_ns if old else session.key, session.born_ns)

        ranked = sorted(self.sessions.values(), key=order)
        return tuple(
            EvictionCandidate(
                session.name,
                task_names[session.task],
                session.bytes,
                (now_ns - session.born_ns) / 1e9,
                (now_ns - session.last_ns) / 1e9,
                session.uses,
                rank,
                self._reason(session, now_ns, pressure),
                session.pins > 0,
            )
            for rank, session in enumerate(ranked)
        )

    def _reason(self, session: SessionRecord, now_ns: int, pressure: float) -> str:
        age_s = (now_ns - session.born_ns) / 1e9
        if self._hybrid and pressure >= self._threshold and age_s * 1e9 >= self._age_ns:
            return (
                f"age {age_s:.0f} s is past age_threshold_seconds {self._age_ns / 1e9:.0f} "
                f"while memory pressure {pressure:.2f} is past {self._threshold:.2f}"
            )
        if session.uses < self._k:
            return f"used {session.uses} times, fewer than K = {self._k}: by last use, before fuller histories"
        kth_s = (now_ns - (session.key - _FULL_HISTORY)) / 1e9
        return f"its use number {self._k} from the last was {kth_s:.0f} s ago"
