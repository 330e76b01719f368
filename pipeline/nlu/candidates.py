"""A call that the words of a clause support."""

from __future__ import annotations

from dataclasses import dataclass
from typing import Any

from pipeline.frames import ToolCall


@dataclass(frozen=True, slots=True)
class CallCandidate:
    """One call the words support. `prior`: how well, in nats; only differences count."""

    call: ToolCall
    prior: float = 0.0


def make_call(name: str, **arguments: Any) -> ToolCall:
    """A call by name and arguments."""
    return ToolCall(name, arguments)


def only(call: ToolCall | None) -> list[CallCandidate]:
    """The one candidate, or none."""
    return [] if call is None else [CallCandidate(call)]


def refusal(reason: str, what: str) -> ToolCall:
    """The call that says no."""
    return make_call("refuse", reason=reason, what=what[:80])
