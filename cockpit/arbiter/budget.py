"""Memory while running: who holds how much of the KV arena. The plan at start: cockpit/profile/memory_budget.py."""

from __future__ import annotations

from collections.abc import Sequence


def kv_bytes(layers: int, kv_heads: int, head_dim: int, tokens: int, bytes_per_value: int) -> int:
    """Keys and values of `tokens` positions."""
    return 2 * layers * kv_heads * head_dim * tokens * bytes_per_value


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
