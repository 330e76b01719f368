"""What a stage needs to know of tracing: spans, and a null object when tracing is off."""

from __future__ import annotations

from contextlib import AbstractContextManager, nullcontext
from typing import Protocol


class Tracer(Protocol):
    """Takes spans from every stage. Thread-safe; never raises into a stage."""

    def span(self, stage: str, turn_id: int, name: str = "") -> AbstractContextManager[None]:
        """Record the time spent inside `with tracer.span("asr", turn_id):`. `name` defaults to the stage."""
        ...

    def record(self, stage: str, turn_id: int, start_ns: int, end_ns: int, name: str = "") -> None:
        """Record a span whose times (monotonic ns) are known already."""
        ...

    def instant(self, stage: str, turn_id: int, name: str, at_ns: int | None = None) -> None:
        """Mark a moment (barge-in, an xrun). `at_ns`: monotonic ns, None for now."""
        ...


class NullTracer:
    """Tracing off: every call does nothing."""

    def __init__(self) -> None:
        self._nothing: AbstractContextManager[None] = nullcontext()

    def span(self, stage: str, turn_id: int, name: str = "") -> AbstractContextManager[None]:
        return self._nothing

    def record(self, stage: str, turn_id: int, start_ns: int, end_ns: int, name: str = "") -> None:
        return None

    def instant(self, stage: str, turn_id: int, name: str, at_ns: int | None = None) -> None:
        return None
