"""Faults of the service's process: killed at once, or stopped as by a debugger or a freezer."""

from __future__ import annotations

import os
import signal
import time
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Literal, Protocol

from hil.faults.base import Evidence

ServiceFault = Literal["killed", "stopped"]
_SEEN_S = 5.0


class Restartable(Protocol):
    """A process that the rig started."""

    @property
    def pid(self) -> int: ...

    def wait_dead(self, timeout_s: float) -> int | None:
        """The exit code, negative for a signal; None while it runs."""
        ...

    def start(self) -> None:
        """Start it again, as its service manager does."""
        ...


@contextmanager
def service(process: Restartable, kind: ServiceFault) -> Iterator[Evidence]:
    """killed: SIGKILL, and started again as systemd's Restart=on-failure does. stopped: SIGSTOP, then SIGCONT."""
    evidence = Evidence(f"service {kind}")
    pid = process.pid
    if kind == "killed":
        os.kill(pid, signal.SIGKILL)
        code = process.wait_dead(_SEEN_S)
        if code == -signal.SIGKILL:
            evidence.add(f"process {pid} ended by signal {-code}")
        process.start()
        yield evidence
        return
    os.kill(pid, signal.SIGSTOP)
    try:
        if _comes_true(lambda: state_of(pid) == "T"):
            evidence.add(f"process {pid} was in state T")
        yield evidence
    finally:
        os.kill(pid, signal.SIGCONT)


def state_of(pid: int) -> str:
    """The letter that /proc shows: R, S, D, T (stopped), Z."""
    return Path(f"/proc/{pid}/stat").read_text().rpartition(")")[2].split()[0]


def _comes_true(condition: Callable[[], bool]) -> bool:
    end_s = time.monotonic() + _SEEN_S
    while time.monotonic() < end_s:
        if condition():
            return True
        time.sleep(0.01)
    return False
