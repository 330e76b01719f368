"""The wake-word stage of a profile; without an engine every frame passes."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Protocol

from cockpit.profile.sections import WakeSection
from models.engines.factory import WAKE_WORDS, engine_of
from pipeline.endpointing.wake_word import WakeDetector, WakeGate
from pipeline.frames import AudioFrame


class WakeStage(Protocol):
    """What stands before the endpointer. `push` by one thread."""

    def push(self, frame: AudioFrame) -> list[AudioFrame]:
        """The frames that pass now, in order; the end of a stream always does."""
        ...

    def wake(self) -> None:
        """As if the word had been heard, with the next frame."""
        ...

    def stay_awake(self, until_sample: int) -> None:
        """Somebody speaks or is answered: no sleep before this position of the stream and some time after it."""
        ...


class AlwaysAwake:
    """No wake word: what is heard is for the car."""

    def push(self, frame: AudioFrame) -> list[AudioFrame]:
        return [frame]

    def wake(self) -> None:
        return None

    def stay_awake(self, until_sample: int) -> None:
        return None


def open_wake(section: WakeSection, folders: Mapping[str, Path], on_wake: Callable[[int], object]) -> WakeStage:
    """The stage that `section` asks for. on_wake: called with the stream position, before the first frame passes.

    Raises ConfigError for an unknown word, StartupError when the engine's library is not installed.
    """
    if section.engine == "none":
        return AlwaysAwake()

    def woken(sample: int) -> None:
        on_wake(sample)

    detector: WakeDetector = engine_of(WAKE_WORDS, section.engine, section.engine)(
        folders[section.engine], section.model
    )
    return WakeGate(detector, section.config, woken)
