"""Warm-up: each task's `warmup_requests` at start, and again at wake-up when it has been still for a while."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable, Mapping
from typing import Final

from cockpit.arbiter.config import TaskProfile
from cockpit.scheduling.dispatcher import Dispatcher, Refused

log = logging.getLogger("cockpit.scheduling.warmup")

STALE_NS: Final = 60_000_000_000
"""A task that ran nothing for so long has lost its caches and clocks: it is warmed up again."""
Warmer = Callable[[str], None]
"""Runs one request of the usual kinds in the lane of that name; nobody sees its results."""


class WarmUps:
    """`at_start` blocks until all is warm; `at_wake` returns at once and warms beside, in the tasks' own lanes.

    Warming asks for its lane like any request, so a real one is never behind more than one warm-up request.
    """

    def __init__(
        self,
        dispatcher: Dispatcher,
        tasks: Mapping[str, TaskProfile],
        warmers: Mapping[str, Warmer],
        *,
        clock_ns: Callable[[], int] = time.monotonic_ns,
    ) -> None:
        self.requests = 0
        self._dispatcher = dispatcher
        self._tasks = tasks
        self._warmers = warmers
        self._clock_ns = clock_ns
        self._warm_ns = dict.fromkeys(warmers, -STALE_NS)
        self._busy = threading.Lock()

    def at_start(self) -> None:
        """Run every task's `warmup_requests`, the most urgent task last so that it is the warmest."""
        with self._busy:
            for name in sorted(self._warmers, key=lambda name: self._tasks[name].priority):
                self._warm(name)

    def at_wake(self, _sample: int = 0) -> threading.Thread | None:
        """Warm what has gone cold, in a thread of its own; None when a warm-up runs already or nothing is cold."""
        now_ns = self._clock_ns()
        cold = [name for name, warm_ns in self._warm_ns.items() if now_ns - warm_ns >= STALE_NS]
        if not cold or not self._busy.acquire(blocking=False):
            return None
        thread = threading.Thread(target=self._warm_all, args=(cold,), name="warm-up", daemon=True)
        thread.start()
        return thread

    def ran(self, task: str) -> None:
        """A real request of the task ended: it is warm."""
        self._warm_ns[task] = self._clock_ns()

    def _warm_all(self, names: list[str]) -> None:
        try:
            for name in sorted(names, key=lambda name: -self._tasks[name].priority):
                self._warm(name)
        finally:
            self._busy.release()

    def _warm(self, name: str) -> None:
        for _ in range(self._tasks[name].warmup_requests):
            try:
                with self._dispatcher.lease(name, judged=False) as lease:
                    self._warmers[name](lease.lane)
            except Refused as error:
                log.info("warm-up of %s ends early: %s", name, error)
                return
            self.requests += 1
        self.ran(name)
