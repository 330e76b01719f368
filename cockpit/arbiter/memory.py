"""KV memory of sessions: booked when a request starts, kept while its session lives, taken back by eviction."""

from __future__ import annotations

from collections.abc import Callable

from cockpit.arbiter.budget import KvLedger
from cockpit.arbiter.config import ArbiterConfig
from cockpit.arbiter.eviction import EvictionTable, SessionRecord
from cockpit.arbiter.requests import EVICTED, DecisionLog, Request

MAX_PRIORITY = 10
OnEvict = Callable[[str, str], None]
"""Called with (session, task) when a session must give up its memory; runs under the caller's lock: only note it."""


def announce_nothing(_session: str, _task: str) -> None:
    """For arbiters whose engines hold no memory per session."""


class SessionMemory:
    """The ledger and the eviction order together: their sums always agree. Not thread-safe: the arbiter owns it."""

    __slots__ = ("_log", "_names", "_on_evict", "_priorities", "evictions", "ledger", "table")

    def __init__(
        self, config: ArbiterConfig, arena_bytes: int, page_bytes: int, log: DecisionLog, on_evict: OnEvict
    ) -> None:
        self.ledger = KvLedger(arena_bytes, page_bytes, [t.memory_budget_mb << 20 for t in config.tasks.values()])
        self.table = EvictionTable(config.eviction)
        self.evictions = 0
        self._priorities = tuple(task.priority for task in config.tasks.values())
        self._names = tuple(config.tasks)
        self._log = log
        self._on_evict = on_evict

    def hold(self, request: Request, keep_ratio: float, now_ns: int) -> bool:
        """Make room for the request's session and pin it. False when only running requests could make room.

        keep_ratio: share of the KV pairs that the policy's arm keeps.
        """
        name = request.session
        if name is None or request.degraded:
            return True  # a released request kept its memory and its pin
        session = self.table.sessions.get(name)
        task = request.owner if session is None else session.task  # whoever uses it: it stays in one budget
        asked = int(request.kv_bytes * keep_ratio)
        held = session.bytes if session is not None else 0
        more = max(0, self.ledger.paged(asked) - held)
        if more:
            if session is not None:
                session.pins += 1  # never its own victim
            fits = self._make_room(task, more, self._priorities[request.task], now_ns)
            if session is not None:
                session.pins -= 1
            if not fits:
                return False
        session = self.table.touch(name, task, self._priorities[task], now_ns)
        if more:
            self.ledger.add(task, more, asked - session.asked)
            session.bytes += more
            session.asked = asked
        session.pins += 1
        return True

    def _make_room(self, task: int, more_bytes: int, priority: int, now_ns: int) -> bool:
        """Evict until it fits: from the task itself while it is over its budget, else from those up to `priority`."""
        ledger = self.ledger
        while True:
            if ledger.held[task] + more_bytes > ledger.budgets[task]:
                only = task
            elif ledger.total_held + more_bytes > ledger.arena_bytes:
                only = -1
            else:
                return True
            pressure = (ledger.total_held + more_bytes) / ledger.arena_bytes
            session = self.table.victim(now_ns, pressure, only, priority)
            if session is None:
                return False
            self._drop(session, now_ns)

    def _drop(self, session: SessionRecord, now_ns: int) -> None:
        self.ledger.add(session.task, -session.bytes, -session.asked)
        self.table.remove(session)
        self.evictions += 1
        self._log.note(now_ns, session.task, EVICTED)
        self._on_evict(session.name, self._names[session.task])

    def let_go(self, request: Request, now_ns: int) -> None:
        """The request ended: its session may be evicted again, and goes now if an operator asked for that."""
        if request.session is None:
            return
        session = self.table.sessions.get(request.session)
        if session is None:
            return
        session.pins -= 1
        if session.doomed and session.pins == 0:
            self._drop(session, now_ns)

    def relieve(self, excess_bytes: int, now_ns: int) -> int:
        """Evict idle sessions, whoever's, in their order until `excess_bytes` are freed. Returns how many went."""
        gone = 0
        while excess_bytes > 0:
            session = self.table.victim(now_ns, 1.0, -1, MAX_PRIORITY)
            if session is None:
                break
            excess_bytes -= session.bytes
            self._drop(session, now_ns)
            gone += 1
        return gone

    def age_out(self, now_ns: int) -> None:
        """Drop what is past the age limit while memory is short (hybrid only)."""
        while (session := self.table.aged(now_ns, self.ledger.pressure)) is not None:
            self._drop(session, now_ns)

    def evict(self, name: str, now_ns: int) -> str:
        """ "evicted", "at its next boundary" while a request runs on it, or "unknown"."""
        session = self.table.sessions.get(name)
        if session is None:
            return "unknown"
        if session.pins:
            session.doomed = True
            return "at its next boundary"
        self._drop(session, now_ns)
        return "evicted"

    def check(self) -> None:
        """The sums agree and no budget is broken. Raises AssertionError."""
        sessions = self.table.sessions.values()
        assert self.ledger.total_held == sum(session.bytes for session in sessions) <= self.ledger.arena_bytes
        for task, budget in enumerate(self.ledger.budgets):
            held = sum(session.bytes for session in sessions if session.task == task)
            assert held == self.ledger.held[task] <= budget
