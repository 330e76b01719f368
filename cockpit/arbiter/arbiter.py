"""The arbiter: which request runs next, in which lane, with how much memory, and who yields, waits, pauses or goes.

It decides and never computes; the clock (monotonic ns) is handed in. Not thread-safe:
`cockpit/scheduling/dispatcher.py` locks.

    request = arbiter.submit(task, now_ns, session="s1", kv_bytes=..., expected_ns=...)
    chosen = arbiter.decide(now_ns)          # until None: RUNNING -> start it, REFUSED -> tell its owner
    action = arbiter.report(chosen, now_ns, new_tokens)   # at token or chunk boundaries
    arbiter.finish(chosen, now_ns, new_tokens)
"""

from __future__ import annotations

from typing import Final

from cockpit.arbiter.admission import AGEING_STEP_NS, Queues, order_key, slot_of
from cockpit.arbiter.config import BACKGROUND_PRIORITY, URGENT_PRIORITY, ArbiterConfig
from cockpit.arbiter.degrade import TokenFloor
from cockpit.arbiter.lanes import LanePlan, plan_lanes
from cockpit.arbiter.memory import OnEvict, SessionMemory, announce_nothing
from cockpit.arbiter.policy import Arm, Policy, arms_of
from cockpit.arbiter.red_line import MemoryRedLine
from cockpit.arbiter.requests import (
    CANCELLED,
    CONTINUE,
    EVICTED,
    IN_ORDER,
    LANE_BUSY,
    MEMORY_RED_LINE,
    OVER_BUDGET,
    PAUSED_BY_OPERATOR,
    PAUSED_DEGRADED,
    PAUSED_HARDWARE,
    QUEUED,
    REASONS,
    REFUSED,
    RELEASE,
    RUNNING,
    SLICE_OVER,
    STARTED,
    STARTED_AGED,
    STARTED_OTHERS_YIELD,
    STOP,
    TIMED_OUT,
    WAITS_FOR_MEMORY,
    YIELD,
    DecisionLog,
    LatencyHistogram,
    Request,
)

KV_PAGE_BYTES: Final = 1 << 16


