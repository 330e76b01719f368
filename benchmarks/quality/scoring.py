"""Commands with what must come of them, and how many end exactly right. Used by every benchmark of commands.

A wrong action: something changed although the command was to be refused. A stray action: another command changed what
it should not have.
"""

from __future__ import annotations

from collections import Counter
from dataclasses import dataclass
from pathlib import Path

from ruamel.yaml import YAML

from benchmarks.harness.paths import COMMANDS_TEXT
from hil.judge import Verdict
from pipeline.frames import Language


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what is said, how, and what must come of it."""

    id: str
    language: Language
    text: str
    expect: tuple[str, ...]
    audio: Path | None = None


def spoken_commands(folder: Path) -> list[Command]:
    """The recorded commands of a folder with manifest.yaml."""
    rows = YAML(typ="safe").load((folder / "manifest.yaml").read_text(encoding="utf-8"))
    return [Command(r["id"], r["lang"], r["text"], tuple(r["expect"]), folder / r["file"]) for r in rows]


def typed_commands() -> list[Command]:
    """The typed commands of the tests."""
    splits = YAML(typ="safe").load(COMMANDS_TEXT.read_text(encoding="utf-8"))
    rows = [(split, i, row) for split in splits for i, row in enumerate(splits[split])]
    return [Command(f"{split}{i}", row[0], row[1], tuple(row[2:])) for split, i, row in rows]


class Score:
    """Right ends per language and condition, and every wrong action by name."""

    def __init__(self) -> None:
        self.right: Counter[tuple[str, str]] = Counter()
        self.total: Counter[tuple[str, str]] = Counter()
        self.wrong_actions: list[str] = []
        self.stray_actions: list[str] = []
        self.misses: list[str] = []
        self.decided_by: dict[str, Counter[str]] = {}
        """Condition -> who decided ("rule", "manual", "model") -> commands."""

    def add(self, condition: str, command: Command, heard: str, verdict: Verdict) -> None:
        """Count one verdict."""
        key = (condition, command.language)
        self.total[key] += 1
        self.right[key] += verdict.right
        self.decided_by.setdefault(condition, Counter())[verdict.plan.decided_by] += 1
        if verdict.wrong_action:
            kept = self.wrong_actions if command.expect[0] == "refuse" else self.stray_actions
            kept.append(f"{condition} {command.id}: {heard}")
        if not verdict.right:
            self.misses.append(f"{condition} {command.id}: {heard}")

    def share(self, condition: str, language: str) -> float | None:
        """Share right, None when nothing was counted."""
        total = self.total[condition, language]
        return round(self.right[condition, language] / total, 4) if total else None
