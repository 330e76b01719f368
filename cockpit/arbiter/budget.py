"""Memory: what is planned at start, and who holds how much of the KV arena while running."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass

from cockpit.arbiter.config import ArbiterConfig
from models.errors import StartupError


def kv_bytes(layers: int, kv_heads: int, head_dim: int, tokens: int, bytes_per_value: int) -> int:
    """Keys and values of `tokens` positions."""
    return 2 * layers * kv_heads * head_dim * tokens * bytes_per_value


@dataclass(frozen=True, slots=True)
class Footprint:
    """Measured peak of one task on this device. Weights are named so that tasks sharing a file share its bytes."""

    task: str
    weights: Mapping[str, int]
    """Weight file (its sha256 or name) -> bytes on the device."""
    activation_bytes: int
    kv_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """Device memory as planned at start, bytes. `arena_bytes`: one KV arena for all tasks."""

    limit_bytes: int
    weight_bytes: int
    activation_bytes: Mapping[str, int]
    arena_bytes: int

    @property
    def total_bytes(self) -> int:
        return self.weight_bytes + sum(self.activation_bytes.values()) + self.arena_bytes


def plan_memory(config: ArbiterConfig, total_bytes: int, footprints: Sequence[Footprint]) -> MemoryPlan:
    """Add up measured peaks under the red line: weights once, activations per task, KV from one arena.

    Raises StartupError, with the sum shown, when a task is over its budget or the whole over the limit.
    """
    limit = int(total_bytes * config.limits.max_gpu_memory_percent / 100)
    weights: dict[str, int] = {}
    for footprint in footprints:
        weights.update(footprint.weights)
        task = config.tasks[footprint.task]
        own = sum(footprint.weights.values()) + footprint.activation_bytes + footprint.kv_bytes
        budget = task.memory_budget_mb << 20
        if own > budget:
            raise StartupError(
                f"{task.name} needs {_mb(own)} MB (weights {_mb(sum(footprint.weights.values()))} + activations "
                f"{_mb(footprint.activation_bytes)} + KV {_mb(footprint.kv_bytes)}), its memory_budget_mb is "
                f"{task.memory_budget_mb}: raise the budget, or choose a smaller model or a shorter context"
            )
    activations = {footprint.task: footprint.activation_bytes for footprint in footprints}
    plan = MemoryPlan(limit, sum(weights.values()), activations, sum(f.kv_bytes for f in footprints))
    if plan.total_bytes > limit:
        parts = " + ".join(f"activations of {task} {_mb(size)}" for task, size in activations.items())
        raise StartupError(
            f"weights {_mb(plan.weight_bytes)} + {parts} + KV {_mb(plan.arena_bytes)} = {_mb(plan.total_bytes)} MB, "
            f"the limit is {limit >> 20} MB ({config.limits.max_gpu_memory_percent:g} % of {_mb(total_bytes)} MB): "
            "lower the contexts or raise max_gpu_memory_percent"
        )
    return plan


def _mb(size_bytes: int) -> int:
    return -(-size_bytes >> 20)


class KvLedger:
    """Who holds how much of the KV arena, in whole pages. It counts; the engine's arena owns the bytes."""

    __slots__ = ("_page", "arena_bytes", "asked", "budgets", "held", "total_held")

    def __init__(self, arena_bytes: int, page_bytes: int, task_budgets: Sequence[int]) -> None:
        self.arena_bytes = arena_bytes
        self._page = page_bytes
        self.budgets = list(task_budgets)
        self.held = [0] * len(self.budgets)
        self.asked = 0
        self.total_held = 0

    def paged(self, size_bytes: int) -> int:
        """Rounded up to whole pages."""
        return -(-size_bytes // self._page) * self._page

    def could_ever_hold(self, task: int, size_bytes: int) -> bool:
        size = self.paged(size_bytes)
        return size <= self.budgets[task] and size <= self.arena_bytes

    def add(self, task: int, paged_bytes: int, asked_bytes: int) -> None:
        """Book (or with negative values give back) pages for a task."""
        self.held[task] += paged_bytes
        self.total_held += paged_bytes
        self.asked += asked_bytes

    @property
    def pressure(self) -> float:
        return self.total_held / self.arena_bytes if self.arena_bytes else 0.0

    @property
    def fragmentation(self) -> float:
        """Share of the held pages that nobody asked for: what rounding to pages costs. 0 when nothing is held."""
        return 1.0 - self.asked / self.total_held if self.total_held else 0.0
