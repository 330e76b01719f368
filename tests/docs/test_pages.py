"""What the pages name exists: files, commands, options, benchmarks, exit codes, variables."""

from __future__ import annotations

import re
from functools import cache
from pathlib import Path

import pytest

from benchmarks.__main__ import BENCHMARKS
from cockpit.cli import EXIT_CODES
from cockpit.cli.command_tree import CommandNode
from cockpit.cli.completion import programs
from tests.support.paths import ROOT

PAGES = [ROOT / "README.md", ROOT / "CONTRIBUTING.md", *sorted((ROOT / "docs").glob("*.md"))]
FOLDERS = "cockpit|pipeline|models|profiles|hil|benchmarks|tests|docs|systemd"
PATH = re.compile(rf"(?<![\w/.~-])(?:{FOLDERS})/[\w./*<>-]+")
COMMAND = re.compile(r"(?<![\w/.-])(?:cockpit|o3ctl) [^`#\n]*")
PLACEHOLDER = re.compile(r"[A-Z]{2,}|\.\.\.|^\[|[|<>]")


def page_id(page: Path) -> str:
    return page.name


@cache
def nodes() -> dict[tuple[str, ...], CommandNode]:
    return {node.path: node for program in programs() for node in program.all()}


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_files_that_a_page_names_exist(page: Path) -> None:
    for name in PATH.findall(page.read_text(encoding="utf-8")):
        if "<" not in name:
            assert list(ROOT.glob(name.rstrip("./"))), f"{page.name} names {name}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_links_lead_somewhere(page: Path) -> None:
    for target in re.findall(r"\]\(([^)#]+)\)", page.read_text(encoding="utf-8")):
        if "://" not in target:
            assert (page.parent / target).exists(), f"{page.name} links to {target}"


def commands_of(page: Path) -> list[str]:
    """Commands in code: whole lines of blocks, and what stands between backticks."""
    text = page.read_text(encoding="utf-8")
    blocks = re.findall(r"^```sh\n(.*?)^```", text, re.DOTALL | re.MULTILINE)
    blocks += re.findall(r"^    (\S.*)$", text, re.MULTILINE)
    spans = re.findall(r"(?<!`)`([^`\n]+)`(?!`)", text)
    found = [match for piece in (*blocks, *spans) for line in piece.splitlines() for match in COMMAND.findall(line)]
    return [
        part for line in found for part in re.split(r"&&|;", line) if part.strip().startswith(("cockpit ", "o3ctl "))
    ]


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_commands_and_options_that_a_page_names_exist(page: Path) -> None:
    for line in commands_of(page):
        words = line.replace('"', " ").split()
        path = [words[0]]
        for word in words[1:]:
            if not nodes()[tuple(path)].commands:
                break
            options = [part for part in word.split("|") if not part.startswith("-") and not PLACEHOLDER.search(part)]
            assert all((*path, part) in nodes() for part in options), f"{page.name}: {line}"
            if len(options) != 1:
                break
            path.append(options[0])
        known = {
            name
            for node in nodes().values()
            if list(node.path[: len(path)]) == path
            for o in node.options
            for name in o.names
        }
        for option in re.findall(r"(?<!\S)\[?(--[\w-]+)", " ".join(words)):
            assert option in known, f"{page.name}: {line}: no {option}"


@pytest.mark.parametrize("page", PAGES, ids=page_id)
def test_benchmarks_that_a_page_names_exist(page: Path) -> None:
    known = {row.name for row in BENCHMARKS}
    for name in re.findall(r"-m benchmarks\.?\s?([a-z_][a-z_0-9]*)", page.read_text(encoding="utf-8")):
        assert name in known, f"{page.name} names the benchmark {name}"


def test_the_readme_lists_every_exit_code() -> None:
    listed = set(re.findall(r"^\| ([\d, ]+) \|", (ROOT / "README.md").read_text(encoding="utf-8"), re.MULTILINE))
    assert {code.strip() for codes in listed for code in codes.split(",")} == {str(code) for code, _ in EXIT_CODES}


def test_the_readme_and_the_man_page_list_every_variable() -> None:
    """Those that the code reads, XDG's own aside."""
    read = set()
    for folder in ("cockpit", "pipeline", "models"):
        for file in (ROOT / folder).rglob("*.py"):
            read |= set(re.findall(r"environ(?:\.get\(|\[)\"([A-Z0-9_]+)\"", file.read_text(encoding="utf-8")))
    named = {name for name in read if name.startswith(("COCKPIT_", "HF_", "O3CTL_"))}
    assert {"COCKPIT_CACHE", "COCKPIT_WEIGHTS", "HF_ENDPOINT"} <= named
    readme = (ROOT / "README.md").read_text(encoding="utf-8")
    manual = "".join(
        (ROOT / f"docs/share/man/man1/{name}.1").read_text(encoding="utf-8") for name in ("cockpit", "o3ctl")
    )
    assert [name for name in sorted(named) if f"| `{name}` |" not in readme] == []
    assert [name for name in sorted(named) if f".B {name}\n" not in manual] == []
