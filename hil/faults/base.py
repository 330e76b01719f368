"""What every fault is: a context manager that is on inside, and that shows afterwards that it was."""

from __future__ import annotations

from collections.abc import Callable
from contextlib import AbstractContextManager
from dataclasses import dataclass, field

from models.errors import CockpitError


class FaultNotOn(CockpitError):
    """Nothing shows that the fault was on: whatever was measured meanwhile says nothing about it."""


class FaultUnavailable(CockpitError):
    """This machine or this device under test cannot have the fault; the message says what is missing."""


@dataclass(slots=True)
class Evidence:
    """What shows that a fault was on: observed on the far side of it, never what was asked for."""

    fault: str
    seen: list[str] = field(default_factory=list)

    def add(self, observation: str) -> None:
        self.seen.append(observation)

    def require(self) -> str:
        """All of it. Raises FaultNotOn where there is none."""
        if not self.seen:
            raise FaultNotOn(f"{self.fault}: nothing shows that it was on; the scenario proves nothing")
        return "; ".join(self.seen)


Fault = AbstractContextManager[Evidence]
"""On from `__enter__` to `__exit__`; the evidence is complete after `__exit__`."""
OpenFault = Callable[[], Fault]
