"""The language model's steps as a task of the arbiter: a lane is asked for when the first step comes and given back at
the end of the block.

The engine calls one object before each token: the session's lease, whose fast side reads one attribute of the task's
gate. A lease books the KV memory of its session; what the arbiter evicts is noted, and forgotten by the thread that
owns the session.
"""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import ExitStack, contextmanager

from cockpit.device.base import Device
from cockpit.scheduling.dispatcher import Dispatcher, Lease, Refused
from models.engines.llm.session import DEFAULT_CHUNK, LmSession


class EvictedSessions:
    """Sessions whose memory the arbiter took, by name, until their owners have forgotten what they cached."""

    def __init__(self) -> None:
        self._names: set[str] = set()
        self.listener: Callable[[], object] = bool
        """Called after each note, under the arbiter's lock: it may only wake somebody."""

    def note(self, session: str, _task: str) -> None:
        """For the arbiter, under its lock."""
        self._names.add(session)
        self.listener()

    def take(self, session: str) -> bool:
        """True once after each eviction. For the thread that owns the session."""
        if session not in self._names:
            return False
        self._names.discard(session)
        return True


class TaskLane:
    """Where a task's model steps run: the thread is bound to the lane of its lease, as long as it is held.

    bind: False where the kernel places the thread better than a lane of all cores would. on_lane: told the lane's name
    before the model runs there, for models that compute where they are told and not where their thread is.
    """

    def __init__(self, device: Device, *, bind: bool, on_lane: Callable[[str], None] | None = None) -> None:
        self._device = device
        self._bind = bind
        self._on_lane = on_lane
        self._name = ""
        self._entered = ExitStack()

    def enter(self, lane: str) -> None:
        """Move this thread to `lane`. Nothing happens when it is there already."""
        if not self._bind or lane == self._name:
            return
        self.leave()
        self._entered.enter_context(self._device.enter(lane))
        self._name = lane
        if self._on_lane is not None:
            self._on_lane(lane)

    def leave(self) -> None:
        """Unbind this thread."""
        self._name = ""
        self._entered.close()


class LaneLlmScheduler:
    """Runs the model under leases of one task. See pipeline.dialogue.llm_steps.LlmScheduler.

    evicted: what the arbiter's `on_evict` notes. ran: called after each lease.
    """

    def __init__(
        self, dispatcher: Dispatcher, task: str, lane: TaskLane, evicted: EvictedSessions, ran: Callable[[], None]
    ) -> None:
        self.stopped = ""
        self.dispatcher = dispatcher
        self.task = task
        self.lane = lane
        self._evicted = evicted
        self._ran = ran
        self._give_up: Callable[[], bool] = bool
        self._leases: dict[str, LlmLease] = {}
        self._held: LlmLease | None = None

    @contextmanager
    def block(self, give_up: Callable[[], bool]) -> Iterator[None]:
        """See LlmScheduler. The lane is given back at the end, whatever happened."""
        self.stopped = ""
        self._give_up = give_up
        self._forget_evicted()
        try:
            yield
        finally:
            self._give_back()
            self._forget_evicted()

    def on(self, session: LmSession, *, ahead: bool = False) -> LlmLease:
        """See LlmScheduler. What one block runs on several sessions runs under one lease after the other."""
        lease = self._leases.get(session.name)
        if lease is None:
            lease = self._leases[session.name] = LlmLease(self, session)
        if lease.session is not session:
            raise ValueError(f"two sessions are called {session.name!r}: their memory would be booked as one's")
        lease.begin(ahead)
        return lease

    def take(self, lease: LlmLease) -> None:
        """Before the first step on the lease's session: take it, or set `stopped`."""
        if self.stopped:
            return
        self._give_back()
        session = lease.session
        try:
            lease.take(session=session.name, kv_bytes=session.kv_bytes, judged=not lease.ahead, give_up=self._give_up)
        except Refused as error:
            self.stopped = str(error)
            return
        self._held = lease
        if self._evicted.take(session.name):  # while it was idle, or waited: what is booked now is empty
            session.forget()
        session.draft_tokens = lease.draft_tokens
        lease.moved()

    def _give_back(self) -> None:
        if self._held is None:
            return
        lease, self._held = self._held, None
        self.lane.leave()
        lease.give_back()
        self._ran()

    def _forget_evicted(self) -> None:
        for name, lease in self._leases.items():
            if self._evicted.take(name):
                lease.session.forget()


class LlmLease(Lease):
    """The steps of one session and the lease they run under, in one object. See pipeline.dialogue.llm_steps.LlmSteps.

    chunk_tokens: of the lease that is held, else of the last one.
    """

    __slots__ = ("_accepted", "_scheduler", "ahead", "chunk_tokens", "session")

    def __init__(self, scheduler: LaneLlmScheduler, session: LmSession) -> None:
        super().__init__(scheduler.dispatcher, scheduler.task)
        self.chunk_tokens = DEFAULT_CHUNK
        self.session = session
        self.ahead = False
        self._scheduler = scheduler
        self._accepted = session.accepted

    def begin(self, ahead: bool) -> None:
        """New steps: what the session accepted before is nobody's token. ahead: nobody waits for them yet."""
        self.ahead = ahead
        self._accepted = self.session.accepted

    def at_prefill(self) -> None:
        if self.running:
            self.boundary(0)
        else:
            self._scheduler.take(self)

    def at_token(self) -> None:
        accepted = self.session.accepted  # one run may have yielded several
        if self.running:
            self.boundary(1 + accepted - self._accepted)
        else:
            self._scheduler.take(self)
        self._accepted = accepted

    def report(self) -> bool:
        """See Lease. The lane and the chunk may have changed while it was parked."""
        if super().report():
            self.moved()
            return True
        self._scheduler.stopped = self.stopped
        return False

    def moved(self) -> None:
        """Go where the arbiter wants the steps to run, in chunks as long as it says."""
        self.chunk_tokens = self.prefill_chunk_tokens
        self._scheduler.lane.enter(self.lane)
