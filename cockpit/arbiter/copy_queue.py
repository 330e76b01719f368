"""Host-device copies in chunks, the most urgent task's first: a long copy delays an urgent one by one chunk at most.

Who copies in this order: cockpit/scheduling/copy_scheduler.py.
"""

from __future__ import annotations

import heapq
from dataclasses import dataclass


@dataclass(frozen=True, slots=True)
class CopyChunk:
    """Copy `size_bytes` from `offset_bytes` of transfer `ticket` now. `last` closes the transfer."""

    ticket: int
    task: int
    offset_bytes: int
    size_bytes: int
    last: bool


class CopyQueue:
    """Transfers ordered by priority, then by arrival, handed out one chunk at a time. Bounded; not thread-safe."""

    __slots__ = ("_chunk", "_heap", "_limit", "_next", "_priorities", "_transfers", "queued_bytes")

    def __init__(self, priorities: tuple[int, ...], chunk_bytes: int = 4 << 20, limit: int = 256) -> None:
        self._priorities = priorities
        self._chunk = chunk_bytes
        self._limit = limit
        self._heap: list[tuple[int, int]] = []
        self._transfers: dict[int, list[int]] = {}
        self._next = 0
        self.queued_bytes = 0

    def submit(self, task: int, size_bytes: int) -> int | None:
        """Queue a transfer; its ticket, or None when the queue is full (the caller waits and asks again)."""
        if size_bytes <= 0:
            raise ValueError(f"a copy of {size_bytes} bytes: nothing to move, do not submit it")
        if len(self._transfers) >= self._limit:
            return None
        ticket = self._next
        self._next += 1
        self._transfers[ticket] = [task, 0, size_bytes]
        heapq.heappush(self._heap, (-self._priorities[task], ticket))
        self.queued_bytes += size_bytes
        return ticket

    def next_chunk(self) -> CopyChunk | None:
        """The chunk to copy now; None when nothing waits."""
        while self._heap:
            ticket = self._heap[0][1]
            transfer = self._transfers.get(ticket)
            if transfer is None:
                heapq.heappop(self._heap)
                continue
            task, offset, total = transfer
            size = min(self._chunk, total - offset)
            last = offset + size == total
            self.queued_bytes -= size
            if last:
                heapq.heappop(self._heap)
                del self._transfers[ticket]
            else:
                transfer[1] = offset + size
            return CopyChunk(ticket, task, offset, size, last)
        return None

    def cancel(self, ticket: int) -> bool:
        """Forget what is left of a transfer. False when it was done already."""
        transfer = self._transfers.pop(ticket, None)
        if transfer is None:
            return False
        self.queued_bytes -= transfer[2] - transfer[1]
        return True
