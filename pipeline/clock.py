"""The clock that is handed in, so that tests need not wait."""

from __future__ import annotations

import time
from typing import Protocol


class Clock(Protocol):
    """Monotonic time and waiting."""

    def now_ns(self) -> int:
        """Monotonic nanoseconds."""
        ...

    def elapsed_ns(self) -> int:
        """Nanoseconds that also pass while the machine is suspended."""
        ...

    def sleep_until_ns(self, at_ns: int) -> None:
        """Return at `at_ns` or, if that is past, at once."""
        ...


class SystemClock:
    """The machine's monotonic clock."""

    def now_ns(self) -> int:
        return time.monotonic_ns()

    def elapsed_ns(self) -> int:
        return time.clock_gettime_ns(time.CLOCK_BOOTTIME)

    def sleep_until_ns(self, at_ns: int) -> None:
        remaining_ns = at_ns - time.monotonic_ns()
        if remaining_ns > 0:
            time.sleep(remaining_ns / 1e9)
