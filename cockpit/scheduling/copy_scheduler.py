"""Bulk copies between host and device, one chunk at a time over all lanes, in the order that the arbiter's queue gives.

A copy that is under way delays a more urgent one by one chunk at most (20 us for 1 MiB over PCIe 5 x16). Tokens and
other small things do not queue: they are shorter than a chunk themselves.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Mapping

from cockpit.arbiter.copy_queue import CopyChunk, CopyQueue

CHUNK_BYTES = 1 << 20
Move = Callable[[int, int], None]
"""Copies (offset, size) bytes of the transfer and returns when they are there."""


class CopyScheduler:
    """Lets threads copy in turn. `chunks`: how many were copied; `waited`: how many of them had to wait for another."""

    def __init__(self, task_of_lane: Mapping[str, int], priorities: tuple[int, ...], *, limit: int = 256) -> None:
        self.chunks = 0
        self.waited = 0
        self._task_of_lane = task_of_lane
        self._queue = CopyQueue(priorities, CHUNK_BYTES, limit)
        self._turn = threading.Condition()
        self._current: CopyChunk | None = None

    def copy(self, lane: str, size_bytes: int, move: Move) -> None:
        """Move the whole transfer. What `move` raises comes out here; the rest of that transfer is forgotten."""
        ticket = self._submit(self._task_of_lane[lane], size_bytes)
        last = False
        try:
            while not last:
                chunk = self._my_turn(ticket)
                try:
                    move(chunk.offset_bytes, chunk.size_bytes)
                finally:
                    self._done()
                last = chunk.last
        finally:
            if not last:
                self._forget(ticket)

    def _submit(self, task: int, size_bytes: int) -> int:
        with self._turn:
            while (ticket := self._queue.submit(task, size_bytes)) is None:
                self._turn.wait()
            return ticket

    def _my_turn(self, ticket: int) -> CopyChunk:
        """Wait until the queue's next chunk is one of this transfer."""
        waited = False
        with self._turn:
            while True:
                if self._current is None:
                    self._current = self._queue.next_chunk()
                    if self._current is not None and self._current.ticket != ticket:
                        self._turn.notify_all()
                if self._current is not None and self._current.ticket == ticket:
                    self.chunks += 1
                    self.waited += waited
                    return self._current
                waited = True
                self._turn.wait()

    def _forget(self, ticket: int) -> None:
        """Give up what is left of a transfer, also a chunk of it whose turn has come meanwhile."""
        with self._turn:
            self._queue.cancel(ticket)
            if self._current is not None and self._current.ticket == ticket:
                self._current = None
            self._turn.notify_all()

    def _done(self) -> None:
        with self._turn:
            self._current = None
            self._turn.notify_all()
