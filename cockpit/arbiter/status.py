"""What `o3ctl status` shows: one frozen snapshot of lanes, queues, budgets, memory, degraded mode and policy."""

from __future__ import annotations

from dataclasses import dataclass

from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.eviction import EvictionCandidate
from cockpit.arbiter.requests import REASONS, RUNNING, LatencyHistogram


@dataclass(frozen=True, slots=True)
class LaneStatus:
    """`active`: the lane its task has under the policy's arm now."""

    name: str
    task: str
    clusters: tuple[str, ...]
    units: int
    active: bool


@dataclass(frozen=True, slots=True)
class Quantiles:
    """In ms; 0 when nothing was counted."""

    p50_ms: float
    p95_ms: float
    p99_ms: float

    @classmethod
    def of(cls, histogram: LatencyHistogram) -> Quantiles:
        return cls(*(histogram.quantile_ns(share) / 1e6 for share in (0.50, 0.95, 0.99)))


@dataclass(frozen=True, slots=True)
class DraftStatus:
    """Tokens that were guessed ahead and verified in one run, and how many of them the model agreed with."""

    offered: int
    accepted: int
    acceptance: float
    """accepted / offered."""


@dataclass(frozen=True, slots=True)
class TaskStatus:
    """One task. Latencies in ms over all its requests since start, from submission to the first token that was reported
    (TTFT), to the end for urgent tasks and requests without tokens. missed_sla counts those past the SLA. What was
    computed ahead of need (warm-up, idle time) is in none of them, nor in `finished`; `tokens` counts all.

    queue: from submission until the lane was the request's. tpot: from the first token reported to the end, per token.
    """

    name: str
    priority: int
    sla_ms: float
    lane: str
    state: str
    """running, yielding, queued, idle; paused (operator, degraded or hardware) wins over queued and idle."""
    why: str
    queued: int
    queue_limit: int
    queue_high_water: int
    budget_mb: int
    held_mb: float
    finished: int
    missed_sla: int
    p50_ms: float
    p95_ms: float
    p99_ms: float
    max_ms: float
    queue: Quantiles
    tpot: Quantiles
    tokens: int
    drafts: DraftStatus | None
    """None where nothing was drafted: `policy.draft_tokens` is 0, or no text gave anything to guess from."""
    sla_kept: bool
    """The P95 is within the SLA."""
    preempted: int = 0
    """Runs of a model that were ended between two nodes for somebody more urgent, and done again."""
    redone_ms: float = 0.0
    """The time that they had taken until then."""


@dataclass(frozen=True, slots=True)
class MemoryStatus:
    """KV arena. fragmentation: share of held pages that nobody asked for."""

    arena_mb: float
    held_mb: float
    pressure: float
    fragmentation: float
    sessions: int
    evictions: int
    used_percent: float | None
    """Of the device's memory, against `limit_percent`: None where it is not known."""
    limit_percent: float
    refusing: bool
    """The limit is passed and nothing idle is left to evict: new sessions of tasks that yield are refused."""


@dataclass(frozen=True, slots=True)
class DegradedStatus:
    """`since_s`: seconds in degraded mode, None while all is well."""

    active: bool
    since_s: float | None
    paused: tuple[str, ...]
    why: str
    tokens_per_s: float
    floor_tokens_per_s: float
    entered: int


@dataclass(frozen=True, slots=True)
class PolicyStatus:
    """The online policy: which arm runs, whether it may change, and what it has done."""

    arm: int
    arms: int
    description: str
    offered: tuple[str, ...]
    """Every arm that may be chosen here; empty unless verbose."""
    frozen: bool
    epoch: int
    reverts: int
    favourite: str


@dataclass(frozen=True, slots=True)
class Decision:
    """One entry of the log; `ago_s` counts back from the snapshot."""

    ago_s: float
    task: str
    reason: str


@dataclass(frozen=True, slots=True)
class Status:
    """Everything at one moment. `decisions` and `eviction_candidates` are empty unless verbose."""

    lanes: tuple[LaneStatus, ...]
    tasks: tuple[TaskStatus, ...]
    memory: MemoryStatus
    degraded: DegradedStatus
    policy: PolicyStatus
    timeouts: int
    eviction_policy: str
    eviction_candidates: tuple[EvictionCandidate, ...]
    decisions: tuple[Decision, ...]


@dataclass(frozen=True, slots=True)
class TaskTimes:
    """Every latency of one task since the start, as TaskStatus has their quantiles."""

    latency: LatencyHistogram
    queue: LatencyHistogram
    tpot: LatencyHistogram


def task_times(arbiter: Arbiter) -> dict[str, TaskTimes]:
    """Copies, by task. Hold the arbiter's lock meanwhile."""
    rows = zip(arbiter.task_names, arbiter.latency, arbiter.waited, arbiter.per_token, strict=True)
    return {name: TaskTimes(*(histogram.copy() for histogram in histograms)) for name, *histograms in rows}


