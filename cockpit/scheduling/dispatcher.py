"""The arbiter at work: threads ask for a lane, wait their turn, yield at boundaries and give the lane back.

with dispatcher.lease("dialogue_task", session="s1", kv_bytes=n) as lease:
    for token in ...:
        if not lease.boundary():    # a plain attribute read unless somebody more urgent runs
            break
"""

from __future__ import annotations

import threading
import time
from collections.abc import Callable, Iterator, Mapping
from contextlib import contextmanager
from dataclasses import replace
from typing import Any

from cockpit.arbiter import members
from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.requests import QUEUED, REFUSED, RELEASE, RUNNING, STOP, YIELD, Request
from cockpit.arbiter.status import Status, TaskTimes, snapshot, task_times
from cockpit.device.base import YieldGate
from models.engines.preemption import RunSwitch, Switches, enter, leave
from models.errors import CockpitError
from pipeline.trace import NullTracer, Tracer

_REPORT_EVERY = 16
"""Boundaries between two reports to the arbiter while the gate is open; the first token is reported at once."""
_TICK_S = 0.25
_GIVEN_UP = "given up while it waited"


class Refused(CockpitError):
    """The arbiter did not admit a request, or gave it up while it waited. The message is its reason."""


class Lease:
    """One thread's hold on its task's lane: `take`, `boundary` at each step, `give_back`, and again.

    running: taken and not told to stop. stopped: the reason after it was.
    """

    __slots__ = (
        "_dispatcher",
        "_pending",
        "_request",
        "_since",
        "_task",
        "_told_first",
        "_without",
        "gate",
        "give_up",
        "running",
        "stopped",
        "switch",
    )

    def __init__(self, dispatcher: Dispatcher, task: str) -> None:
        self.running = False
        self.stopped = ""
        self._task = dispatcher.arbiter.task_index[task]
        self.gate = dispatcher.gates[self._task]
        self.switch = dispatcher.switches[self._task]
        self._without: Switches | None = None
        self.give_up: Callable[[], bool] = bool
        self._dispatcher = dispatcher
        self._request: Request | None = None
        self._pending = 0
        self._since = 0
        self._told_first = False

    @property
    def request(self) -> Request:
        """The arbiter's side. Raises RuntimeError while nothing is held."""
        if self._request is None:
            raise RuntimeError("this lease is not held: take it first")
        return self._request

    @property
    def lane(self) -> str:
        """Name of the lane to run in, as created at start."""
        return self._dispatcher.arbiter.lanes[self.request.lane].name

    @property
    def prefill_chunk_tokens(self) -> int:
        return self.request.chunk_tokens

    @property
    def draft_tokens(self) -> int:
        """Tokens to draft ahead of each verified step; 0: none."""
        return self.request.draft_tokens

    def take(
        self,
        *,
        session: str | None = None,
        kv_bytes: int = 0,
        expected_ms: float = 0.0,
        judged: bool = True,
        batch: bool = False,
        owner: str = "",
        give_up: Callable[[], bool] = bool,
        redoes: bool = False,
    ) -> None:
        """Wait for the task's turn. Raises Refused; nothing is held then. See `Dispatcher.lease`.

        batch: for several texts, see cockpit.arbiter.members. owner: see `Dispatcher.submit`. redoes: this thread does
        a run again that was ended for somebody more urgent (see models.engines.preemption), after a `boundary(0)`.
        """
        expected_ns = int(expected_ms * 1e6)
        self._request = self._dispatcher.submit(self._task, session, kv_bytes, expected_ns, judged, batch, owner)
        self.give_up, self.stopped = give_up, ""
        self._pending = self._since = 0
        self._told_first = False
        try:
            self._dispatcher.wait(self._request, give_up)
        except BaseException:
            self.give_back()
            raise
        self.running = True
        if redoes:
            self._without = enter(self.switch)

    def boundary(self, new_tokens: int = 1) -> bool:
        """At each token (1) or prefill chunk (0), its device work finished. Parks while told to; False: stop here.

        The lane may have changed after a park: read it again.
        """
        self._pending += new_tokens
        self._since += 1
        if not self.gate.closed and self._since < _REPORT_EVERY and (self._told_first or not self._pending):
            return True
        return self.report()

    def report(self) -> bool:
        """The slow side of `boundary`: tell the arbiter and do as it says. False: stop."""
        self._told_first = self._pending > 0 or self._told_first
        self._since = 0
        self.running = self._dispatcher.report(self, self.take_pending())
        return self.running

    def take_pending(self) -> int:
        """Tokens counted but not reported yet; the count starts anew."""
        pending, self._pending = self._pending, 0
        return pending

    def give_back(self) -> None:
        """End the request and free the lane. Nothing happens when nothing is held. In the thread that took it."""
        if self._without is not None:
            without, self._without = self._without, None
            leave(without)
        if self._request is not None:
            request, self._request = self._request, None
            self.running = False
            self._dispatcher.finish(request, self.take_pending())


