"""Memory in use against `max_gpu_memory_percent`: idle sessions go first; if that is not enough, no new ones come."""

from __future__ import annotations

from typing import Final

from cockpit.arbiter.memory import SessionMemory

MARGIN_PERCENT: Final = 2.0
"""So far below the limit the refusals end."""


class MemoryRedLine:
    """Judged about once a second. What was evicted is given back by its owners, so refusals begin at the earliest one
    look after the last eviction.

    used_percent: at the last look, None before the first. refusing: new sessions of tasks that yield are refused.
    evicted: sessions that went for its sake. entered: how often refusals began.
    """

    __slots__ = ("entered", "evicted", "limit_percent", "refusing", "used_percent")

    def __init__(self, limit_percent: float) -> None:
        self.limit_percent = limit_percent
        self.used_percent: float | None = None
        self.refusing = False
        self.evicted = 0
        self.entered = 0

    def look(self, used_bytes: int, total_bytes: int, memory: SessionMemory, now_ns: int) -> None:
        """used_bytes, total_bytes: of the device's memory now."""
        self.used_percent = used_bytes * 100 / total_bytes
        if self.used_percent > self.limit_percent:
            gone = memory.relieve(used_bytes - int(total_bytes * self.limit_percent / 100), now_ns)
            self.evicted += gone
            if not gone and not self.refusing:
                self.refusing = True
                self.entered += 1
        elif self.used_percent <= self.limit_percent - MARGIN_PERCENT:
            self.refusing = False
