"""Time that passes only when somebody sleeps."""

from __future__ import annotations


class FakeClock:
    """Time that passes only when somebody sleeps."""

    def __init__(self) -> None:
        self.ns = 1_000_000_000

    def now_ns(self) -> int:
        return self.ns

    def elapsed_ns(self) -> int:
        return self.ns

    def sleep_until_ns(self, at_ns: int) -> None:
        self.ns = max(self.ns, at_ns)
