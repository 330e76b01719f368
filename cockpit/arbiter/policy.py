"""The online policy: a small contextual bandit over safe arms, bounded by the profile, reversible, frozen on demand.

Every `update_every_requests` requests it prices the arm that ran and chooses the next one by a lower confidence bound.
An arm that misses the SLA of urgent tasks is left at once, in the middle of its epoch, and barred for a while. Where
the safe arm misses it as well, as beside a load that no arm can help against, leaving would gain nothing: then the
price of whole epochs alone decides.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from itertools import product
from math import log, sqrt
from typing import Any, Final

from cockpit.arbiter.config import ArbiterConfig

CONTEXTS: Final = 4
"""Bit 0: memory pressure past the threshold. Bit 1: most urgent requests found another task running."""
MAX_ARMS: Final = 64
_MISS_SHARE: Final = 0.05
_MISS_MINIMUM: Final = 5
"""Urgent SLA misses an arm may have in one epoch before it is left: this many, or the share, whichever is more. An SLA
is a promise about the P95."""
_BAR_EPOCHS: Final = 32
_SAFE_MISSES: Final = 2
"""Epochs in a row after which the safe arm is taken to miss as well; it is tried again after _BAR_EPOCHS more."""
_MEMORY: Final = 200
"""Epochs an arm remembers: older ones fade, so that a machine that ages is learnt again."""
_MISSED_COST: Final = 10.0
_URGENT_WEIGHT: Final = 2.0


@dataclass(frozen=True, slots=True)
class Arm:
    """One way to run. `widths`: per task (in the order of the profile) how many clusters of its mask it gets."""

    widths: tuple[int, ...]
    prefill_chunk_tokens: int
    draft_tokens: int
    kv_keep_ratio: float
    l2_window_mb: int
    yielding: bool

    def named(self, tasks: Sequence[str]) -> str:
        """Short text for people."""
        widths = " ".join(f"{task}:{width}" for task, width in zip(tasks, self.widths, strict=True))
        gate = "yielding" if self.yielding else "not yielding"
        return (
            f"{widths} chunk {self.prefill_chunk_tokens} draft {self.draft_tokens} keep {self.kv_keep_ratio:g} "
            f"l2 {self.l2_window_mb} MB {gate}"
        )


def arms_of(config: ArbiterConfig) -> tuple[Arm, ...]:
    """All arms of the profile that change anything, the safe one first: whole masks and the first value of every list.

    Where the full product would be more than MAX_ARMS, only arms that differ from the safe one in a single knob stay.
    """
    bounds = config.policy
    widths = [len(task.clusters) for task in config.tasks.values()]
    width_choices = [tuple(range(width, 0, -1)) if config.widths_act else (width,) for width in widths]
    knobs: list[tuple[Any, ...]] = [
        *width_choices,
        bounds.prefill_chunk_tokens,
        bounds.draft_tokens,
        bounds.kv_keep_ratio,
        bounds.l2_window_mb,
        bounds.yielding,
    ]
    count = len(width_choices)
    combinations = list(product(*knobs))
    if len(combinations) > MAX_ARMS:
        first = combinations[0]
        combinations = [c for c in combinations if sum(a != b for a, b in zip(c, first, strict=True)) <= 1][:MAX_ARMS]
    return tuple(Arm(tuple(c[:count]), *c[count:]) for c in combinations)


class _ArmStats:
    __slots__ = ("barred_until", "count", "mean", "spread", "strikes")

    def __init__(self) -> None:
        self.count = 0.0
        self.mean = 0.0
        self.spread = 0.0
        self.strikes = 0
        self.barred_until = 0

    def add(self, cost: float) -> None:
        self.count = min(self.count + 1, _MEMORY)
        step = cost - self.mean
        self.mean += step / self.count
        self.spread += (step * (cost - self.mean) - self.spread) / self.count


class Policy:
    """Chooses the arm. `arm` is the index that runs now; the arbiter reads `changed` after each `observe`."""

    __slots__ = (
        "_arm_epochs",
        "_every",
        "_misses",
        "_requests",
        "_safe_due",
        "_safe_missed",
        "_stats",
        "_sum",
        "_sum_sq",
        "_sum_urgent",
        "_urgent",
        "_urgent_beside",
        "arm",
        "arms",
        "context",
        "epoch",
        "frozen",
        "reverts",
    )

    def __init__(self, arms: tuple[Arm, ...], *, every: int, frozen: bool) -> None:
        self.arms = arms
        self._every = every
        self.frozen = frozen
        self._stats = tuple(tuple(_ArmStats() for _ in arms) for _ in range(CONTEXTS))
        self.arm = 0
        self.context = 0
        self.epoch = 0
        self.reverts = 0
        self._arm_epochs = [0] * len(arms)
        self._safe_missed = [0] * CONTEXTS
        self._safe_due = 0
        self._clear()

    def _clear(self) -> None:
        self._requests = 0
        self._misses = 0
        self._sum = 0.0
        self._urgent = 0
        self._urgent_beside = 0
        self._sum_urgent = 0.0
        self._sum_sq = 0.0

    def observe(self, latency_ns: int, sla_ns: int, urgent: bool, beside: bool) -> bool:
        """Count one finished request. True when an epoch ended or the arm must be left: call `choose` then.

        beside: another task was running when it was submitted.
        """
        load = latency_ns / sla_ns
        self._requests += 1
        if urgent:
            self._urgent += 1
            self._sum_urgent += load
            self._sum_sq += load * load
            if beside:
                self._urgent_beside += 1
            if load > 1.0:
                self._misses += 1
                if self._misses >= _MISS_MINIMUM and self._misses > _MISS_SHARE * self._every and self._can_leave():
                    return True
        else:
            self._sum += load if load < _MISSED_COST else _MISSED_COST
        return self._requests >= self._every

    def cost(self, rate_tokens_per_s: float = 0.0, floor_tokens_per_s: float = 0.0) -> float:
        """Price of the epoch so far: urgent load (mean plus jitter), the others' load, token floor, missed SLAs."""
        price = 0.0
        if self._urgent:
            mean = self._sum_urgent / self._urgent
            jitter = sqrt(max(0.0, self._sum_sq / self._urgent - mean * mean))
            price += _URGENT_WEIGHT * (mean + 2.0 * jitter)
        others = self._requests - self._urgent
        if others:
            price += self._sum / others
        if floor_tokens_per_s > 0 and rate_tokens_per_s > 0:
            price += max(0.0, floor_tokens_per_s / rate_tokens_per_s - 1.0)
        return price + (_MISSED_COST if self._broken() else 0.0)

    def _broken(self) -> bool:
        return self._misses >= _MISS_MINIMUM and self._misses > _MISS_SHARE * self._requests

    def _can_leave(self) -> bool:
        """Whether another arm is in force than the safe one, and the safe one keeps what this one misses."""
        return self.arm != 0 and not self._safe_misses()

    def _safe_misses(self) -> bool:
        """Whether the safe arm missed urgent SLAs in this context when it last ran."""
        return self._safe_missed[self.context] >= _SAFE_MISSES

    def choose(self, memory_short: bool, rate_tokens_per_s: float = 0.0, floor_tokens_per_s: float = 0.0) -> bool:
        """Close the epoch and pick the arm of the next one. True when the arm changed."""
        broken = self._broken()
        leave = broken and self._can_leave()
        cost = self.cost(rate_tokens_per_s, floor_tokens_per_s)
        stats = self._stats[self.context][self.arm]
        stats.add(cost)
        self.epoch += 1
        self._arm_epochs[self.arm] += 1
        if self.arm == 0:
            self._safe_missed[self.context] = self._safe_missed[self.context] + 1 if broken else 0
            self._safe_due = self.epoch + _BAR_EPOCHS
        crowded = self._urgent_beside * 2 > self._urgent
        self.context = (1 if memory_short else 0) | (2 if crowded else 0)
        self._clear()
        before = self.arm
        if self.frozen:
            return False
        if leave:
            self._bar(stats)
            return True
        self.arm = self._best()
        return self.arm != before

    def red_line(self) -> bool:
        """A red line was about to break under this arm: leave it now for the safe one. True when the arm changed."""
        if self.arm == 0 or self.frozen:
            return False
        self._bar(self._stats[self.context][self.arm])
        self._clear()
        return True

    def _bar(self, stats: _ArmStats) -> None:
        stats.strikes += 1
        stats.barred_until = self.epoch + _BAR_EPOCHS * (1 << min(stats.strikes, 16))
        self.reverts += 1
        self.arm = 0

    def _open_arms(self) -> list[int]:
        """Arms that are not barred in this context. A bar is for the safe arm's sake: it holds while that keeps."""
        rows = self._stats[self.context]
        return [i for i, s in enumerate(rows) if s.barred_until <= self.epoch or self._safe_misses()]

    def _best(self) -> int:
        rows = self._stats[self.context]
        open_arms = self._open_arms()
        for index in open_arms:
            if rows[index].count < 1:
                return index
        if not open_arms or (self._safe_misses() and self.epoch >= self._safe_due):
            return 0
        total = sum(rows[i].count for i in open_arms)
        least = (0.02 * min(rows[i].mean for i in open_arms)) ** 2

        def bound(index: int) -> float:
            row = rows[index]
            # An arm tried a few times only may look calmer than it is: its spread counts as 2 % at the least.
            return row.mean - sqrt(max(row.spread, least) * log(total + 1.0) / row.count)

        return min(open_arms, key=bound)

    def reset(self) -> None:
        """Forget everything learnt and go back to the safe arm."""
        self._stats = tuple(tuple(_ArmStats() for _ in self.arms) for _ in range(CONTEXTS))
        self.arm = 0
        self.context = 0
        self.epoch = 0
        self._arm_epochs = [0] * len(self.arms)
        self._safe_missed = [0] * CONTEXTS
        self._safe_due = 0
        self._clear()

    def favourite(self) -> int:
        """The arm with the lowest mean cost in this context among those tried; the safe arm before any was."""
        rows = self._stats[self.context]
        tried = [i for i in self._open_arms() if rows[i].count]
        return min(tried, key=lambda i: rows[i].mean) if tried else 0

    def epochs_of(self, arm: int) -> int:
        return self._arm_epochs[arm]

    def state(self) -> dict[str, Any]:
        """What was learnt, JSON-able. The caller writes it, atomically, under the hardware's fingerprint."""
        rows = [[[s.count, s.mean, s.spread, s.strikes, s.barred_until] for s in row] for row in self._stats]
        return {
            "version": 1,
            "arms": [asdict(arm) for arm in self.arms],
            "epoch": self.epoch,
            "context": self.context,
            "arm": self.arm,
            "stats": rows,
            "safe_missed": list(self._safe_missed),
            "safe_due": self._safe_due,
        }

    def restore(self, state: Mapping[str, Any]) -> str | None:
        """Take back what `state` gave. None when it was taken, else why it does not fit (and nothing changed)."""
        if state.get("version") != 1:
            return f"version {state.get('version')!r} is not 1"
        mine = [{**asdict(arm), "widths": list(arm.widths)} for arm in self.arms]
        theirs = [{**arm, "widths": list(arm["widths"])} for arm in state.get("arms", ())]
        if theirs != mine:
            return "the profile offers other arms than when it was saved"
        rows = state.get("stats", ())
        if (
            len(rows) != CONTEXTS
            or any(len(row) != len(self.arms) for row in rows)
            or not 0 <= state["context"] < CONTEXTS
        ):
            return "its table of costs is not whole"
        for row, saved_row in zip(self._stats, rows, strict=True):
            for stats, saved in zip(row, saved_row, strict=True):
                stats.count, stats.mean, stats.spread, stats.strikes, stats.barred_until = saved
        self._safe_missed = [int(count) for count in state.get("safe_missed", [0] * CONTEXTS)]
        self._safe_due = int(state.get("safe_due", 0))
        self.epoch = int(state["epoch"])
        self.context = int(state["context"])
        self.arm = int(state["arm"]) % len(self.arms)
        self._clear()
        return None
