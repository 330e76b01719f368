"""Waiting for what another thread does."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable

LONG_S = 60.0
"""The limit of every wait in the tests: reached only where something hangs, whatever else the machine does."""


def until(condition: Callable[[], object], what: str = "", within_s: float = LONG_S) -> None:
    """Return once `condition()` is true. Raises AssertionError after `within_s`."""
    ends_s = time.monotonic() + within_s
    while not condition():
        assert time.monotonic() < ends_s, f"did not come to pass: {what or condition}"
        time.sleep(0.001)


def ended(thread: threading.Thread) -> None:
    """Join `thread`. Raises AssertionError where it does not end."""
    thread.join(LONG_S)
    assert not thread.is_alive(), f"{thread.name} hangs"
