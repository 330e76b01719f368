"""Spoken turns as a person reads them: what was heard, done and said, and where the milliseconds went; printed as they
end by a thread of its own, so that a slow terminal or pipe never holds up a stage."""

from __future__ import annotations

import os
import queue
import threading
from collections.abc import Iterator
from contextlib import suppress
from types import TracebackType

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from cockpit.cli.output import print_json_line
from cockpit.headunit.observer import NoObserver
from models.errors import InputError
from pipeline.frames import Transcript
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
    """The text without blanks around it. Raises InputError when nothing is left, or bytes of it are no UTF-8."""
    try:
        text.encode()
    except UnicodeEncodeError as error:  # the shell's bytes: the whole sentence may mean something else
        raise InputError("what was asked is not UTF-8; set the terminal to UTF-8, or convert it") from error
    if not text.strip():
        raise InputError('nothing to ask; give a sentence: cockpit ask "turn on the seat heating"')
    return text.strip()


# --- turns as they end -----------------------------------------------------------------------------------------------
WAITING = 256
"""Messages that may wait for the terminal; more are dropped and counted."""


class TurnPrinter(NoObserver):
    """An Observer of the chain; use it as a context. `as_json`: one object a line instead of text.

    `dropped`: messages that were not printed because the reader was too slow.
    """

    def __init__(self, title: str, *, as_json: bool) -> None:
        self.dropped = 0
        self._title = title
        self._as_json = as_json
        self._waiting: queue.Queue[str | TurnRecord | None] = queue.Queue(WAITING)
        self._console = Console(highlight=False, soft_wrap=True)
        self._live = Live(console=self._console, transient=True, auto_refresh=False)
        self._show_partials = self._console.is_terminal and not as_json
        self._thread = threading.Thread(target=self._print_all, name="turn-printer", daemon=True)

    def heard(self, transcript: Transcript) -> None:
        if self._show_partials:
            self._put(transcript.text)

    def ended(self, record: TurnRecord) -> None:
        self._put(record)

    def __enter__(self) -> TurnPrinter:
        if self._show_partials:
            self._live.start()  # also sends what is logged meanwhile above the live line
        self._thread.start()
        return self

    def __exit__(self, kind: type[BaseException] | None, error: BaseException | None, at: TracebackType | None) -> None:
        """Print what waits, then give the terminal back."""
        with suppress(queue.Full):
            self._waiting.put(None, timeout=1.0)
        self._thread.join(timeout=5.0)
        self._live.stop()

    def _put(self, item: str | TurnRecord) -> None:
        try:
            self._waiting.put_nowait(item)
        except queue.Full:
            self.dropped += 1

    def _print_all(self) -> None:
        while (item := self._waiting.get()) is not None:
            try:
                self._print(item)
            except BrokenPipeError:  # whoever read stdout has gone; the car is served all the same
                os.dup2(os.open(os.devnull, os.O_WRONLY), 1)

    def _print(self, item: str | TurnRecord) -> None:
        if isinstance(item, str):
            self._live.update(Text(f"… {item}", style="dim", overflow="ellipsis", no_wrap=True), refresh=True)
        elif self._as_json:
            print_json_line(item.as_json())
        else:
            if self._show_partials:
                self._live.update(Text(""), refresh=True)
            typer.echo(timeline(item, self._title) + "\n")
