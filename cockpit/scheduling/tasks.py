"""Which of a profile's tasks each kind of work runs as: its own where the profile names it, else its stand-in."""

from __future__ import annotations

from collections.abc import Collection, Mapping
from typing import Final, get_args

from cockpit.arbiter.config import BACKGROUND, DIALOGUE, NAVIGATION, SPEECH, VEHICLE
from pipeline.frames import Task

STAND_INS: Final[Mapping[Task, tuple[str, ...]]] = {
    "navigation": (NAVIGATION, DIALOGUE),
    "vehicle": (VEHICLE, NAVIGATION, DIALOGUE),
    "dialogue": (DIALOGUE,),
    "background": (BACKGROUND, DIALOGUE),
}
"""Every profile of the voice chain has dialogue_task, so every row ends. Documented in docs/arbiter.md."""
TASKS: Final[tuple[Task, ...]] = get_args(Task)


def names_of(tasks: Collection[str]) -> dict[Task, str]:
    """The task of a profile that each kind of work runs as. tasks: those that the profile names."""
    return {task: next(name for name in row if name in tasks or name == DIALOGUE) for task, row in STAND_INS.items()}


def stand_in(name: str, tasks: Collection[str]) -> str:
    """The task of a profile that runs what is meant for `name`: itself where it is named or nothing stands in."""
    row = next((row for row in STAND_INS.values() if row[0] == name), (name,))
    return next((other for other in row if other in tasks), row[-1])


def speech_name_of(tasks: Collection[str], task: Task | None) -> str:
    """The task that recognition and voices run as: speech_task, else what `task` runs as (None: not understood yet)."""
    return SPEECH if SPEECH in tasks else names_of(tasks)[task or "dialogue"]
