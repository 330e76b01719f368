"""The language model's steps as a task of the arbiter: a lane is asked for when the first step comes and given back at
the end of the block.

The engine calls one object before each token: the session's lease, whose fast side reads one attribute of the task's
gate. A lease books the KV memory of its session; what the arbiter evicts is noted, and forgotten by the thread that
owns the session.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Iterator, Mapping
from contextlib import ExitStack, contextmanager
from dataclasses import dataclass
from threading import Lock

from cockpit.device.base import Device
from cockpit.scheduling.dispatcher import Dispatcher, Lease, Refused
from models.engines.llm.session import DEFAULT_CHUNK, LmSession
from pipeline.frames import Task


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

    def __len__(self) -> int:
        return len(self._names)

    def take(self, session: str) -> bool:
        """True once after each eviction. For the thread that owns the session."""
        if session not in self._names:
            return False
        self._names.discard(session)
        return True


class SessionDrafts:
    """What a session drafts under one task, told to the arbiter now and then."""

    def __init__(self, dispatcher: Dispatcher, task: str, session: LmSession) -> None:
        self._dispatcher = dispatcher
        self._task = dispatcher.arbiter.task_index[task]
        self._session = session
        self.begin()

    def begin(self) -> None:
        """What the session drafted before was another task's."""
        self._offered, self._accepted = self._session.drafted, self._session.accepted

    def tell(self) -> None:
        """Count what came since."""
        offered, accepted = self._session.drafted - self._offered, self._session.accepted - self._accepted
        if offered:
            self._dispatcher.drafted(self._task, offered, accepted)
            self.begin()


@dataclass(frozen=True, slots=True)
class LanedModel:
    """A model whose graphs lie in the lanes of one task and serve one text at a time, whatever task a step is of.

    use: told the lane before the model runs there. lane_in_force: its name now. turn: held by the thread that computes;
    between two boundaries only, so that whoever has yielded never keeps it.
    """

    use: Callable[[str], None]
    lane_in_force: Callable[[], str]
    turn: Lock


class TaskLane:
    """Where a task's model steps run: the thread is bound to the lane of its lease, as long as it is held.

    bound: the tasks that keep to their lanes; not those that the kernel places better, as in a lane of all cores.
    model: None for one that computes where its thread is, several texts beside each other.
    """

    def __init__(self, device: Device, *, bound: Collection[str], model: LanedModel | None = None) -> None:
        self._device = device
        self._bound = bound
        self._model = model
        self._name = ""
        self._entered = ExitStack()
        self._computes = False

    def enter(self, lane: str, task: str) -> None:
        """Move this thread to `lane`, one of `task`, or to where the model's graphs are; wait for its turn there."""
        model = self._model
        if model is not None:
            if not self._computes:
                model.turn.acquire()
                self._computes = True
            lane = model.lane_in_force()
        if lane != self._name:
            self._unbind()
            if task in self._bound:
                self._entered.enter_context(self._device.enter(lane))
                self._name = lane
        if model is not None:
            model.use(lane)

    def step_aside(self) -> None:
        """Before a boundary: whoever the arbiter prefers may compute. `enter` again before the next step."""
        if self._computes and self._model is not None:
            self._computes = False
            self._model.turn.release()

    def leave(self) -> None:
        """Unbind this thread."""
        self._unbind()
        self.step_aside()

    def _unbind(self) -> None:
        if self._name:
            self._name = ""
            self._entered.close()


