"""The faults of one repetition, each switched on and off at its time."""

from __future__ import annotations

import threading
import time
from collections.abc import Sequence
from contextlib import ExitStack
from dataclasses import dataclass

from hil.faults.base import Evidence, OpenFault
from models.errors import CockpitError


@dataclass(frozen=True, slots=True)
class Planned:
    """at_s: from the first sample of the stimulus. for_s: None keeps it on until the timeline is ended."""

    at_s: float
    for_s: float | None
    open: OpenFault


class Timeline:
    """`start`, and `end` once the stimulus is over: what is still on goes off. One thread per fault."""

    def __init__(self, planned: Sequence[Planned]) -> None:
        self._planned = planned
        self._over = threading.Event()
        self._evidence: list[Evidence] = []
        self._errors: list[Exception] = []
        self._lock = threading.Lock()
        self._threads = [threading.Thread(target=self._run, args=(one,), name="fault", daemon=True) for one in planned]
        self.off_s = 0.0
        """Monotonic time at which the last fault went off."""

    @property
    def wait_s(self) -> float:
        """Until the last fault with a length is off, from the start."""
        return max((one.at_s + one.for_s for one in self._planned if one.for_s is not None), default=0.0)

    def start(self) -> None:
        self._began_s = time.monotonic()
        for thread in self._threads:
            thread.start()

    def end(self) -> list[str]:
        """Wait until every fault is off; what shows that each was on. Raises what a fault raised, FaultNotOn."""
        time.sleep(max(0.0, self._began_s + self.wait_s - time.monotonic()))
        self._over.set()
        for thread in self._threads:
            thread.join()
        if self._errors:
            raise self._errors[0]
        return [f"{one.fault}: {one.require()}" for one in self._evidence]

    def _run(self, one: Planned) -> None:
        time.sleep(max(0.0, self._began_s + one.at_s - time.monotonic()))
        try:
            with ExitStack() as opened:
                evidence = opened.enter_context(one.open())
                self._over.wait(one.for_s)
            with self._lock:
                self._evidence.append(evidence)
        except (CockpitError, OSError) as error:
            with self._lock:
                self._errors.append(error)
        finally:
            with self._lock:
                self.off_s = max(self.off_s, time.monotonic())