class Arbiter:
    """All state of the decisions. Tasks are indices in the profile's order (`task_index`)."""

    def __init__(
        self,
        config: ArbiterConfig,
        arena_bytes: int,
        *,
        page_bytes: int = KV_PAGE_BYTES,
        on_evict: OnEvict = announce_nothing,
    ) -> None:
        self.config = config
        self.tasks = tuple(config.tasks.values())
        self.task_names = tuple(config.tasks)
        self.task_index = {name: index for index, name in enumerate(config.tasks)}
        self.lanes: tuple[LanePlan, ...] = plan_lanes(config)
        self.queues = Queues(self.tasks)
        self.floor = TokenFloor(config.limits.min_token_per_second, self.tasks)
        bounds = config.policy
        self.policy = Policy(arms_of(config), every=bounds.update_every_requests, frozen=bounds.frozen)
        self.log = DecisionLog()
        self.memory = SessionMemory(config, arena_bytes, page_bytes, self.log, on_evict)
        self.ledger = self.memory.ledger
        self.red_line = MemoryRedLine(config.limits.max_gpu_memory_percent)
        self.table = self.memory.table
        self.latency = tuple(LatencyHistogram() for _ in self.tasks)
        self.waited = tuple(LatencyHistogram() for _ in self.tasks)
        self.per_token = tuple(LatencyHistogram() for _ in self.tasks)
        self.tokens = [0] * len(self.tasks)
        self.drafted = [0] * len(self.tasks)
        self.accepted = [0] * len(self.tasks)
        self.running: list[Request | None] = [None] * len(self.tasks)
        self.running_bits = 0
        self.operator_paused = 0
        self.hardware_paused = 0
        self.yield_bits = 0
        """Bit t: task t, which runs now, must park at its next boundary. The caller keeps the gates in step."""
        self.timeouts = 0
        self.missed = [0] * len(self.tasks)
        self._all = tuple(range(len(self.tasks)))
        self._priorities = tuple(task.priority for task in self.tasks)
        self._slas = tuple(task.latency_sla_ns for task in self.tasks)
        self._urgent = tuple(task.priority >= URGENT_PRIORITY for task in self.tasks)
        self._lane = [0] * len(self.tasks)
        self._wanted = [0] * len(self.tasks)
        self._blocked_by = [0] * len(self.tasks)
        self._conflict = [0] * len(self.tasks)
        self._beside = [False] * len(self.queues.requests)
        self._chunk = 0
        self._draft = 0
        self._keep = 1.0
        self._apply_arm()

    # --- the life of a request -------------------------------------------------------------------------------------
    def submit(
        self,
        task: int,
        now_ns: int,
        *,
        session: str | None = None,
        kv_bytes: int = 0,
        expected_ns: int = 0,
        deadline_ns: int = 0,
        judged: bool = True,
        batch: bool = False,
        owner: int = -1,
    ) -> Request:
        """Queue a request. Its state is QUEUED, or REFUSED with the reason (then it needs no `finish`).

        expected_ns: how long it should run, for its slack. deadline_ns: 0 stands for now plus the task's SLA.
        judged, batch: see Request. owner: the task whose session it is, where that is another one.
        """
        owner = task if owner < 0 else owner
        if kv_bytes and not self.ledger.could_ever_hold(owner, kv_bytes):
            self.log.note(now_ns, task, OVER_BUDGET)
            return self.queues.refuse(task, OVER_BUDGET)
        if kv_bytes and self.refuses_memory(task, session):
            self.log.note(now_ns, task, MEMORY_RED_LINE)
            return self.queues.refuse(task, MEMORY_RED_LINE)
        request = self.queues.take(task)
        if request is None:
            refused = self.queues.refuse(task)
            self.log.note(now_ns, task, refused.reason)
            return refused
        request.task = task
        request.session = session
        request.owner = owner
        request.kv_bytes = kv_bytes
        request.expected_ns = expected_ns
        request.submitted_ns = now_ns
        request.deadline_ns = deadline_ns or now_ns + self._slas[task]
        request.tokens = 0
        request.first_token_ns = 0
        request.judged = judged
        request.batch = batch
        request.degraded = False
        request.reason = IN_ORDER
        request.key = order_key(self._priorities[task], request.deadline_ns - expected_ns, now_ns, request.slot)
        self._beside[request.slot] = self.running_bits != 0
        self.queues.push(request)
        return request

    def decide(self, now_ns: int) -> Request | None:
        """The next request to act on: RUNNING (start it in `lane`) or REFUSED (timed out: tell its owner, `finish` it).

        None when nothing can start now. `yield_bits` is up to date afterwards.
        """
        skip = self.paused
        waiting = self.queues.waiting
        heaps = self.queues.heaps
        while True:
            best = -1
            best_key = 0
            ready = waiting & ~skip
            if not ready:
                return None
            running = self.running_bits
            for task in self._all:
                if ready >> task & 1 and not running & self._blocked_by[task]:
                    key = heaps[task][0]
                    if best < 0 or key < best_key:
                        best = task
                        best_key = key
            if best < 0:
                return None
            request = self.queues.requests[slot_of(best_key)]
            if now_ns - request.submitted_ns > self.tasks[best].timeout_ns:
                return self._refuse_late(request, now_ns)
            if request.session is not None and not self.memory.hold(request, self._keep, now_ns):
                request.reason = WAITS_FOR_MEMORY
                skip |= 1 << best
                continue
            return self._start(request, now_ns)

    def _start(self, request: Request, now_ns: int) -> Request:
        task = request.task
        self.queues.pop(task)
        request.state = RUNNING
        request.started_ns = now_ns
        request.reported_ns = now_ns
        request.slice_ends_ns = now_ns + self._slas[task]
        request.lane = self._lane[task]
        if not request.degraded:
            if request.judged:
                self.waited[task].add(now_ns - request.submitted_ns)
            request.chunk_tokens = self._chunk
            request.draft_tokens = self._draft
            request.keep_ratio = self._keep
        self.running[task] = request
        self.running_bits |= 1 << task
        told = self._conflict[task] & self.running_bits
        if told:
            self.yield_bits |= told
            request.reason = STARTED_OTHERS_YIELD
        elif now_ns - request.submitted_ns > AGEING_STEP_NS and not self._urgent[task]:
            request.reason = STARTED_AGED
        else:
            request.reason = STARTED
        self.log.note(now_ns, task, request.reason)
        return request

    def report(self, request: Request, now_ns: int, new_tokens: int = 0) -> int:
        """At a token or chunk boundary: CONTINUE, YIELD (park at the gate), RELEASE (then `requeue`) or STOP.

        new_tokens: generated since the last report; 0 for a prefill chunk, whose time the token floor does not count.
        """
        task = request.task
        if new_tokens:
            request.tokens += new_tokens
            request.first_token_ns = request.first_token_ns or now_ns
            self._generated(request, new_tokens, now_ns)
        request.reported_ns = now_ns
        if request.session is not None:
            session = self.table.sessions.get(request.session)
            if session is None or session.doomed:
                request.reason = EVICTED
                return STOP
        if not request.batch and now_ns - request.submitted_ns > self.tasks[task].timeout_ns:
            request.reason = TIMED_OUT
            self.timeouts += 1
            return STOP
        if self.yield_bits >> task & 1:
            return YIELD
        if now_ns > request.slice_ends_ns and self._someone_waits_for(request, now_ns):
            request.reason = SLICE_OVER
            return RELEASE
        if request.batch and self.queues.waiting >> task & 1:
            request.reason = SLICE_OVER
            return RELEASE
        return CONTINUE

    def requeue(self, request: Request, now_ns: int) -> None:
        """Take a RELEASEd request back into its queue: it keeps its memory and goes on later, degraded."""
        bounds = self.config.policy
        self._leave_lane(request.task)
        if request.batch:  # its texts are late or not, each for itself
            request.submitted_ns = now_ns
        else:
            request.degraded = True
            request.chunk_tokens = min(bounds.prefill_chunk_tokens)
            request.keep_ratio = min(bounds.kv_keep_ratio)
        request.key = self._degraded_key(request, now_ns)
        self.queues.push(request)
        self.log.note(now_ns, request.task, SLICE_OVER)

    def finish(self, request: Request, now_ns: int, new_tokens: int = 0) -> None:
        """End a RUNNING or REFUSED request, or cancel a QUEUED one. `request` is no longer valid afterwards."""
        if request.slot < 0:
            return
        task = request.task
        if request.state == RUNNING:
            if new_tokens:
                request.tokens += new_tokens
                self._generated(request, new_tokens, now_ns)
            self._leave_lane(task)
            self.memory.let_go(request, now_ns)
            if request.judged:
                self.measure(request, now_ns)
        elif request.state == QUEUED:
            self.queues.remove(request)
            if request.degraded:
                self.memory.let_go(request, now_ns)
            self.log.note(now_ns, task, CANCELLED)
        self.queues.give_back(request)

    def _generated(self, request: Request, new_tokens: int, now_ns: int) -> None:
        """Tell the token floor, but not of background's tokens: nobody waits for them. Where its promise breaks
        under an arm that is tried, the safe one is taken back.
        """
        if self._priorities[request.task] <= BACKGROUND_PRIORITY:
            return
        entered = self.floor.entered
        self.tokens[request.task] += new_tokens
        self.floor.generated(request.task, new_tokens, now_ns - request.reported_ns, now_ns)
        if self.floor.entered != entered and self.policy.red_line():
            self._apply_arm()

    def measure(self, request: Request, now_ns: int) -> None:
        """A stream is judged by its first token: that is what its user waits for, and the token floor judges the rest.
        Urgent tasks are judged by their end, whatever they report.
        """
        task = request.task
        ended_ns = now_ns if self._urgent[task] else request.first_token_ns or now_ns
        latency_ns = ended_ns - request.submitted_ns
        sla_ns = self._slas[task]
        self.latency[task].add(latency_ns)
        if request.tokens > 1 and request.first_token_ns:
            self.per_token[task].add((now_ns - request.first_token_ns) // (request.tokens - 1))
        if latency_ns > sla_ns:
            self.missed[task] += 1
        if self.policy.observe(latency_ns, sla_ns, self._urgent[task], self._beside[request.slot]):
            short = self.ledger.pressure >= self.config.eviction.memory_pressure_threshold
            if self.policy.choose(short, self.floor.rate, self.config.limits.min_token_per_second):
                self._apply_arm()

    # --- lanes -----------------------------------------------------------------------------------------------------
    @property
    def arm(self) -> Arm:
        return self.policy.arms[self.policy.arm]

    def lane_index(self, task: int) -> int:
        """The lane in force for a task, as an index into `lanes`."""
        return self._lane[task]

    def policy_changed(self) -> None:
        """Call after changing `policy` from outside (restore, reset): puts its arm in force."""
        self._apply_arm()

    def _apply_arm(self) -> None:
        """Give every idle task its lane under the policy's arm; a running one changes when it leaves its lane."""
        arm = self.arm
        self._chunk = arm.prefill_chunk_tokens
        self._draft = arm.draft_tokens
        self._keep = arm.kv_keep_ratio
        for request in self.running:
            if request is not None and request.batch:  # it may hold its lane for as long as texts keep coming
                request.chunk_tokens = self._chunk
                request.draft_tokens = self._draft
        base = 0
        for task, profile in enumerate(self.tasks):
            self._wanted[task] = base + arm.widths[task] - 1
            base += len(profile.clusters)
            if not self.running_bits >> task & 1:
                self._lane[task] = self._wanted[task]
        self._relate()

    def _relate(self) -> None:
        """Who yields to whom, and whose running keeps whom waiting, under the lanes in force."""
        lanes = [self.lanes[index].cluster_bits for index in self._lane]
        if self.config.one_engine:  # an engine is a unit more
            engine = 1 << len(self.config.clusters)
            shared = [name in self.config.one_engine for name in self.task_names]
            lanes = [bits | engine if shares else bits for bits, shares in zip(lanes, shared, strict=True)]
        yielding = self.arm.yielding
        for task in self._all:
            conflict = 0
            for other in self._all:
                shares = lanes[task] & lanes[other] or (yielding and self._urgent[task])
                lower = self._priorities[other] < self._priorities[task] and self.tasks[other].yields
                if other != task and shares and lower:
                    conflict |= 1 << other
            self._conflict[task] = conflict
        for task in self._all:
            blocked = 1 << task
            for other in self._all:
                yields_to_me = self._conflict[task] >> other & 1
                i_yield = self._conflict[other] >> task & 1
                if other != task and (i_yield or (lanes[task] & lanes[other] and not yields_to_me)):
                    blocked |= 1 << other
            self._blocked_by[task] = blocked
        self._refresh_yields()

    def _refresh_yields(self) -> None:
        bits = 0
        running = self.running_bits
        for task in self._all:
            if running >> task & 1:
                bits |= self._conflict[task] & running
        self.yield_bits = bits

    def _leave_lane(self, task: int) -> None:
        self.running[task] = None
        self.running_bits &= ~(1 << task)
        if self._lane[task] != self._wanted[task]:
            self._lane[task] = self._wanted[task]
            self._relate()
        elif self.yield_bits:
            self._refresh_yields()

    def _degraded_key(self, request: Request, now_ns: int) -> int:
        priority = max(0, self._priorities[request.task] - 1)
        return order_key(priority, now_ns + self._slas[request.task], now_ns, request.slot)

    def _someone_waits_for(self, request: Request, now_ns: int) -> bool:
        bit = 1 << request.task
        ready = self.queues.waiting & ~self.paused
        if not ready:
            return False
        behind = self._degraded_key(request, now_ns)
        for task in self._all:
            if ready >> task & 1 and self._blocked_by[task] & bit and self.queues.heaps[task][0] < behind:
                return True
        return False

    # --- orders from outside ---------------------------------------------------------------------------------------
    def pause(self, task: int) -> None:
        """Start nothing more of this task until `resume`; what runs goes on."""
        self.operator_paused |= 1 << task

    def resume(self, task: int) -> None:
        self.operator_paused &= ~(1 << task)

    def hold_back(self, slowed: bool) -> None:
        """While the hardware is slowed down (heat, power): start nothing of background tasks."""
        self.hardware_paused = 0
        if slowed:
            for task in self._all:
                if self._priorities[task] <= BACKGROUND_PRIORITY:
                    self.hardware_paused |= 1 << task

    @property
    def paused(self) -> int:
        """Bit t: nothing of task t may start."""
        return self.operator_paused | self.floor.paused | self.hardware_paused

    def memory_in_use(self, used_bytes: int, total_bytes: int, now_ns: int) -> None:
        """Of the device, about once a second. See MemoryRedLine."""
        self.red_line.look(used_bytes, total_bytes, self.memory, now_ns)

    def refuses_memory(self, task: int, session: str | None) -> bool:
        """Whether the red line keeps a task that yields from a session that holds nothing yet."""
        return self.red_line.refusing and not self._urgent[task] and session not in self.table.sessions

    def evict(self, session: str, now_ns: int) -> str:
        """Drop a session's memory. "evicted", "at its next boundary" while a request runs on it, or "unknown"."""
        return self.memory.evict(session, now_ns)

    def tick(self, now_ns: int) -> Request | None:
        """A few times a second: age out sessions, judge idle time, and hand back one overdue queued request at a time.

        Call until None. The request returned is REFUSED (timed out): tell its owner, who `finish`es it.
        """
        if not self.running_bits:
            self.floor.idle(now_ns)
        self.memory.age_out(now_ns)
        for task in self._all:
            timeout_ns = self.tasks[task].timeout_ns
            for key in self.queues.heaps[task]:
                request = self.queues.requests[slot_of(key)]
                if now_ns - request.submitted_ns > timeout_ns:
                    return self._refuse_late(request, now_ns)
        return None

    def _refuse_late(self, request: Request, now_ns: int) -> Request:
        self.queues.remove(request)
        if request.degraded:
            self.memory.let_go(request, now_ns)
        request.state = REFUSED
        request.reason = TIMED_OUT
        self.timeouts += 1
        self.log.note(now_ns, request.task, TIMED_OUT)
        return request

    @property
    def evictions(self) -> int:
        return self.memory.evictions

    def explain(self, request: Request) -> str:
        """Why the request stands where it stands, in words."""
        if request.state != QUEUED:
            return request.why
        bit = 1 << request.task
        if self.operator_paused & bit:
            return REASONS[PAUSED_BY_OPERATOR]
        if self.floor.paused & bit:
            return REASONS[PAUSED_DEGRADED]
        if self.hardware_paused & bit:
            return REASONS[PAUSED_HARDWARE]
        blockers = self.running_bits & self._blocked_by[request.task]
        if blockers:
            names = ", ".join(self.task_names[task] for task in self._all if blockers >> task & 1)
            return f"{REASONS[LANE_BUSY]} ({names})"
        return request.why

    def check(self) -> None:
        """Re-check the invariants; for tests and idle moments. Raises AssertionError."""
        self.memory.check()
        for task in self._all:
            assert (self.running[task] is not None) == bool(self.running_bits >> task & 1)
            assert bool(self.queues.heaps[task]) == bool(self.queues.waiting >> task & 1)
