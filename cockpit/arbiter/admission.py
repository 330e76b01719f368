"""Who may queue and in which order: bounded queues, priority then slack, ageing."""

from __future__ import annotations

import heapq
from typing import Final

from cockpit.arbiter.config import URGENT_PRIORITY, TaskProfile
from cockpit.arbiter.requests import FREE, QUEUE_FULL, QUEUED, REFUSED, Request

AGEING_STEP_NS: Final = 2_000_000_000
"""A waiting request rises by one priority level each time this passes; never into the urgent levels."""

MOST_MEMBERS: Final = 32
"""Texts in the batches of all tasks together: see members.py."""

_SLACK_BITS: Final = 64
_SLOT_BITS: Final = 16
_SLOT_MASK: Final = (1 << _SLOT_BITS) - 1


def order_key(profile_priority: int, latest_start_ns: int, submitted_ns: int, slot: int) -> int:
    """Place in line as one integer: level, then the latest time at which it must start, then the slot.

    Slack shrinks alike for all, so the latest start orders by slack and never has to be recomputed. Ageing is in the
    level: of two requests, one submitted n steps earlier stands n priority levels higher. Urgent levels do not age.
    """
    level = 10 - profile_priority
    if profile_priority < URGENT_PRIORITY:
        level += submitted_ns // AGEING_STEP_NS
    return (((level << _SLACK_BITS) + max(latest_start_ns, 0)) << _SLOT_BITS) | slot


def slot_of(key: int) -> int:
    """The slot at the end of an order key."""
    return key & _SLOT_MASK


class Queues:
    """One bounded heap per task over a fixed pool of requests."""

    __slots__ = ("_free", "_limits", "heaps", "high_water", "refusals", "requests", "waiting")

    def __init__(self, tasks: tuple[TaskProfile, ...]) -> None:
        size = sum(task.queue_limit for task in tasks) + len(tasks) + MOST_MEMBERS
        self.requests = tuple(Request(slot) for slot in range(size))
        self._free = list(reversed(self.requests))
        self._limits = tuple(task.queue_limit for task in tasks)
        self.heaps: tuple[list[int], ...] = tuple([] for _ in tasks)
        self.high_water = [0] * len(tasks)
        self.waiting = 0
        """Bit t is set while task t has a request queued."""
        self.refusals: list[Request] = []
        for task in range(len(tasks)):
            refused = Request(-1)
            refused.task = task
            refused.state = REFUSED
            self.refusals.append(refused)

    def take(self, task: int) -> Request | None:
        """A free request for `task`, or None when its queue is full."""
        if len(self.heaps[task]) >= self._limits[task] or not self._free:
            return None
        return self._free.pop()

    def take_member(self) -> Request | None:
        """A free request for a text of a batch, which needs no place in the queue."""
        return self._free.pop() if self._free else None

    def refuse(self, task: int, reason: int = QUEUE_FULL) -> Request:
        """The task's standing refusal, with its reason; read it before the next submit."""
        refused = self.refusals[task]
        refused.reason = reason
        return refused

    def push(self, request: Request) -> None:
        heap = self.heaps[request.task]
        heapq.heappush(heap, request.key)
        request.state = QUEUED
        self.waiting |= 1 << request.task
        self.high_water[request.task] = max(self.high_water[request.task], len(heap))

    def head(self, task: int) -> Request:
        """The request that is next in the task's queue, which must not be empty."""
        return self.requests[slot_of(self.heaps[task][0])]

    def pop(self, task: int) -> Request:
        heap = self.heaps[task]
        key = heapq.heappop(heap)
        if not heap:
            self.waiting &= ~(1 << task)
        return self.requests[key & _SLOT_MASK]

    def remove(self, request: Request) -> None:
        """Take a queued request out from wherever it stands."""
        heap = self.heaps[request.task]
        heap.remove(request.key)
        heapq.heapify(heap)
        if not heap:
            self.waiting &= ~(1 << request.task)

    def give_back(self, request: Request) -> None:
        request.state = FREE
        request.session = None
        self._free.append(request)

    @property
    def free_slots(self) -> int:
        return len(self._free)
