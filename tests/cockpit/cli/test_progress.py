"""Progress of downloads and builds: numbers stay whole at 80 columns, and there is a total over everything."""

from __future__ import annotations

import io
import re

import pytest
from rich.console import Console

from cockpit.cli.progress import bars, steps

LONG = "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf 3/6"


@pytest.fixture
def terminal() -> Console:
    """A terminal of 80 columns."""
    return Console(file=io.StringIO(), width=80, force_terminal=True, color_system=None)


def last_lines(terminal: Console) -> list[str]:
    """What stood on the terminal at the end: every line as it was drawn last."""
    assert isinstance(terminal.file, io.StringIO)
    plain = re.sub(r"\x1b\[[0-9;?]*[A-Za-z]", "\n", terminal.file.getvalue())
    return [line for line in re.split(r"[\r\n]+", plain) if line.strip()]


def test_a_download_shows_whole_numbers_and_a_total(terminal: Console) -> None:
    with bars(quiet=False, total_bytes=812_345_678, terminal=terminal) as shown:
        shown.start(LONG, 98_765_432, 1_000_000)
        shown.advance(70_000_000)
        shown.say("whisper-base: already here")
    lines = last_lines(terminal)
    assert all(len(line) <= 80 for line in lines)
    assert any("all files" in line and "71.0/812.3 MB" in line for line in lines)
    assert any("qwen2.5" in line and "…" in line and "71.0/98.8 MB" in line for line in lines)
    assert any("whisper-base: already here" in line for line in lines)


def test_the_total_never_runs_past_its_end(terminal: Console) -> None:
    with bars(quiet=False, total_bytes=1_000_000, terminal=terminal) as shown:
        shown.start("a.whl", 2_000_000, 0)
        shown.advance(2_000_000)
        shown.finish()
        shown.advance(5)  # nothing is being fetched: no bar to move
    assert any("all files" in line and "1.0/1.0 MB" in line for line in last_lines(terminal))


def test_a_build_shows_its_step_and_how_many_are_done(terminal: Console) -> None:
    with steps(quiet=False, total=4, terminal=terminal) as shown:
        shown.begin("whisper-base", work=True)
        shown.step("building an encoder of a very long name, of which the end has no room", 0.5)
        shown.end("whisper-base: built in 3.0 s")
        shown.begin("silero-vad", work=True)
        shown.step("copying", 0.0)
    lines = last_lines(terminal)
    assert all(len(line) <= 80 for line in lines)
    assert any("whisper-base: built in 3.0 s" in line for line in lines)
    assert any("silero-vad: copying" in line and "25%" in line and "1" in line and "/4" in line for line in lines)


def test_a_log_gets_lines_and_json_nothing(capsys: pytest.CaptureFixture[str]) -> None:
    for quiet in (False, True):
        with bars(quiet=quiet, total_bytes=5_000_000) as shown:
            shown.start("w.bin", None, 1000)
            shown.advance(10)
            shown.finish()
            shown.say("fake: fetched")
        with steps(quiet=quiet, total=1) as built:
            built.begin("fake", work=True)
            built.step("writing", 0.5)
            built.end("fake: built in 1 s")
        said = capsys.readouterr()
        assert said.out == ""
        assert (said.err == "") == quiet
        if not quiet:
            assert said.err.splitlines() == [
                "to fetch: 5.0 MB in all", "fetching w.bin (unknown size, going on from 1.0 KB)", "fake: fetched",
                "fake: building", "   50% writing", "fake: built in 1 s",
            ]  # fmt: skip
