"""Where log lines go, and in which format."""

from __future__ import annotations

import io
import logging
import os
import sys
from collections.abc import Iterator
from pathlib import Path

import pytest

from cockpit.telemetry.logs import LogLevel, configure
from models.errors import InputError
from pipeline.frames import ToolCall, ToolResult
from pipeline.turn_log import TurnRecord


@pytest.fixture(autouse=True)
def root_as_it_was() -> Iterator[None]:
    root = logging.getLogger()
    before, level = list(root.handlers), root.level
    yield
    root.handlers[:], root.level = before, level


def test_the_journal_gets_priorities_and_no_times(tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> None:
    with (tmp_path / "journal").open("w+") as journal:
        status = os.fstat(journal.fileno())
        monkeypatch.setenv("JOURNAL_STREAM", f"{status.st_dev}:{status.st_ino}")
        monkeypatch.setattr(sys, "stderr", journal)
        configure(LogLevel.info)
        log = logging.getLogger("cockpit.test")
        log.debug("not this")
        log.info("lane 1: %s", "ok")
        log.warning("two\nlines")
        log.error("worse")
        journal.seek(0)
        assert journal.read().splitlines() == [
            "<6>cockpit.test: lane 1: ok",
            "<4>cockpit.test: two",
            "<4>cockpit.test: lines",
            "<3>cockpit.test: worse",
        ]


def test_elsewhere_lines_have_time_and_level_and_follow_stderr(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("JOURNAL_STREAM", "1:2")
    first, second = io.StringIO(), io.StringIO()
    monkeypatch.setattr(sys, "stderr", first)
    configure(LogLevel.warning)
    configure(LogLevel.warning)  # once more replaces, and does not print twice
    logging.getLogger("cockpit.test").info("not this")
    logging.getLogger("cockpit.test").warning("this")
    monkeypatch.setattr(sys, "stderr", second)  # what rich does while a live line is shown
    logging.getLogger("cockpit.test").warning("that")
    assert first.getvalue().endswith(" WARNING cockpit.test: this\n")
    assert first.getvalue().count("\n") == second.getvalue().count("\n") == 1


def test_a_turns_line_holds_nothing_that_was_heard_done_or_said() -> None:
    call = ToolCall("navigate_to", {"place": "the clinic"})
    record = TurnRecord(7, 2, "en", "Take me to the clinic.", (ToolResult(call, "done", None, "clinic"),), "Off to it.")
    record.decided_by = "rule"
    record.ms["first_audio"] = 243.4
    record.interrupted = True
    line = record.as_log_line()
    assert line == "turn 7, en, generation 2, decided by rule, calls done, first_audio 243 ms, interrupted"


def test_a_trace_that_could_not_be_written_is_refused_before_the_run(tmp_path: Path) -> None:
    from cockpit.telemetry.trace import check_writable

    check_writable(tmp_path / "trace.json")
    assert list(tmp_path.iterdir()) == []
    for path in (tmp_path, tmp_path / "no" / "trace.json", Path("/proc/trace.json")):
        with pytest.raises(InputError, match="choose another --trace"):
            check_writable(path)
