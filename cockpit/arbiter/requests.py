"""A request as the arbiter sees it, the reasons it gives, a ring of decisions and a histogram, all of fixed size."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Final

FREE: Final = 0
QUEUED: Final = 1
RUNNING: Final = 2
REFUSED: Final = 3

# Why a request stands where it stands. Indices into REASONS.
NONE: Final = 0
STARTED: Final = 1
STARTED_OTHERS_YIELD: Final = 2
STARTED_AGED: Final = 3
QUEUE_FULL: Final = 4
OVER_BUDGET: Final = 5
PAUSED_BY_OPERATOR: Final = 6
PAUSED_DEGRADED: Final = 7
LANE_BUSY: Final = 8
WAITS_FOR_MEMORY: Final = 9
TIMED_OUT: Final = 10
SLICE_OVER: Final = 11
EVICTED: Final = 12
IN_ORDER: Final = 13
CANCELLED: Final = 14
PAUSED_HARDWARE: Final = 15
MEMORY_RED_LINE: Final = 16

REASONS: Final = (
    "",
    "first in order (priority, then slack) and its lane is free",
    "first in order; tasks it shares units or bandwidth with yield at their next boundary",
    "waited long enough to be raised above requests of higher priority",
    "refused: the task's queue is full (queue_limit)",
    "refused: it needs more memory than the task's memory_budget_mb or the red line leaves",
    "held: the task is paused by an operator (o3ctl resume TASK)",
    "held: degraded mode paused the task until the token floor holds again",
    "waits: a task that it may not disturb runs on units it needs",
    "waits: memory is held by requests that run now",
    "stopped: past the task's timeout",
    "gave its lane back after one SLA's time because a shorter request waits; goes on behind it",
    "stopped: its session was evicted",
    "waits: others are before it in the queue",
    "cancelled by its owner",
    "held: heat or power slows the hardware down; background tasks wait until that is over",
    "refused: memory in use is past max_gpu_memory_percent and nothing idle is left to evict",
)

CONTINUE: Final = 0
"""`report` answers: go on."""
YIELD: Final = 1
"""Park at the gate until it opens, then go on."""
RELEASE: Final = 2
"""Stop at this boundary and hand the lane back (`requeue`): the request goes on later, degraded."""
STOP: Final = 3
"""Finish with what there is."""


class Request:
    """One request. Owned by the arbiter's pool; valid for its holder until `finish` or a refusal.

    kv_bytes: what its session must be able to hold. owner: the task whose budget holds the session.
    chunk_tokens, draft_tokens, keep_ratio: what the decision gave.
    first_token_ns: when its first token was reported, 0 before; its latency ends there (TTFT) unless it is urgent.
    judged: somebody waits for it; what is computed ahead of need is in no latency and never late.
    batch: it holds the lane for several texts, its members, and at each boundary other requests of its task go first.
    key: place in its queue, lower first. degraded: it was late and now runs behind shorter ones with less KV.
    """

    __slots__ = (
        "batch",
        "chunk_tokens",
        "deadline_ns",
        "degraded",
        "draft_tokens",
        "expected_ns",
        "first_token_ns",
        "judged",
        "keep_ratio",
        "key",
        "kv_bytes",
        "lane",
        "owner",
        "reason",
        "reported_ns",
        "session",
        "slice_ends_ns",
        "slot",
        "started_ns",
        "state",
        "submitted_ns",
        "task",
        "tokens",
    )

    def __init__(self, slot: int) -> None:
        self.slot = slot
        self.state = FREE
        self.task = 0
        self.session: str | None = None
        self.owner = 0
        self.kv_bytes = 0
        self.expected_ns = 0
        self.submitted_ns = 0
        self.deadline_ns = 0
        self.started_ns = 0
        self.reported_ns = 0
        self.slice_ends_ns = 0
        self.lane = 0
        self.first_token_ns = 0
        self.judged = True
        self.batch = False
        self.chunk_tokens = 0
        self.draft_tokens = 0
        self.keep_ratio = 1.0
        self.key = 0
        self.tokens = 0
        self.degraded = False
        self.reason = NONE

    @property
    def why(self) -> str:
        """The reason in words."""
        return REASONS[self.reason]


class DecisionLog:
    """Ring of the last decisions, for `o3ctl status --verbose`. Entries are overwritten, never allocated."""

    __slots__ = ("_at_ns", "_reason", "_size", "_task", "written")

    def __init__(self, size: int = 256) -> None:
        self._size = size
        self._at_ns = [0] * size
        self._task = [0] * size
        self._reason = [0] * size
        self.written = 0

    def note(self, now_ns: int, task: int, reason: int) -> None:
        index = self.written % self._size
        self._at_ns[index] = now_ns
        self._task[index] = task
        self._reason[index] = reason
        self.written += 1

    def last(self, count: int) -> list[tuple[int, int, int]]:
        """Newest first: (ns, task index, reason)."""
        held = min(count, self.written, self._size)
        indices = [(self.written - 1 - back) % self._size for back in range(held)]
        return [(self._at_ns[i], self._task[i], self._reason[i]) for i in indices]


def _upper_ns(bucket: int) -> int:
    """The largest value that a bucket of LatencyHistogram counts."""
    if bucket < 32:
        return bucket
    shift = (bucket >> 4) - 1
    return ((bucket - (shift << 4)) + 1 << shift) - 1


class LatencyHistogram:
    """Counts per sixteenth of an octave of nanoseconds: quantiles at most 6.3 % too high, at a fixed size."""

    __slots__ = ("_counts", "count", "max_ns", "sum_ns")

    def __init__(self) -> None:
        self._counts = [0] * 1024
        self.count = 0
        self.max_ns = 0
        self.sum_ns = 0

    def add(self, value_ns: int) -> None:
        shift = value_ns.bit_length() - 5
        bucket = value_ns if shift <= 0 else (shift << 4) + (value_ns >> shift)
        self._counts[bucket] += 1
        self.count += 1
        self.sum_ns += value_ns
        self.max_ns = max(self.max_ns, value_ns)

    def copy(self) -> LatencyHistogram:
        """As it is now."""
        copied = LatencyHistogram()
        copied._counts = list(self._counts)
        copied.count, copied.sum_ns, copied.max_ns = self.count, self.sum_ns, self.max_ns
        return copied

    def below(self, bounds_ns: Sequence[int]) -> tuple[int, ...]:
        """How many values were at most each of these rising bounds, as far as their buckets tell: a value up to 6.3 %
        below a bound may count as above it.
        """
        found, seen, bucket = [], 0, 0
        for bound in bounds_ns:
            while bucket < len(self._counts) and _upper_ns(bucket) <= bound:
                seen += self._counts[bucket]
                bucket += 1
            found.append(seen)
        return tuple(found)

    def quantile_ns(self, share: float) -> int:
        """Upper edge of the bucket that holds the quantile; 0 when nothing was counted."""
        wanted = share * self.count
        seen = 0
        for bucket, count in enumerate(self._counts):
            seen += count
            if count and seen >= wanted:
                return min(_upper_ns(bucket), self.max_ns)
        return 0

    def clear(self) -> None:
        for bucket in range(len(self._counts)):
            self._counts[bucket] = 0
        self.count = 0
        self.sum_ns = 0
        self.max_ns = 0
