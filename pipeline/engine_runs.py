"""When a speech engine may run, as the stages see it: each run asks first, and may have to wait.

    with runs.around(task, cancelled) as mine:
        chunk = next(chunks, None) if mine else None

Who shares out the device stands in cockpit/scheduling/engine_turns.py; `UNSCHEDULED_RUNS` is for engines that have it
to themselves.
"""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager, nullcontext
from typing import Protocol

from pipeline.frames import Task


class EngineRuns(Protocol):
    """Thread-safe."""

    def around(self, task: Task | None, cancelled: Callable[[], bool]) -> AbstractContextManager[bool]:
        """Around one run of an engine. task: what it is for, None while nobody knows yet.

        False when `cancelled` while it waited. Raises CockpitError for a run that is refused.
        """
        ...


class UnscheduledRuns:
    """Nothing waits."""

    def around(self, task: Task | None, cancelled: Callable[[], bool]) -> AbstractContextManager[bool]:
        return nullcontext(True)


UNSCHEDULED_RUNS = UnscheduledRuns()
"""It holds nothing, so one serves all."""