class LaneLlmScheduler:
    """Runs the model under leases of each step's task. See pipeline.dialogue.llm_steps.LlmScheduler.

    names: the arbiter's task for each kind of work. evicted: what the arbiter's `on_evict` notes. ran: told of the task
    after each lease.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        names: Mapping[Task, str],
        lane: TaskLane,
        evicted: EvictedSessions,
        ran: Callable[[str], None],
    ) -> None:
        self.stopped = ""
        self.dispatcher = dispatcher
        self.names = names
        self.lane = lane
        self._evicted = evicted
        self._ran = ran
        self._give_up: Callable[[], bool] = bool
        self._leases: dict[tuple[str, str], LlmLease] = {}
        self._owners: dict[str, str] = {}
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

    @property
    def holds(self) -> str:
        """The arbiter's task whose lane is held now, empty without one. Any thread may ask."""
        held = self._held
        return "" if held is None else held.task

    def on(self, session: LmSession, *, ahead: bool = False, task: Task = "dialogue") -> LlmLease:
        """See LlmScheduler. What one block runs on several sessions runs under one lease after the other.

        A session's memory is in the budget of the task that used it first, whichever uses it later.
        """
        name = self.names[task]
        lease = self._leases.get((session.name, name))
        if lease is None:
            owner = self._owners.setdefault(session.name, name)
            lease = self._leases[session.name, name] = LlmLease(self, session, name, owner)
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
            lease.take(
                session=session.name,
                kv_bytes=session.kv_bytes,
                judged=not lease.ahead,
                owner=lease.owner,
                give_up=_at_once if lease.ahead else self._give_up,
                redoes=True,
            )
        except Refused as error:
            self.stopped = str(error)
            return
        self._held = lease
        lease.drafts.begin()
        lease.moved()
        if self._evicted.take(session.name):  # while it was idle, or waited: what is booked now is empty
            session.forget()
        session.draft_tokens = lease.draft_tokens

    def pause(self) -> None:
        """See LlmScheduler."""
        self._give_back()

    def _give_back(self) -> None:
        if self._held is None:
            return
        lease, self._held = self._held, None
        self.lane.leave()
        lease.drafts.tell()
        lease.give_back()
        self._ran(lease.task)

    def _forget_evicted(self) -> None:
        if not self._evicted:
            return
        for (name, _), lease in self._leases.items():
            if self._evicted.take(name):
                lease.session.forget()


def _at_once() -> bool:
    """What is computed ahead of need does not wait: it is tried again in the next idle moment."""
    return True


class LlmLease(Lease):
    """The steps of one session and the lease they run under, in one object. See pipeline.dialogue.llm_steps.LlmSteps.

    task: the arbiter's. owner: the one in whose budget the session is. chunk_tokens: of the lease that is held, else
    of the last one.
    """

    __slots__ = ("_accepted", "_redone", "_scheduler", "ahead", "chunk_tokens", "drafts", "owner", "session", "task")

    def __init__(self, scheduler: LaneLlmScheduler, session: LmSession, task: str, owner: str) -> None:
        super().__init__(scheduler.dispatcher, task)
        self.task = task
        self.owner = owner
        self.chunk_tokens = DEFAULT_CHUNK
        self.session = session
        self.ahead = False
        self.drafts = SessionDrafts(scheduler.dispatcher, task, session)
        self._scheduler = scheduler
        self._accepted = session.accepted
        self._redone = session.redone

    def begin(self, ahead: bool) -> None:
        """New steps: what the session accepted before is nobody's token. ahead: nobody waits for them yet."""
        self.ahead = ahead
        self._accepted, self._redone = self.session.accepted, self.session.redone

    def at_prefill(self) -> None:
        if self.running:
            self.boundary(0)
        else:
            self._scheduler.take(self)

    def at_token(self) -> None:
        accepted, redone = self.session.accepted, self.session.redone  # one run may have yielded several, or none
        if self.running:
            self.boundary(1 + accepted - self._accepted - redone + self._redone)
        else:
            self._scheduler.take(self)
        self._accepted, self._redone = accepted, redone

    def report(self) -> bool:
        """See Lease. The lane and the chunk may have changed while it was parked."""
        self._scheduler.lane.step_aside()
        if super().report():
            self.moved()
            return True
        self._scheduler.stopped = self.stopped
        return False

    def moved(self) -> None:
        """Go where the arbiter wants the steps to run, in chunks as long as it says."""
        self.chunk_tokens = self.prefill_chunk_tokens
        self._scheduler.lane.enter(self.lane, self.task)
