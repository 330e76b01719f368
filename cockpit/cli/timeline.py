"""One spoken turn as a person reads it: what was heard, done and said, and where the milliseconds went."""

from __future__ import annotations

from collections.abc import Iterator

import typer

from models.errors import InputError
from pipeline.json_codec import dumps
from pipeline.turn_log import TurnRecord

BAR_WIDTH = 48
STAGES = (("endpoint", "="), ("llm", "#"), ("tts_first", "~"))
"""What follows the end of speech, in order. Recognition runs inside the endpoint's silence."""


def timeline(record: TurnRecord, title: str) -> str:
    """The text block of one turn."""
    return "\n".join(_lines(record, title))


def _lines(record: TurnRecord, title: str) -> Iterator[str]:
    yield typer.style(f"{title}  (turn {record.turn_id}, {record.language})", bold=True)
    yield f"  heard   {record.transcript}"
    for result in record.tool_results:
        yield f"  call    {result.call.name} {dumps(result.call.arguments).decode()}"
        state = f"{result.path} = {result.value}" if result.path else ""
        reason = f" ({result.reason})" if result.reason else ""
        yield f"  car     {result.status}{reason}  {state}".rstrip()
    yield f"  reply   {record.reply}" + ("  [interrupted]" if record.interrupted else "")
    if record.failed:
        yield f"  failed  in stage {record.failed}; see the log"
    yield "  ms      " + " | ".join(f"{name} {_ms(value)}" for name, value in record.ms.items())
    first_audio = record.ms["first_audio"]
    if first_audio:
        yield f"  {bar(record, first_audio)}"


def bar(record: TurnRecord, total_ms: float) -> str:
    """End of speech on the left, first audio on the right; `=` silence, `#` deciding, `~` voice, `.` rest."""
    drawn = ""
    for name, sign in STAGES:
        share = min((record.ms[name] or 0.0) / total_ms, 1.0)
        drawn += sign * round(share * BAR_WIDTH)
    return "|" + drawn[:BAR_WIDTH].ljust(BAR_WIDTH, ".") + f"> first audio {total_ms:.0f} ms"


def _ms(value: float | None) -> str:
    return "-" if value is None else f"{value:.0f}"


def check_text(text: str) -> str:
    """The text without blanks around it. Raises InputError when nothing is left."""
    if not text.strip():
        raise InputError('nothing to ask; give a sentence: cockpit ask "turn on the seat heating"')
    return text.strip()
