"""What is made from the code is current, and can be looked at."""

from __future__ import annotations

import shutil
import subprocess
import xml.etree.ElementTree as ET
from pathlib import Path

import pytest

from cockpit.cli.command_tree import CommandNode
from cockpit.cli.completion import programs
from docs.generate.__main__ import made
from docs.generate.architecture import between
from docs.generate.house import ROOT, edges, first_sentence, room, stages

MADE = made()


@pytest.mark.parametrize("path", sorted(MADE))
def test_generated_files_are_current(path: str) -> None:
    found = (ROOT / path).read_text(encoding="utf-8") if (ROOT / path).is_file() else None
    assert found == MADE[path], f"{path} is out of date; run: make docs"


def test_stages_follow_each_other_and_every_channel_is_read() -> None:
    rows = stages()
    assert [row.outbox for row in rows[:-1]] == [row.inbox for row in rows[1:]] == [edge.name for edge in edges()][1:]
    assert rows[-1].outbox is None
    for row in rows:
        assert row.files, f"nothing found of stage {row.name}"
        assert all((ROOT / file).is_file() for file in row.files)


def test_every_kind_of_engine_is_found_behind_its_stage() -> None:
    found = {engine for row in stages() for engine in row.engines}
    assert found == {f"models/engines/{name}" for name in ("vad", "wake", "whisper", "llm", "tts")}
    assert ["cockpit/arbiter" in row.scheduled for row in stages() if "models/engines/llm" in row.engines] == [True]


@pytest.mark.parametrize("path", [path for path in sorted(MADE) if path.endswith(".svg")])
def test_pictures_hold_their_text(path: str) -> None:
    """Well-formed, nothing from elsewhere, no text or box beyond the edge, light and dark."""
    picture = ET.fromstring(MADE[path])
    _, _, width, height = (float(part) for part in picture.attrib["viewBox"].split())
    for box in picture.iter("{http://www.w3.org/2000/svg}rect"):
        assert float(box.get("x", "0")) + float(box.attrib["width"]) <= width
        assert float(box.get("y", "0")) + float(box.attrib["height"]) <= height
    for text in picture.iter("{http://www.w3.org/2000/svg}text"):
        needed = len(text.text or "") * float(text.attrib["font-size"]) * 0.5
        left = {"middle": 0.5, "end": 1.0}.get(text.get("text-anchor", ""), 0.0)
        assert float(text.attrib["x"]) - left * needed >= 0
        assert float(text.attrib["x"]) + (1 - left) * needed <= width, text.text
        assert float(text.attrib["y"]) <= height
    assert "prefers-color-scheme: dark" in MADE[path]
    assert "http" not in MADE[path].replace("http://www.w3.org/2000/svg", "")


@pytest.mark.parametrize("path", [path for path in sorted(MADE) if path.endswith(".1")])
@pytest.mark.parametrize("checker", [("groff", "-wall", "-man", "-Tutf8"), ("mandoc", "-Tlint", "-Wwarning")])
def test_man_pages_are_well_formed(path: str, checker: tuple[str, ...], tmp_path: Path) -> None:
    if shutil.which(checker[0]) is None:
        pytest.skip(f"{checker[0]} is not installed")
    file = tmp_path / "page.1"
    file.write_text(MADE[path], encoding="utf-8")
    done = subprocess.run([*checker, file], capture_output=True, text=True, check=False)
    complaints = done.stderr + (done.stdout if checker[0] == "mandoc" else "")
    assert (done.returncode, complaints) == (0, "")


@pytest.mark.parametrize("program", programs(), ids=lambda program: program.path[0])
def test_man_pages_name_every_command_and_option(program: CommandNode) -> None:
    page = MADE[f"docs/share/man/man1/{program.path[0]}.1"].replace("\\-", "-")
    for node in program.all():
        if not node.commands:
            assert f".SS {' '.join(node.path)}" in page
        assert all(name in page for option in node.options for name in option.names)
    for heading in ("NAME", "SYNOPSIS", "DESCRIPTION", "COMMANDS", "EXIT STATUS", "SEE ALSO"):
        assert f"\n.SH {heading}\n" in page


@pytest.mark.parametrize("layer", ["cockpit", "pipeline", "models", "hil", "profiles", "benchmarks", "tests", "docs"])
def test_every_package_says_what_it_is_for(layer: str) -> None:
    """In one sentence that a card of the picture can hold."""
    waiting = [room(layer)]
    while waiting:
        entry = waiting.pop()
        waiting += entry.rooms
        assert 10 < len(entry.purpose) <= 110, f"{entry.path}/__init__.py needs a first sentence of 10 to 110 letters"


def test_the_first_sentence_only() -> None:
    assert first_sentence("One thing.\n\nMore.") == "One thing"
    assert first_sentence("One thing. And more.") == "One thing"
    assert first_sentence("1.5 s of\nsilence") == "1.5 s of silence"
    assert first_sentence(None) == ""


def test_a_page_without_its_marks_is_refused() -> None:
    with pytest.raises(ValueError, match="generated: x"):
        between("no marks", "x", "text")
    assert between("a <!-- generated: x -->old<!-- end: x --> b", "x", "new") == (
        "a <!-- generated: x -->\nnew\n<!-- end: x --> b"
    )
