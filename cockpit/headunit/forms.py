"""The JSON of each event, and what is left of it for a client that may not know what is heard, said and done."""

from __future__ import annotations

from collections.abc import Mapping
from typing import Any, Literal, get_args

from pipeline.frames import SpeechFrame, ToolResult, Transcript
from pipeline.turn_log import TurnRecord

EventType = Literal["state", "level", "transcript", "calls", "clause", "turn", "error", "dropped"]
TYPES: tuple[EventType, ...] = get_args(EventType)
Event = dict[str, Any]
_WORDS: Mapping[str, tuple[str, ...]] = {"transcript": ("text",), "clause": ("text",), "turn": ("transcript", "reply")}
"""Fields that hold what was heard or said."""


def transcript_event(transcript: Transcript) -> Event:
    """stage: partial, candidate (nothing has acted yet) or final. unclear: speech whose words nobody can tell."""
    return {
        "type": "transcript",
        "turn_id": transcript.turn_id,
        "stage": transcript.stage,
        "text": transcript.text,
        "language": transcript.language,
        "unclear": transcript.unclear,
    }


def calls_event(record: TurnRecord) -> Event:
    """What was asked of the car, and what it did as read back from it."""
    calls = [call_json(result) for result in record.tool_results]
    return {"type": "calls", "turn_id": record.turn_id, "calls": calls}


def call_json(result: ToolResult) -> dict[str, Any]:
    """One call with its result."""
    answered = {"status": result.status, "path": result.path, "value": result.value, "reason": result.reason}
    return {"name": result.call.name, "arguments": result.call.arguments, "result": answered}


def clause_event(frame: SpeechFrame) -> Event:
    """A clause of the reply begins to sound."""
    return {"type": "clause", "turn_id": frame.turn_id, "index": frame.clause_index, "text": frame.text}


def turn_event(record: TurnRecord) -> Event:
    """A turn is over. `ms`: per stage, as in `cockpit say --json`."""
    return {"type": "turn", **record.as_json()}


def error_event(stage: str, turn_id: int, error: Exception) -> Event:
    """The kind only: messages of faults may hold words."""
    return {"type": "error", "stage": stage, "turn_id": turn_id, "kind": type(error).__name__}


def without_words(event: Event) -> Event:
    """The event for a client that may not know what is said: words are null, and of a call its outcome is left."""
    kept: Event = {name: None if name in _WORDS.get(event["type"], ()) else value for name, value in event.items()}
    for name in ("calls", "tool_calls"):
        if name in kept:
            kept[name] = [{"result": {"status": call["result"]["status"]}} for call in kept[name]]
    return kept
