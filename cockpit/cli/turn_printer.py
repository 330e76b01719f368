"""Turns as they end, and on a terminal what is understood while somebody speaks. A thread of its own writes, so that a
slow terminal or pipe never holds up a stage."""

from __future__ import annotations

import os
import queue
import threading
from contextlib import suppress
from types import TracebackType

import typer
from rich.console import Console
from rich.live import Live
from rich.text import Text

from cockpit.cli.output import print_json_line
from cockpit.cli.timeline import timeline
from pipeline.frames import Transcript
from pipeline.turn_log import TurnRecord

WAITING = 256
"""Messages that may wait for the terminal; more are dropped and counted."""


class TurnPrinter:
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