def snapshot(arbiter: Arbiter, now_ns: int, *, verbose: bool = True) -> Status:
    """Read the arbiter's state; hold its lock meanwhile. Changes nothing."""
    eviction = arbiter.config.eviction
    policy_text = f"lru_k={eviction.lru_k}"
    if eviction.type == "hybrid":
        policy_text = (
            f"hybrid: {policy_text}, age {eviction.age_threshold_seconds:g} s once pressure is past "
            f"{eviction.memory_pressure_threshold:g}"
        )
    table = arbiter.table
    candidates = table.candidates(now_ns, arbiter.ledger.pressure, arbiter.task_names) if verbose else ()
    return Status(
        _lanes(arbiter),
        tuple(_task(arbiter, task) for task in range(len(arbiter.tasks))),
        MemoryStatus(
            arbiter.ledger.arena_bytes / (1 << 20),
            arbiter.ledger.total_held / (1 << 20),
            arbiter.ledger.pressure,
            arbiter.ledger.fragmentation,
            len(table.sessions),
            arbiter.evictions,
            arbiter.red_line.used_percent,
            arbiter.red_line.limit_percent,
            arbiter.red_line.refusing,
        ),
        _degraded(arbiter, now_ns),
        _policy(arbiter, verbose=verbose),
        arbiter.timeouts,
        policy_text,
        candidates,
        _decisions(arbiter, now_ns) if verbose else (),
    )


def _lanes(arbiter: Arbiter) -> tuple[LaneStatus, ...]:
    active = {arbiter.lane_index(task) for task in range(len(arbiter.tasks))}
    return tuple(
        LaneStatus(lane.name, lane.task, lane.clusters, lane.units, index in active)
        for index, lane in enumerate(arbiter.lanes)
    )


def _task(arbiter: Arbiter, task: int) -> TaskStatus:
    profile = arbiter.tasks[task]
    latency = arbiter.latency[task]
    heap = arbiter.queues.heaps[task]
    running = arbiter.running[task]
    bit = 1 << task
    state, why = "idle", ""
    if running is not None and running.state == RUNNING:
        state = "yielding" if arbiter.yield_bits & bit else "running"
        why = running.why
    elif arbiter.operator_paused & bit:
        state = "paused (operator)"
    elif arbiter.floor.paused & bit:
        state = "paused (degraded)"
    elif arbiter.hardware_paused & bit:
        state = "paused (hardware)"
    elif heap:
        state = "queued"
    if heap and running is None:
        why = arbiter.explain(arbiter.queues.head(task))
    return TaskStatus(
        profile.name,
        profile.priority,
        profile.latency_sla_ns / 1e6,
        arbiter.lanes[arbiter.lane_index(task)].name,
        state,
        why,
        len(heap),
        profile.queue_limit,
        arbiter.queues.high_water[task],
        profile.memory_budget_mb,
        arbiter.ledger.held[task] / (1 << 20),
        latency.count,
        arbiter.missed[task],
        latency.quantile_ns(0.50) / 1e6,
        latency.quantile_ns(0.95) / 1e6,
        latency.quantile_ns(0.99) / 1e6,
        latency.max_ns / 1e6,
        Quantiles.of(arbiter.waited[task]),
        Quantiles.of(arbiter.per_token[task]),
        arbiter.tokens[task],
        _drafts(arbiter.drafted[task], arbiter.accepted[task]),
        latency.quantile_ns(0.95) <= profile.latency_sla_ns,
    )


def _drafts(offered: int, accepted: int) -> DraftStatus | None:
    return DraftStatus(offered, accepted, accepted / offered) if offered else None


def _degraded(arbiter: Arbiter, now_ns: int) -> DegradedStatus:
    floor = arbiter.floor
    promised = arbiter.config.limits.min_token_per_second
    since = floor.degraded_since_ns
    paused = tuple(name for task, name in enumerate(arbiter.task_names) if floor.paused >> task & 1)
    why = ""
    if since >= 0:
        why = f"{floor.rate:.1f} tokens/s against a floor of {promised:g}; paused: {', '.join(paused) or 'nobody left'}"
    return DegradedStatus(
        since >= 0, (now_ns - since) / 1e9 if since >= 0 else None, paused, why, floor.rate, promised, floor.entered
    )


def _policy(arbiter: Arbiter, *, verbose: bool) -> PolicyStatus:
    policy = arbiter.policy
    return PolicyStatus(
        policy.arm,
        len(policy.arms),
        policy.arms[policy.arm].named(arbiter.task_names),
        tuple(arm.named(arbiter.task_names) for arm in policy.arms) if verbose else (),
        policy.frozen,
        policy.epoch,
        policy.reverts,
        policy.arms[policy.favourite()].named(arbiter.task_names),
    )


def _decisions(arbiter: Arbiter, now_ns: int) -> tuple[Decision, ...]:
    return tuple(
        Decision((now_ns - at_ns) / 1e9, arbiter.task_names[task], REASONS[reason])
        for at_ns, task, reason in arbiter.log.last(32)
    )
