"""The understanding stage's model steps as a task of the arbiter: a lane asked for when a step comes, given back after.

    with work.block(give_up):            # one transcript
        for piece in chat(sharer=work): ...
    if work.stopped: ...                 # why the model was cut short

Words that leave one meaning need no model step, so they never wait for a lane. A lease books the KV memory of the
session it is for; what the arbiter evicts is noted, and forgotten by the thread that owns the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, ExitStack, contextmanager, nullcontext
from typing import Protocol

from cockpit.device.base import Device
from cockpit.scheduling.dispatcher import Dispatcher, Lease, Refused
from models.engines.llm.session import LmSession
from pipeline.dialogue import llm_steps as steps


class Evicted:
    """Sessions whose memory the arbiter took, by name, until their owners have forgotten what they cached."""

    def __init__(self) -> None:
        self._names: set[str] = set()

    def note(self, session: str, _task: str) -> None:
        """For the arbiter, under its lock."""
        self._names.add(session)

    def take(self, session: str) -> bool:
        """True once after each eviction. For the thread that owns the session."""
        if session not in self._names:
            return False
        self._names.discard(session)
        return True


class ModelWork(steps.Sharer, Protocol):
    """What the understanding stage tells whoever shares out the device. One thread uses it."""

    stopped: str
    """Why the model had to stop in the last block; empty while it may go on."""

    def block(self, give_up: Callable[[], bool]) -> AbstractContextManager[None]:
        """Around everything that may run the model for one transcript. `give_up`: asked while waiting for a lane."""
        ...

    def on(self, session: LmSession, *, ahead: bool = False) -> steps.Steps:
        """See Sharer. The steps set `stopped` instead of raising."""
        ...

    def beat(self) -> None:
        """Now and then while nothing happens."""
        ...


class Unshared(steps.Unshared):
    """Nobody else uses the device: nothing waits, nothing stops."""

    stopped = ""

    def block(self, give_up: Callable[[], bool]) -> AbstractContextManager[None]:
        return nullcontext()

    def beat(self) -> None:
        return None


def anywhere(_lane: str) -> None:
    """For models that run wherever their thread does."""


class LaneLlmScheduler:
    """Runs under leases of one task.

    evicted: what the arbiter's `on_evict` notes. bind: whether the thread is bound to its lane. ran: called after each
    lease. housekeeping: where no other thread does it. on_lane: told the lane's name before the model runs there.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        device: Device,
        task: str,
        evicted: Evicted,
        *,
        bind: bool,
        ran: Callable[[], None],
        housekeeping: Callable[[], None],
        on_lane: Callable[[str], None] = anywhere,
    ) -> None:
        self.stopped = ""
        self.chunk_tokens = steps.Unshared.chunk_tokens
        """The prefill chunk of the lease that is held, else of the last one."""
        self._housekeeping = housekeeping
        self._evicted = evicted
        self._dispatcher = dispatcher
        self._device = device
        self._task = task
        self._bind = bind
        self._ran = ran
        self._on_lane = on_lane
        self._give_up: Callable[[], bool] = bool
        self._sessions: dict[str, LmSession] = {}
        self._session: LmSession | None = None
        self._lease: Lease | None = None
        self._leased = ExitStack()
        self._placed = ExitStack()
        self._lane = -1

    @contextmanager
    def block(self, give_up: Callable[[], bool]) -> Iterator[None]:
        """See ModelWork. The lane is given back at the end, whatever happened."""
        self.stopped = ""
        self._give_up = give_up
        self._forget_evicted()
        try:
            yield
        finally:
            self._give_back()
            self._forget_evicted()

    def on(self, session: LmSession, *, ahead: bool = False) -> LaneSteps:
        """See ModelWork. What one block runs on several sessions runs under one lease after the other.

        Raises ValueError when another session has its name.
        """
        if self._sessions.setdefault(session.name, session) is not session:
            raise ValueError(f"two sessions are called {session.name!r}: their memory would be booked as one's")
        return LaneSteps(self, session, ahead)

    def beat(self) -> None:
        """See ModelWork."""
        self._forget_evicted()
        self._housekeeping()

    def boundary(self, session: LmSession, new_tokens: int, ahead: bool) -> None:
        """Before a step on `session`: take its lease, or yield, or set `stopped`."""
        if self.stopped:
            return
        if self._session is not session:
            self._give_back()
        lease = self._lease
        if lease is None:
            lease = self._take(session, ahead)
            if lease is None:
                return
        elif not lease.boundary(new_tokens):
            self.stopped = lease.stopped
            return
        self.chunk_tokens = lease.prefill_chunk_tokens
        if self._bind and lease.request.lane != self._lane:
            self._place(lease)

    def _take(self, session: LmSession, ahead: bool) -> Lease | None:
        """A lease with the session's memory booked; None, and `stopped`, when there is none to be had."""
        wanted = self._dispatcher.lease(
            self._task, session=session.name, kv_bytes=session.kv_bytes, judged=not ahead, give_up=self._give_up
        )
        try:
            lease = self._leased.enter_context(wanted)
        except Refused as error:
            self.stopped = str(error)
            return None
        self._lease, self._session, self._lane = lease, session, -1
        if self._evicted.take(session.name):  # while it was idle, or waited: what is booked now is empty
            session.forget()
        session.draft_tokens = lease.draft_tokens
        return lease

    def _give_back(self) -> None:
        if self._lease is None:
            return
        self._lease = self._session = None
        self._placed.close()
        self._leased.close()
        self._ran()

    def _forget_evicted(self) -> None:
        for name, session in self._sessions.items():
            if self._evicted.take(name):
                session.forget()

    def _place(self, lease: Lease) -> None:
        """Bind this thread to the lane, which may have changed while it was parked."""
        self._placed.close()
        self._lane = lease.request.lane
        self._placed.enter_context(self._device.enter(lease.lane))
        self._on_lane(lease.lane)


class LaneSteps:
    """Steps of one session under leases. See pipeline.dialogue.llm_steps.Steps."""

    __slots__ = ("_accepted", "_ahead", "_session", "_work")

    def __init__(self, work: LaneLlmScheduler, session: LmSession, ahead: bool) -> None:
        self._work = work
        self._session = session
        self._ahead = ahead
        self._accepted = session.accepted

    @property
    def chunk_tokens(self) -> int:
        return self._work.chunk_tokens

    def at_prefill(self) -> None:
        self._work.boundary(self._session, 0, self._ahead)

    def at_token(self) -> None:
        accepted = self._session.accepted
        self._work.boundary(
            self._session, 1 + accepted - self._accepted, self._ahead
        )  # one run may have yielded several
        self._accepted = accepted