class Dispatcher:
    """Locks and wakes around one Arbiter. All methods may be called from any thread.

    tracer: told of every wait for a lane (`wait`), of what parked at a boundary (`yield`) and of what was stopped, all
    as stage "arbiter" of turn 0, named by task.
    """

    def __init__(
        self,
        arbiter: Arbiter,
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
        tracer: Tracer | None = None,
    ) -> None:
        self.arbiter = arbiter
        self._tracer = tracer or NullTracer()
        self.gates = tuple(YieldGate() for _ in arbiter.tasks)
        self.switches = tuple(RunSwitch() for _ in arbiter.tasks)
        """Closed while the task must yield: what of it runs on a CPU is ended there."""
        self._clock_ns = clock_ns
        self._lock = threading.Lock()
        self._granted = tuple(threading.Event() for _ in arbiter.queues.requests)
        self._told = 0
        self._ending = 0
        self._nudged = 0

    @contextmanager
    def lease(
        self,
        task: str,
        *,
        session: str | None = None,
        kv_bytes: int = 0,
        expected_ms: float = 0.0,
        judged: bool = True,
        give_up: Callable[[], bool] = bool,
    ) -> Iterator[Lease]:
        """Wait for the task's turn and hold its lane for the body. Raises Refused, KeyError for an unknown task.

        judged: False for what nobody waits for: it counts in no latency.
        give_up: asked a few times a second while waiting or parked; True ends the wait (Refused, or `stopped`).
        """
        lease = Lease(self, task)
        lease.take(session=session, kv_bytes=kv_bytes, expected_ms=expected_ms, judged=judged, give_up=give_up)
        try:
            yield lease
        finally:
            lease.give_back()

    # --- for Lease -------------------------------------------------------------------------------------------------
    def submit(
        self,
        task: int,
        session: str | None,
        kv_bytes: int,
        expected_ns: int,
        judged: bool,
        batch: bool = False,
        owner: str = "",
    ) -> Request:
        """Ask for the task's turn. Raises Refused when the arbiter does not admit the request. A batch of this task
        that holds the lane is told at its next boundary.

        owner: the task in whose budget the session is, where that is another one.
        """
        owned_by = self.arbiter.task_index[owner] if owner else task
        with self._lock:
            request = self.arbiter.submit(
                task,
                self._clock_ns(),
                session=session,
                kv_bytes=kv_bytes,
                expected_ns=expected_ns,
                judged=judged,
                batch=batch,
                owner=owned_by,
            )
            if request.state == REFUSED:
                raise Refused(f"{self.arbiter.task_names[task]}: {request.why}")
            self._granted[request.slot].clear()
            running = self.arbiter.running[task]
            if running is not None and running.batch:
                self._nudged |= 1 << task
            self._pump()
            return request

    def wait(self, request: Request, give_up: Callable[[], bool]) -> None:
        """Until the request may run. Raises Refused when it timed out or was given up; it must be finished then too."""
        if not self._await(request, give_up):
            why = _GIVEN_UP if request.state == QUEUED else request.why
            raise Refused(f"{self.arbiter.task_names[request.task]}: {why}")

    # --- for texts of a batch: see cockpit.arbiter.members ---------------------------------------------------------
    def join(self, task: int, session: str, kv_bytes: int, submitted_ns: int) -> Request | None:
        """Raises Refused for what will never fit."""
        with self._lock:
            member = members.join(
                self.arbiter, task, self._clock_ns(), session=session, kv_bytes=kv_bytes, submitted_ns=submitted_ns
            )
            if member is not None and member.state == REFUSED:
                raise Refused(f"{self.arbiter.task_names[task]}: {member.why}")
            return member

    def grow(self, member: Request, kv_bytes: int) -> bool:
        with self._lock:
            return members.grow(self.arbiter, member, kv_bytes, self._clock_ns())

    def report_member(self, member: Request, new_tokens: int) -> str:
        with self._lock:
            return members.report(self.arbiter, member, new_tokens, self._clock_ns())

    def drafted(self, task: int, offered: int, accepted: int) -> None:
        """Tokens that were guessed for texts of `task`, and those of them that the model agreed with."""
        with self._lock:
            self.arbiter.drafted[task] += offered
            self.arbiter.accepted[task] += accepted

    def leave(self, member: Request) -> None:
        with self._lock:
            members.leave(self.arbiter, member, self._clock_ns())
            self._pump()

    def room_bytes(self, task: int) -> int:
        """KV memory that the sessions of `task` may hold."""
        with self._lock:
            return min(self.arbiter.ledger.budgets[task], self.arbiter.ledger.arena_bytes)

    def finish(self, request: Request, new_tokens: int) -> None:
        """The request ends, whatever came of it."""
        with self._lock:
            self._nudged &= ~(1 << request.task)
            self.arbiter.finish(request, self._clock_ns(), new_tokens)
            self._pump()

    def _await(self, request: Request, give_up: Callable[[], bool]) -> bool:
        """Wait until the request may run; False when it was refused or given up meanwhile."""
        granted = self._granted[request.slot]
        if granted.is_set():
            return request.state == RUNNING
        start_ns = time.monotonic_ns()
        try:
            while not granted.is_set():
                if give_up():
                    return False
                if not granted.wait(_TICK_S):
                    self.tick()
            return request.state == RUNNING
        finally:
            self._trace(request, start_ns, f"wait: {request.why}")

    def report(self, lease: Lease, new_tokens: int) -> bool:
        """The slow side of `Lease.boundary`: tell the arbiter, then do as it says. False: stop."""
        request = lease.request
        while True:
            with self._lock:
                action = self.arbiter.report(request, self._clock_ns(), new_tokens)
                if self._nudged:
                    self._nudged &= ~(1 << request.task)
                    self._sync_gates()
                if action == RELEASE:
                    self._granted[request.slot].clear()
                    self.arbiter.requeue(request, self._clock_ns())
                    self._pump()
            new_tokens = 0
            if action == STOP:
                lease.stopped = request.why
                self._trace(request, time.monotonic_ns(), f"stop: {request.why}")
                return False
            if action == YIELD:
                if lease.give_up():
                    lease.stopped = _GIVEN_UP
                    return False
                start_ns = time.monotonic_ns()
                lease.gate.wait(_TICK_S)
                self._trace(request, start_ns, "yield")
            elif action == RELEASE:
                if self._await(request, lease.give_up):
                    return True
                lease.stopped = _GIVEN_UP if request.state == QUEUED else request.why
                return False
            else:
                return True

    def _trace(self, request: Request, start_ns: int, what: str) -> None:
        name = f"{self.arbiter.task_names[request.task]} {what}"
        self._tracer.record("arbiter", 0, start_ns, time.monotonic_ns(), name)

    def _pump(self) -> None:
        """Start what can start, then bring the gates in step. The lock is held."""
        now_ns = self._clock_ns()
        while (chosen := self.arbiter.decide(now_ns)) is not None:
            self._granted[chosen.slot].set()
        self._sync_gates()

    def _sync_gates(self) -> None:
        """Closed: who must yield, and who must report once because its session is to go. A run is ended after its gate
        has closed, and may begin before it opens: nobody whose run was ended finds the gate open.
        """
        yielding = self.arbiter.yield_bits
        before, self._ending = self._ending, yielding
        self._turn_switches(before & ~yielding, closed=False)
        self._turn_gates(yielding | self._nudged)
        self._turn_switches(yielding & ~before, closed=True)

    def _turn_switches(self, tasks: int, *, closed: bool) -> None:
        if tasks:
            for task, switch in enumerate(self.switches):
                if tasks >> task & 1:
                    (switch.close if closed else switch.open)()

    def _turn_gates(self, closed: int) -> None:
        changed = self._told ^ closed
        if not changed:
            return
        for task, gate in enumerate(self.gates):
            if changed >> task & 1:
                if closed >> task & 1:
                    gate.close()
                else:
                    gate.open()
        self._told = closed

    def tick(self) -> None:
        """Age out, time out, recover. Waiting threads call it themselves; a housekeeping thread may too."""
        with self._lock:
            now_ns = self._clock_ns()
            while (late := self.arbiter.tick(now_ns)) is not None:
                self._granted[late.slot].set()
            self._pump()

    def lane_in_force(self, task: str) -> str:
        """Name of the lane that `task` runs in under the policy's arm now."""
        return self.arbiter.lanes[self.arbiter.lane_index(self.arbiter.task_index[task])].name

    # --- orders from outside ---------------------------------------------------------------------------------------
    def task_times(self) -> dict[str, TaskTimes]:
        """Every latency of each task since the start, as it is now."""
        with self._lock:
            return task_times(self.arbiter)

    def status(self, *, verbose: bool = True) -> Status:
        with self._lock:
            now = snapshot(self.arbiter, self._clock_ns(), verbose=verbose)
        tasks = (
            replace(task, preempted=switch.ended, redone_ms=switch.lost_ns / 1e6)
            for task, switch in zip(now.tasks, self.switches, strict=True)
        )
        return replace(now, tasks=tuple(tasks))

    def pause(self, task: str) -> None:
        """Start nothing more of `task`. Raises KeyError for an unknown one."""
        with self._lock:
            self.arbiter.pause(self.arbiter.task_index[task])

    def resume(self, task: str) -> None:
        with self._lock:
            self.arbiter.resume(self.arbiter.task_index[task])
            self._pump()

    def evict(self, session: str) -> str:
        """ "evicted", "at its next boundary" or "unknown"."""
        with self._lock:
            answer = self.arbiter.evict(session, self._clock_ns())
            for running in filter(None, self.arbiter.running):
                if running.session == session or running.batch:  # one of its texts, perhaps
                    self._nudged |= 1 << running.task
            self._pump()
            return answer

    def reset_policy(self) -> None:
        with self._lock:
            self.arbiter.policy.reset()
            self.arbiter.policy_changed()
            self._pump()

    def hold_back(self, slowed: bool) -> None:
        """See Arbiter.hold_back."""
        with self._lock:
            self.arbiter.hold_back(slowed)
            self._pump()

    def memory_in_use(self, used_bytes: int, total_bytes: int) -> bool:
        """See Arbiter.memory_in_use. Returns whether new sessions are refused now."""
        with self._lock:
            self.arbiter.memory_in_use(used_bytes, total_bytes, self._clock_ns())
            self._pump()
            return self.arbiter.red_line.refusing

    def policy_state(self) -> tuple[int, dict[str, Any]]:
        """(epoch, state): what the policy learnt, to be saved by the caller."""
        with self._lock:
            return self.arbiter.policy.epoch, self.arbiter.policy.state()

    def restore_policy(self, state: Mapping[str, Any]) -> str | None:
        """None when the state was taken, else why it does not fit."""
        with self._lock:
            refused = self.arbiter.policy.restore(state)
            if refused is None:
                self.arbiter.policy_changed()
                self._pump()
            return refused

    def freeze_policy(self, frozen: bool) -> None:
        with self._lock:
            self.arbiter.policy.frozen = frozen
