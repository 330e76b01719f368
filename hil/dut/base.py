"""What the runner needs of a device under test."""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

import numpy as np
from numpy.typing import NDArray

from hil.faults.base import Fault
from hil.rig.scenario import FaultEntry, Scenario
from pipeline.frames import Language

Audio = NDArray[np.float32]


@dataclass(slots=True)
class Heard:
    """What came of one stimulus. turns: as `cockpit say --json` gives them. changed: signal -> (before, after); after:
    the signals that are known afterwards.
    """

    turns: list[dict[str, Any]]
    changed: dict[str, tuple[Any, Any]] = field(default_factory=dict)
    after: Mapping[str, Any] = field(default_factory=dict)


class DeviceUnderTest(Protocol):
    """One thread uses it, but for `modes`."""

    name: str

    def prepare(self, scenario: Scenario) -> None:
        """Before each repetition. Raises InputError for what this device cannot be set to."""
        ...

    def hear(self, wav: Path, timeout_s: float) -> Heard | None:
        """Say it, and wait until it is answered; None after `timeout_s`. wav: 16 kHz, int16, mono."""
        ...

    def fault(self, entry: FaultEntry) -> Fault:
        """Not yet on. Raises FaultUnavailable."""
        ...

    def modes(self) -> dict[str, str]:
        """What it says now that it lacks, and why. Any thread."""
        ...

    def speak(self, text: str, language: Language) -> Audio:
        """By its own voice: float32 at 16 kHz. Raises InputError without a voice for the language."""
        ...
