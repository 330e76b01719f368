"""What an exception in a stage costs: one turn, and the process when the same stage fails three turns in a row."""

from __future__ import annotations

import logging
import traceback
from collections.abc import Hashable
from dataclasses import dataclass

from models.errors import CockpitError

log = logging.getLogger("cockpit.runtime")

LIMIT = 3
"""Turns in a row on which one stage may fail."""


class StageFailed(CockpitError):
    """A stage failed on LIMIT turns in a row. A fresh process may mend it, so the service is restarted."""

    exit_code = 5


@dataclass(slots=True)
class _Streak:
    total: int = 0
    in_a_row: int = 0
    newest: Hashable = None


class StageFailures:
    """Counts per stage. Each stage's own thread alone calls `failed` and `passed` with its name.

    `turn`: what failures are counted by; several failures on the same turn in a row are one.
    """

    def __init__(self, stages: tuple[str, ...]) -> None:
        self._streaks = {stage: _Streak() for stage in stages}

    def failed(self, stage: str, turn: Hashable) -> bool:
        """Count a failure. True when the stage has failed on LIMIT turns in a row."""
        streak = self._streaks[stage]
        streak.total += 1
        streak.in_a_row += streak.in_a_row == 0 or streak.newest != turn
        streak.newest = turn
        return streak.in_a_row >= LIMIT

    def passed(self, stage: str, turn: Hashable) -> None:
        """The stage has done its part of a turn; one on which it had failed before does not count."""
        streak = self._streaks[stage]
        if streak.newest != turn:
            streak.in_a_row = 0

    @property
    def counts(self) -> dict[str, int]:
        """Failures of each stage since the start, by its name."""
        return {stage: streak.total for stage, streak in self._streaks.items()}


def log_failure(stage: str, turn_id: int, error: BaseException) -> None:
    """One line that says where. The message of an error may hold what was heard, so it is for level debug only."""
    log.error("stage %s failed on turn %d: %s", stage, turn_id, described(error))
    log.debug("stage %s on turn %d", stage, turn_id, exc_info=error)


def described(error: BaseException) -> str:
    """Type and place of an error, and its message where that is about the machine and not about what was heard."""
    frames = traceback.extract_tb(error.__traceback__)
    place = f" at {frames[-1].filename}:{frames[-1].lineno} in {frames[-1].name}" if frames else ""
    message = f" ({error})" if isinstance(error, OSError | CockpitError) else ""
    return f"{type(error).__name__}{message}{place}"
