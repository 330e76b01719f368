"""How far downloads and builds are: bars on a terminal, one line for each file or step in a log, nothing with `--json`.

Names give way to numbers: at 80 columns a long name ends in an ellipsis and no number is cut.
"""

from __future__ import annotations

import sys
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Protocol

from rich.console import Console
from rich.progress import (
    BarColumn,
    DownloadColumn,
    MofNCompleteColumn,
    ProgressColumn,
    TaskID,
    TextColumn,
    TimeRemainingColumn,
    TransferSpeedColumn,
)
from rich.progress import Progress as RichBars
from rich.table import Column

from cockpit.cli.output import size_text
from models.store.fetch import Progress

BAR_COLUMNS = 12


class DownloadProgress(Progress, Protocol):
    """What `cockpit models fetch` shows."""

    def say(self, line: str) -> None:
        """One line of text, above the bars where there are bars."""
        ...


class BuildProgress(Protocol):
    """What `cockpit models build` shows: begin, any number of steps, end; for one model after the other."""

    def begin(self, name: str, *, work: bool) -> None:
        """`name` is looked at; work: it will be built."""
        ...

    def step(self, what: str, share: float) -> None:
        """The builder is at `what`, `share` in [0, 1] done."""
        ...

    def end(self, line: str) -> None:
        """The model is done; `line` says how."""
        ...


@contextmanager
def bars(*, quiet: bool, total_bytes: int, terminal: Console | None = None) -> Iterator[DownloadProgress]:
    """Downloads of `total_bytes` in all. terminal: None: stderr, if it is one."""
    if quiet or (terminal is None and not sys.stderr.isatty()):
        yield _Quiet() if quiet else _FileLines(total_bytes)
        return
    numbers = (DownloadColumn(), TransferSpeedColumn(), TimeRemainingColumn(compact=True))
    with _rich(terminal, *numbers) as rich:
        yield _FileBars(rich, total_bytes)


@contextmanager
def steps(*, quiet: bool, total: int, terminal: Console | None = None) -> Iterator[BuildProgress]:
    """Builds of `total` models in all. terminal: None: stderr, if it is one."""
    if quiet or (terminal is None and not sys.stderr.isatty()):
        yield _Quiet() if quiet else _StepLines()
        return
    with _rich(terminal, TextColumn("{task.percentage:>3.0f}%"), MofNCompleteColumn()) as rich:
        yield _StepBar(rich, total)


def _rich(terminal: Console | None, *numbers: ProgressColumn) -> RichBars:
    """Name, bar and `numbers`, over the width of the terminal. The name takes what is left and is cut first."""
    name = TextColumn("{task.description}", table_column=Column(ratio=1, no_wrap=True, overflow="ellipsis"))
    for column in numbers:
        column._table_column = Column(no_wrap=True, min_width=1)
    return RichBars(name, BarColumn(BAR_COLUMNS), *numbers, console=terminal or Console(stderr=True), expand=True)


class _FileBars:
    """One bar for all files, one for the file that is being fetched.

    The total counts bytes of the files; packages may be a little smaller or larger than the files in them, so it never
    runs past its end.
    """

    def __init__(self, rich: RichBars, total_bytes: int) -> None:
        self._rich = rich
        self._total = rich.add_task("all files", total=total_bytes)
        self._total_bytes = total_bytes
        self._done_bytes = 0
        self._file: TaskID | None = None

    def start(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        self._file = self._rich.add_task(label, total=total_bytes, completed=done_bytes)
        self._add(done_bytes)

    def advance(self, count_bytes: int) -> None:
        if self._file is not None:
            self._rich.advance(self._file, count_bytes)
            self._add(count_bytes)

    def finish(self) -> None:
        if self._file is not None:
            self._rich.remove_task(self._file)
            self._file = None

    def say(self, line: str) -> None:
        self._rich.console.print(line, highlight=False, markup=False)

    def _add(self, count_bytes: int) -> None:
        self._done_bytes = min(self._total_bytes, self._done_bytes + count_bytes)
        self._rich.update(self._total, completed=self._done_bytes)


class _FileLines:
    """One line for each file."""

    def __init__(self, total_bytes: int) -> None:
        if total_bytes:
            sys.stderr.write(f"to fetch: {size_text(total_bytes)} in all\n")

    def start(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        total = size_text(total_bytes) if total_bytes is not None else "unknown size"
        since = f", going on from {size_text(done_bytes)}" if done_bytes else ""
        sys.stderr.write(f"fetching {label} ({total}{since})\n")

    def advance(self, count_bytes: int) -> None:
        pass

    def finish(self) -> None:
        pass

    def say(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")


class _StepBar:
    """One bar over all models."""

    def __init__(self, rich: RichBars, total: int) -> None:
        self._rich = rich
        self._task = rich.add_task("building", total=total)
        self._done = 0
        self._name = ""

    def begin(self, name: str, *, work: bool) -> None:
        self._name = name
        self._rich.update(self._task, description=name)

    def step(self, what: str, share: float) -> None:
        self._rich.update(self._task, description=f"{self._name}: {what}", completed=self._done + share)

    def end(self, line: str) -> None:
        self._done += 1
        self._rich.update(self._task, completed=self._done)
        self._rich.console.print(line, highlight=False, markup=False)


class _StepLines:
    """One line for each step."""

    def begin(self, name: str, *, work: bool) -> None:
        if work:
            sys.stderr.write(f"{name}: building\n")

    def step(self, what: str, share: float) -> None:
        sys.stderr.write(f"  {share:4.0%} {what}\n")

    def end(self, line: str) -> None:
        sys.stderr.write(f"{line}\n")


class _Quiet:
    """Says nothing."""

    def start(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        pass

    def advance(self, count_bytes: int) -> None:
        pass

    def finish(self) -> None:
        pass

    def say(self, line: str) -> None:
        pass

    def begin(self, name: str, *, work: bool) -> None:
        pass

    def step(self, what: str, share: float) -> None:
        pass

    def end(self, line: str) -> None:
        pass
