"""The log of turns: one record per spoken turn, written by the stages, read by the command line and the tests."""

from __future__ import annotations

import threading
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Any

from pipeline.frames import Task, ToolResult

MILLISECONDS = ("endpoint", "asr", "llm_ttft", "llm", "tts_first", "first_audio")


@dataclass(slots=True)
class TurnRecord:
    """What one turn heard, did and said. `ms` holds milliseconds per stage; None where a stage did not run."""

    turn_id: int
    generation: int
    language: str = ""
    transcript: str = ""
    tool_results: tuple[ToolResult, ...] = ()
    reply: str = ""
    decided_by: str | None = None
    """What found the answer: rule, manual or model (as `pipeline.dialogue.plan.Plan`); None while open."""
    confidence: float | None = None
    """Of the parser's model, calibrated, in [0, 1]; None where it was not asked."""
    asked: str | None = None
    """What the reply asks for, so that a call can be made: value, zone, place, or confirm; None for no question."""
    task: Task | None = None
    """What the turn is for; None until its words are understood."""
    ms: dict[str, float | None] = field(default_factory=lambda: dict.fromkeys(MILLISECONDS))
    decided_ns: int = 0
    first_audio_ns: int = 0
    interrupted: bool = False
    failed: str | None = None
    """The stage that failed on this turn; its reply then is an apology."""
    closed: bool = False

    def as_log_line(self) -> str:
        """Ids, times and outcome, and nothing of what was heard, done or said: logs are kept by others."""
        parts = [f"turn {self.turn_id}", self.language or "no words", f"generation {self.generation}"]
        parts += [f"task {self.task}"] if self.task else []
        parts += [f"decided by {self.decided_by}"] if self.decided_by else []
        parts += [f"confidence {self.confidence:.2f}"] if self.confidence is not None else []
        statuses = [result.status for result in self.tool_results]
        parts += [f"asked for {self.asked}"] if self.asked else []
        parts += [f"calls {' '.join(statuses)}"] if statuses else []
        parts += [f"{name} {value:.0f} ms" for name, value in self.ms.items() if value is not None]
        parts += ["interrupted"] if self.interrupted else []
        parts += [f"failed in {self.failed}"] if self.failed else []
        return ", ".join(parts)

    def as_json(self) -> dict[str, Any]:
        """The object that `cockpit say --json` prints for this turn."""
        return {
            "turn_id": self.turn_id,
            "language": self.language,
            "transcript": self.transcript,
            "tool_calls": [
                {
                    "name": result.call.name,
                    "arguments": result.call.arguments,
                    "result": {
                        "status": result.status,
                        "path": result.path,
                        "value": result.value,
                        "reason": result.reason,
                    },
                }
                for result in self.tool_results
            ],
            "task": self.task,
            "decided_by": self.decided_by,
            "confidence": None if self.confidence is None else round(self.confidence, 4),
            "asked": self.asked,
            "reply": self.reply,
            "ms": {name: None if value is None else round(value, 1) for name, value in self.ms.items()},
            "interrupted": self.interrupted,
            "failed": self.failed,
            "generation": self.generation,
        }


def _ignore(_record: TurnRecord) -> None:
    return None


class TurnLog:
    """Open and closed turns. Thread-safe; keeps the newest `capacity` closed turns so that memory stays bounded.

    on_closed: told of each turn as it ends (again when it was re-opened), by the thread that ends it and before anybody
    sees it closed; it must return at once.
    """

    def __init__(self, capacity: int = 256, on_closed: Callable[[TurnRecord], None] = _ignore) -> None:
        self._capacity = capacity
        self._on_closed = on_closed
        self._changed = threading.Condition()
        self._turns: dict[int, TurnRecord] = {}
        self._decided: dict[str, int] = {}
        self._counted: dict[int, str] = {}

    def open(self, turn_id: int, generation: int) -> TurnRecord:
        """The record of `turn_id`, made when new and opened again when the turn was re-opened."""
        with self._changed:
            record = self._turns.get(turn_id)
            if record is None:
                record = self._turns[turn_id] = TurnRecord(turn_id, generation)
                self._forget_oldest()
            record.generation = generation
            record.closed = False
            return record

    def close(self, turn_id: int) -> TurnRecord | None:
        """Mark a turn as finished and wake whoever waits. Unknown ids are ignored: their turn had no speech."""
        with self._changed:
            record = self._turns.get(turn_id)
            if record is not None and not record.closed:
                record.closed = True
                self._count(record)
                self._on_closed(record)
            self._changed.notify_all()
            return record

    def drop(self, turn_id: int) -> None:
        """Remove a turn in which nothing was said (noise that the recogniser rejected)."""
        with self._changed:
            self._turns.pop(turn_id, None)
            self._uncount(turn_id)
            self._changed.notify_all()

    def interrupt_older(self, generation: int) -> None:
        """Close every open turn older than `generation`: barge-in has made its answer stale."""
        with self._changed:
            older = [record for record in self._turns.values() if not record.closed and record.generation < generation]
            for record in older:
                record.interrupted = record.closed = True
                self._count(record)
                self._on_closed(record)
            self._changed.notify_all()

    def get(self, turn_id: int) -> TurnRecord | None:
        with self._changed:
            return self._turns.get(turn_id)

    def decided(self) -> dict[str, int]:
        """How many turns that have ended were decided by what (rule, manual, model, ...), since the start."""
        with self._changed:
            return dict(sorted(self._decided.items()))

    def closed(self) -> list[TurnRecord]:
        """Finished turns, oldest first."""
        with self._changed:
            return [record for record in self._turns.values() if record.closed]

    def all_closed(self) -> bool:
        with self._changed:
            return all(record.closed for record in self._turns.values())

    def wait_all_closed(self, timeout_s: float) -> bool:
        """Wait until no turn is open; False when `timeout_s` passed first."""
        with self._changed:
            return self._changed.wait_for(lambda: all(r.closed for r in self._turns.values()), timeout_s)

    def _forget_oldest(self) -> None:
        closed = [turn_id for turn_id, record in self._turns.items() if record.closed]
        for turn_id in closed[: max(0, len(self._turns) - self._capacity)]:
            del self._turns[turn_id]
            self._counted.pop(turn_id, None)

    def _count(self, record: TurnRecord) -> None:
        """Count a turn once, also when it was re-opened and ends again."""
        self._uncount(record.turn_id)
        if record.decided_by is not None:
            self._counted[record.turn_id] = record.decided_by
            self._decided[record.decided_by] = self._decided.get(record.decided_by, 0) + 1

    def _uncount(self, turn_id: int) -> None:
        before = self._counted.pop(turn_id, None)
        if before is not None:
            self._decided[before] -= 1
