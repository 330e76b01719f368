"""What the repository's Python files import."""

from __future__ import annotations

import ast
from functools import cache
from pathlib import Path

from tests.support.paths import ROOT


@cache
def imported(path: Path) -> set[str]:
    """Every module that the file imports, in functions too; a name taken from a module counts as one."""
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.update({node.module, *(f"{node.module}.{alias.name}" for alias in node.names)})
    return names


def tops(path: Path) -> set[str]:
    """The top packages of what the file imports."""
    return {name.split(".")[0] for name in imported(path)}


def sources(folder: str) -> list[Path]:
    """The Python files under a folder of the repository. Raises AssertionError where there are none."""
    found = sorted(path for path in (ROOT / folder).rglob("*.py") if "__pycache__" not in path.parts)
    assert found, folder
    return found
