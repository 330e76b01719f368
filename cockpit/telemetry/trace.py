"""Tracing into the Chrome trace format, which ui.perfetto.dev and chrome://tracing read. One track per stage."""

from __future__ import annotations

import os
import tempfile
import threading
import time
from collections import deque
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from models.errors import InputError
from pipeline.json_codec import dumps

_NS_PER_US = 1000.0


@dataclass(frozen=True, slots=True)
class Span:
    """One stage at work, monotonic ns. `end_ns` None: a moment without length."""

    stage: str
    turn_id: int
    name: str
    start_ns: int
    end_ns: int | None
    thread: str


class TraceRecorder:
    """A `Tracer` that keeps the newest `capacity` spans; older ones are forgotten and counted in `dropped`."""

    def __init__(self, capacity: int = 100_000) -> None:
        """Raises ValueError for a capacity below 1."""
        if capacity < 1:
            raise ValueError(f"capacity must be at least 1, not {capacity}")
        self._spans: deque[Span] = deque(maxlen=capacity)
        self._lock = threading.Lock()
        self.dropped = 0

    @contextmanager
    def span(self, stage: str, turn_id: int, name: str = "") -> Iterator[None]:
        """Record the time inside the `with`, also when it raises."""
        start_ns = time.monotonic_ns()
        try:
            yield
        finally:
            self.record(stage, turn_id, start_ns, time.monotonic_ns(), name)

    def record(self, stage: str, turn_id: int, start_ns: int, end_ns: int, name: str = "") -> None:
        """Record a span whose times are known."""
        self._add(Span(stage, turn_id, name or stage, start_ns, end_ns, threading.current_thread().name))

    def instant(self, stage: str, turn_id: int, name: str, at_ns: int | None = None) -> None:
        """Mark a moment; `at_ns` None: now."""
        moment_ns = time.monotonic_ns() if at_ns is None else at_ns
        self._add(Span(stage, turn_id, name, moment_ns, None, threading.current_thread().name))

    def spans(self) -> tuple[Span, ...]:
        """What is remembered, in the order it ended."""
        with self._lock:
            return tuple(self._spans)

    def write(self, path: Path) -> None:
        """Write the trace, whole or not at all. Raises InputError when `path` cannot be written."""
        data = dumps(chrome_trace(self.spans()))
        try:
            handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
            with os.fdopen(handle, "wb") as file:
                file.write(data)
            os.replace(name, path)
        except OSError as error:
            raise InputError(f"cannot write the trace to {path} ({error.strerror}); choose another --trace") from error

    def _add(self, span: Span) -> None:
        with self._lock:
            self.dropped += len(self._spans) == self._spans.maxlen
            self._spans.append(span)


def check_writable(path: Path) -> None:
    """Refuse, before the run, a path that `TraceRecorder.write` could not write. Raises InputError."""
    problem = "it is a folder" if path.is_dir() else ""
    if not problem:
        try:
            handle, name = tempfile.mkstemp(prefix=f".{path.name}-", dir=path.parent)
            os.close(handle)
            os.unlink(name)
        except OSError as error:
            problem = error.strerror or str(error)
    if problem:
        raise InputError(f"cannot write the trace to {path} ({problem}); choose another --trace")


def chrome_trace(spans: tuple[Span, ...]) -> dict[str, Any]:
    """The Chrome trace object: a track per stage in order of first appearance, times in us from the first span."""
    tracks: dict[str, int] = {}
    for span in sorted(spans, key=lambda item: item.start_ns):
        tracks.setdefault(span.stage, len(tracks) + 1)
    zero_ns = min((span.start_ns for span in spans), default=0)
    events: list[dict[str, Any]] = [{"ph": "M", "pid": 1, "name": "process_name", "args": {"name": "cockpit"}}]
    for stage, track in tracks.items():
        events.append({"ph": "M", "pid": 1, "tid": track, "name": "thread_name", "args": {"name": stage}})
        events.append({"ph": "M", "pid": 1, "tid": track, "name": "thread_sort_index", "args": {"sort_index": track}})
    events.extend(_event(span, tracks[span.stage], zero_ns) for span in spans)
    return {"traceEvents": events, "displayTimeUnit": "ms"}


def _event(span: Span, track: int, zero_ns: int) -> dict[str, Any]:
    event: dict[str, Any] = {
        "pid": 1,
        "tid": track,
        "name": span.name,
        "cat": span.stage,
        "ts": (span.start_ns - zero_ns) / _NS_PER_US,
        "args": {"turn_id": span.turn_id, "thread": span.thread},
    }
    if span.end_ns is None:
        return event | {"ph": "i", "s": "t"}
    return event | {"ph": "X", "dur": (span.end_ns - span.start_ns) / _NS_PER_US}
