"""The token floor: a promise. Five seconds below it pause low-priority tasks; hysteresis brings them back."""

from __future__ import annotations

from typing import Final

from cockpit.arbiter.config import TaskProfile

BELOW_NS: Final = 5_000_000_000
"""Time below the floor before a task is paused, and between one pause and the next."""
RECOVER_NS: Final = 10_000_000_000
"""Time above the floor and its margin before one paused task comes back."""
RECOVER_MARGIN: Final = 1.1
_SECOND_NS: Final = 1_000_000_000


class TokenFloor:
    """Watches generated tokens per second of generating time; idle time neither breaks nor keeps the promise.

    `paused` has bit t set while degraded mode pauses task t. Lowest priority first; the task that generates and urgent
    tasks are never paused. Clock readings are handed in and must not go back.
    """

    __slots__ = (
        "_above_since_ns",
        "_below_since_ns",
        "_floor",
        "_order",
        "_priorities",
        "_window_busy_ns",
        "_window_tokens",
        "below_for_ns",
        "degraded_since_ns",
        "entered",
        "paused",
        "rate",
    )

    def __init__(self, floor_tokens_per_s: float, tasks: tuple[TaskProfile, ...]) -> None:
        self._floor = floor_tokens_per_s
        self._priorities = tuple(task.priority for task in tasks)
        pausable = [index for index, task in enumerate(tasks) if task.yields]
        self._order = tuple(sorted(pausable, key=lambda index: tasks[index].priority))
        self._window_tokens = 0
        self._window_busy_ns = 0
        self._below_since_ns = -1
        self._above_since_ns = -1
        self.below_for_ns = 0
        self.degraded_since_ns = -1
        self.entered = 0
        self.paused = 0
        self.rate = 0.0

    def generated(self, task: int, tokens: int, busy_ns: int, now_ns: int) -> bool:
        """Count tokens that `task` took `busy_ns` for, pauses at the gate included. True when `paused` changed."""
        self._window_tokens += tokens
        self._window_busy_ns += busy_ns
        if self._floor <= 0 or self._window_busy_ns < _SECOND_NS:
            return False
        self.rate = self._window_tokens * 1e9 / self._window_busy_ns
        self._window_tokens = 0
        self._window_busy_ns = 0
        return self._judge(task, now_ns)

    def idle(self, now_ns: int) -> bool:
        """Nothing generates: after a while the paused come back, one at a time. True when `paused` changed."""
        self._below_since_ns = -1
        self.below_for_ns = 0
        return self._recover(now_ns)

    def _judge(self, task: int, now_ns: int) -> bool:
        if self.rate < self._floor:
            self._above_since_ns = -1
            if self._below_since_ns < 0:
                # The window that was just judged lay below too.
                self._below_since_ns = now_ns - _SECOND_NS
            self.below_for_ns = now_ns - self._below_since_ns
            if now_ns - self._below_since_ns >= BELOW_NS:
                self._below_since_ns = now_ns
                return self._pause_one(task, now_ns)
            return False
        self._below_since_ns = -1
        self.below_for_ns = 0
        if self.rate >= self._floor * RECOVER_MARGIN:
            return self._recover(now_ns)
        self._above_since_ns = -1
        return False

    def _pause_one(self, generating: int, now_ns: int) -> bool:
        if self.degraded_since_ns < 0:
            self.degraded_since_ns = now_ns
            self.entered += 1
        for index in self._order:
            if index != generating and self._priorities[index] <= self._priorities[generating]:
                bit = 1 << index
                if not self.paused & bit:
                    self.paused |= bit
                    return True
        return False

    def _recover(self, now_ns: int) -> bool:
        if self.degraded_since_ns < 0:
            return False
        if self._above_since_ns < 0:
            self._above_since_ns = now_ns
        if now_ns - self._above_since_ns < RECOVER_NS:
            return False
        self._above_since_ns = now_ns
        for index in reversed(self._order):
            bit = 1 << index
            if self.paused & bit:
                self.paused &= ~bit
                if not self.paused:
                    self.degraded_since_ns = -1
                return True
        self.degraded_since_ns = -1
        return False
