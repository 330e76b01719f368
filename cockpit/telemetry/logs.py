"""Where log lines go: stderr, in journald's format when stderr is the journal, else with time and level."""

from __future__ import annotations

import logging
import os
import sys
from enum import StrEnum
from typing import TextIO

_PRIORITY = {logging.DEBUG: 7, logging.INFO: 6, logging.WARNING: 4, logging.ERROR: 3, logging.CRITICAL: 2}
"""syslog's numbers, which journald reads from `<N>` at the start of a line (sd-daemon(3))."""


class LogLevel(StrEnum):
    """The least that is logged. `debug` also logs tracebacks, which may hold what was heard."""

    debug = "debug"
    info = "info"
    warning = "warning"
    error = "error"


class JournalFormatter(logging.Formatter):
    """`<6>cockpit.runtime: message`: journald adds the time itself. Every line of a message has the prefix."""

    def format(self, record: logging.LogRecord) -> str:
        prefix = f"<{_PRIORITY.get(record.levelno, 6)}>{record.name}: "
        return "\n".join(prefix + line for line in super().format(record).splitlines())


class _Stderr(logging.StreamHandler[TextIO]):
    """Writes to what `sys.stderr` is at that moment: a live line on the terminal stands in for it for a while."""

    def __init__(self) -> None:
        logging.Handler.__init__(self)

    @property
    def stream(self) -> TextIO:
        return sys.stderr

    @stream.setter
    def stream(self, value: TextIO) -> None:
        raise AttributeError("the stream is sys.stderr")


def configure(level: LogLevel) -> None:
    """Log `level` and above to stderr. Replaces what an earlier call set up."""
    handler = _Stderr()
    if is_journal(sys.stderr):
        handler.setFormatter(JournalFormatter("%(message)s"))
    else:
        handler.setFormatter(logging.Formatter("%(asctime)s %(levelname)-7s %(name)s: %(message)s"))
    root = logging.getLogger()
    for old in [known for known in root.handlers if isinstance(known, _Stderr)]:
        root.removeHandler(old)
    root.addHandler(handler)
    root.setLevel(getattr(logging, level.upper()))


def is_journal(stream: TextIO) -> bool:
    """Whether `stream` is the journal's socket: systemd names its device and inode in JOURNAL_STREAM."""
    named = os.environ.get("JOURNAL_STREAM", "")
    try:
        status = os.fstat(stream.fileno())
    except (OSError, ValueError):
        return False
    return named == f"{status.st_dev}:{status.st_ino}"
