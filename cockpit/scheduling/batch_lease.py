"""Many texts under one lease: a batch holds its task's lane while it has texts, and each text books its own memory.

The batch asks at each turn whether to yield; what the arbiter decides about one text (evicted, past its time) reaches
that text alone. Another request of the same task, such as a spoken turn, gets the lane at the next turn.
"""

from __future__ import annotations

from collections.abc import Callable
from typing import Protocol

from cockpit.arbiter.requests import Request
from cockpit.scheduling.dispatcher import Dispatcher, Lease, Refused
from cockpit.scheduling.llm_lease import EvictedSessions, SessionDrafts, TaskLane
from models.engines.llm.session import DEFAULT_CHUNK, LmSession

_REPORT_TOKENS = 16
"""Tokens of one text between two reports to the arbiter."""


class Member(Protocol):
    """One text of a batch, as the arbiter knows it."""

    def report(self, new_tokens: int) -> str:
        """After each turn. Returns why the text must stop; empty: it goes on."""
        ...

    def grow(self) -> bool:
        """Book what the session expects now. False while there is no room."""
        ...

    def leave(self) -> None:
        """The text is over: its memory may be evicted."""
        ...


class BatchLane(Protocol):
    """Where a batch of one task runs. One thread uses it.

    stopped: why the lane was lost, or not given. chunk_tokens, draft_tokens: what the policy wants now.
    wanted: somebody is to have the lane at the next boundary.
    """

    stopped: str

    @property
    def wanted(self) -> bool: ...

    @property
    def chunk_tokens(self) -> int: ...
    @property
    def draft_tokens(self) -> int: ...

    def wait(self, give_up: Callable[[], bool]) -> bool:
        """Wait for the task's turn; `give_up` is asked a few times a second. False: `stopped` says why not."""
        ...

    def boundary(self, new_tokens: int) -> bool:
        """After each turn; at most a token that was queued before the lane was wanted is not finished. May park. False:
        `stopped` says why the batch must end.
        """
        ...

    def give_back(self) -> None:
        """Free the lane. Safe to call twice."""
        ...

    def join(self, session: LmSession, arrived_ns: int) -> Member | None:
        """Book the memory that `session` expects, evicting idle texts. None while there is no room; Raises Refused when
        there never will be. What the session had cached is forgotten if it was evicted meanwhile.
        """
        ...

    @property
    def room_bytes(self) -> int | None:
        """KV memory that all texts may hold; None: no limit is known."""
        ...

    @property
    def timeout_ns(self) -> int | None:
        """How long after its arrival a request of the task may take; None: no limit."""
        ...


class _Alone:
    """A member where nothing is shared out."""

    def report(self, new_tokens: int) -> str:
        return ""

    def grow(self) -> bool:
        return True

    def leave(self) -> None:
        return None


class UnsharedLane:
    """The model has the device to itself: see BatchLane."""

    stopped = ""
    wanted = False
    chunk_tokens = DEFAULT_CHUNK
    draft_tokens = 0
    room_bytes: int | None = None
    timeout_ns: int | None = None

    def wait(self, give_up: Callable[[], bool]) -> bool:
        return True

    def boundary(self, new_tokens: int) -> bool:
        return True

    def give_back(self) -> None:
        return None

    def join(self, session: LmSession, arrived_ns: int) -> Member:
        return _Alone()


class BatchLease(Lease):
    """A lane of the arbiter for the texts of one task: see BatchLane."""

    __slots__ = ("_evicted", "_lane", "_task_index", "dispatcher", "task")

    def __init__(self, dispatcher: Dispatcher, task: str, lane: TaskLane, evicted: EvictedSessions) -> None:
        super().__init__(dispatcher, task)
        self.task = task
        self.dispatcher = dispatcher
        self._task_index = dispatcher.arbiter.task_index[task]
        self._lane = lane
        self._evicted = evicted

    @property
    def wanted(self) -> bool:
        """See BatchLane."""
        return self.gate.closed

    @property
    def chunk_tokens(self) -> int:
        return self.prefill_chunk_tokens

    @property
    def room_bytes(self) -> int | None:
        return self.dispatcher.room_bytes(self._task_index)

    @property
    def timeout_ns(self) -> int:
        return self.dispatcher.arbiter.tasks[self._task_index].timeout_ns

    def wait(self, give_up: Callable[[], bool]) -> bool:
        """See BatchLane."""
        try:
            self.take(judged=False, batch=True, give_up=give_up, redoes=True)
        except Refused as error:
            self.stopped = str(error)
            return False
        self._lane.enter(self.lane, self.task)
        return True

    def report(self) -> bool:
        """See Lease. The lane may have changed while it was parked."""
        self._lane.step_aside()
        if super().report():
            self._lane.enter(self.lane, self.task)
            return True
        return False

    def give_back(self) -> None:
        self._lane.leave()
        super().give_back()

    def join(self, session: LmSession, arrived_ns: int) -> BatchMember | None:
        """See BatchLane."""
        if self._evicted.take(session.name):
            session.forget()
        request = self.dispatcher.join(self._task_index, session.name, session.kv_bytes, arrived_ns)
        return None if request is None else BatchMember(self, session, request)

    def forget_if_evicted(self, session: LmSession) -> None:
        if self._evicted.take(session.name):
            session.forget()


class BatchMember:
    """See Member."""

    def __init__(self, lease: BatchLease, session: LmSession, request: Request) -> None:
        self._lease = lease
        self._session = session
        self._request = request
        self._tokens = 0
        self._drafts = SessionDrafts(lease.dispatcher, lease.task, session)

    def report(self, new_tokens: int) -> str:
        """The arbiter is asked at each turn up to the first token, because a prompt may outlast its timeout; then now
        and then, and when it wants to be.
        """
        self._tokens += new_tokens
        if self._request.first_token_ns and not (self._tokens >= _REPORT_TOKENS or self._lease.gate.closed):
            return ""
        reason = self._lease.dispatcher.report_member(self._request, self._tokens)
        self._tokens = 0
        self._drafts.tell()
        return reason

    def grow(self) -> bool:
        return self._lease.dispatcher.grow(self._request, self._session.kv_bytes)

    def leave(self) -> None:
        if self._tokens:
            self._lease.dispatcher.report_member(self._request, self._tokens)
        self._drafts.tell()
        self._lease.dispatcher.leave(self._request)
        self._lease.forget_if_evicted(self._session)
