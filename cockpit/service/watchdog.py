"""Feeds systemd's watchdog while every stage makes progress. A stage that hangs ends the feeding, so the service is
ended and started anew.

Progress is counted by whoever makes it. A stall is counted in looks, not in time: a process that was stopped, or a
machine that was suspended, costs one look, whatever the clock says afterwards.
"""

from __future__ import annotations

import logging
import sys
import threading
import traceback
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cockpit.service.state import ServiceState

log = logging.getLogger("cockpit.service")

LONGEST_LOOK_S = 2.0
_LOOKS = 12
"""In one watchdog interval, at least: a stop of the process for two thirds of it may begin right before one."""


def _never() -> bool:
    return False


@dataclass(frozen=True, slots=True)
class Watched:
    """One stage. steps: a number that grows with each step. waits: True while it waits for another stage or for work,
    so that no step is due. thread: its name, for the place where it hangs.
    """

    name: str
    steps: Callable[[], int]
    waits: Callable[[], bool] = _never
    thread: str = ""


class Watchdog:
    """Looks after the stages in a thread of its own, from `start` to `stop`."""

    def __init__(self, state: ServiceState, stages: Sequence[Watched], interval_s: float) -> None:
        """interval_s: the service manager's; a stage that makes no step for half of it hangs."""
        self._state = state
        self._stages = tuple(stages)
        self._look_s = min(LONGEST_LOOK_S, interval_s / _LOOKS)
        self._most_looks = max(2, round(interval_s / 2 / self._look_s))
        self._seen = {stage.name: -1 for stage in self._stages}
        self._still = dict.fromkeys(self._seen, 0)
        self._hanging: tuple[str, ...] = ()
        self._stopped = threading.Event()
        self._thread = threading.Thread(target=self._run, name="watchdog", daemon=True)

    def start(self) -> None:
        self._thread.start()

    def stop(self) -> None:
        """Feed no more. Safe to call twice."""
        self._stopped.set()
        if self._thread.ident is not None:
            self._thread.join(self._look_s + 1.0)

    def look(self) -> bool:
        """Whether every stage has made a step lately; tells the service manager so. One thread."""
        hanging = tuple(stage.name for stage in self._stages if self._stands_still(stage))
        if hanging != self._hanging:
            self._hanging = hanging
            self._report(hanging)
        if not hanging:
            self._state.notifier.alive()
        return not hanging

    def _run(self) -> None:
        while not self._stopped.is_set():
            self.look()
            self._stopped.wait(self._look_s)

    def _stands_still(self, stage: Watched) -> bool:
        steps = stage.steps()
        moved = steps != self._seen[stage.name]
        self._seen[stage.name] = steps
        self._still[stage.name] = 0 if moved or stage.waits() else self._still[stage.name] + 1
        return self._still[stage.name] >= self._most_looks

    def _report(self, hanging: tuple[str, ...]) -> None:
        if not hanging:
            self._state.end("stalled")
            return
        places = ", ".join(_place(stage) for stage in self._stages if stage.name in hanging)
        seconds = self._most_looks * self._look_s
        self._state.begin("stalled", f"no step for {seconds:.1f} s in {places}; the service manager is to start anew")


def _place(stage: Watched) -> str:
    """The stage and the line of code where its thread is."""
    for thread in threading.enumerate():
        frame = sys._current_frames().get(thread.ident or 0)
        if thread.name == stage.thread and frame is not None:
            last = traceback.extract_stack(frame)[-1]
            return f"{stage.name} ({last.filename}:{last.lineno} in {last.name})"
    return stage.name
