"""Turns are printed as they end; partial transcripts only on a terminal."""

from __future__ import annotations

import json
import os
import pty
import subprocess
import sys

import pytest

from cockpit.cli.timeline import TurnPrinter
from pipeline.frames import Transcript
from pipeline.turn_log import TurnRecord
from tests.support.paths import ROOT
from tests.support.waiting import until

RECORD = TurnRecord(3, 0, "en", "Open the window.", (), "The window is open.")
PARTIAL = Transcript(3, 0, 1, "partial", "Open the", "en", -0.1, 0)


def test_piped_there_is_the_turn_at_once_and_nothing_of_the_partials(capfd: pytest.CaptureFixture[str]) -> None:
    printed = ""

    def turn_is_out() -> bool:
        nonlocal printed
        printed += capfd.readouterr().out
        return "The window is open." in printed

    with TurnPrinter("microphone", as_json=False) as printer:
        printer.heard(PARTIAL)
        printer.ended(RECORD)
        until(turn_is_out)  # while it still runs, not at its end
    printed += capfd.readouterr().out
    assert "\x1b" not in printed
    assert "…" not in printed
    assert printed.startswith("microphone  (turn 3, en)\n  heard   Open the window.\n")


def test_json_is_one_object_a_line(capfd: pytest.CaptureFixture[str]) -> None:
    with TurnPrinter("microphone", as_json=True) as printer:
        for _ in range(3):
            printer.heard(PARTIAL)
            printer.ended(RECORD)
    lines = capfd.readouterr().out.splitlines()
    assert [json.loads(line)["turn_id"] for line in lines] == [3, 3, 3]


def test_a_terminal_shows_partials_on_one_line_that_goes_away() -> None:
    code = (
        "from tests.cockpit.cli.test_timeline import *\n"
        "with TurnPrinter('microphone', as_json=False) as printer:\n"
        "    printer.heard(PARTIAL)\n"
        "    printer.ended(RECORD)\n"
    )
    ours, theirs = pty.openpty()
    quiet = {key: value for key, value in os.environ.items() if key != "NO_COLOR"} | {"TERM": "xterm"}
    subprocess.run([sys.executable, "-c", code], stdout=theirs, check=True, cwd=ROOT, env=quiet, timeout=300)
    os.close(theirs)
    shown = os.read(ours, 1 << 16).decode()
    os.close(ours)
    assert "… Open the" in shown
    assert "\x1b[2K" in shown  # the line is erased before the turn is printed
    assert shown.index("… Open the") < shown.index("heard   Open the window.")


def test_a_reader_that_has_gone_holds_up_nobody() -> None:
    """stdout is a closed pipe: every turn is taken all the same, and the process ends as if nothing was."""
    code = (
        "from tests.cockpit.cli.test_timeline import *\n"
        "with TurnPrinter('microphone', as_json=True) as printer:\n"
        "    for _ in range(1000): printer.ended(RECORD)\n"
    )
    reader, writer = os.pipe()
    os.close(reader)
    command = [sys.executable, "-c", code]
    ran = subprocess.run(command, stdout=writer, stderr=subprocess.PIPE, text=True, cwd=ROOT, timeout=300, check=False)
    os.close(writer)
    assert (ran.returncode, ran.stderr) == (0, "")
