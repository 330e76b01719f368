"""The one-way imports of the house, and what may not be imported where."""

from __future__ import annotations

import ast
from pathlib import Path

import pytest

ROOT = Path(__file__).resolve().parent.parent
LAYERS = {"models": 0, "pipeline": 1, "cockpit": 2, "hil": 3}
PURE = {"numpy", "cuda", "onnxruntime", "time"}
"""The arbiter decides and never computes: no arrays, no device, no clock."""


def imported(path: Path) -> set[str]:
    names: set[str] = set()
    for node in ast.walk(ast.parse(path.read_text(encoding="utf-8"))):
        if isinstance(node, ast.Import):
            names.update(alias.name for alias in node.names)
        elif isinstance(node, ast.ImportFrom) and node.module and node.level == 0:
            names.add(node.module)
    return names


def sources(folder: str) -> list[Path]:
    return sorted((ROOT / folder).rglob("*.py"))


@pytest.mark.parametrize("package", list(LAYERS))
def test_imports_run_one_way(package: str) -> None:
    files = sources(package)
    assert files
    for path in files:
        for name in imported(path):
            top = name.split(".")[0]
            if top in LAYERS:
                assert LAYERS[top] <= LAYERS[package], f"{path.relative_to(ROOT)} imports {name}"


def test_no_torch_or_transformers_at_run_time() -> None:
    for package in LAYERS:
        for path in sources(package):
            if path.is_relative_to(ROOT / "models" / "build"):
                continue
            tops = {name.split(".")[0] for name in imported(path)}
            assert not tops & {"torch", "transformers", "mobius"}, path


def test_only_the_device_folder_knows_cuda() -> None:
    for package in ("models", "pipeline", "cockpit"):
        for path in sources(package):
            if path.is_relative_to(ROOT / "cockpit" / "device"):
                continue
            assert "cuda" not in {name.split(".")[0] for name in imported(path)}, path


def test_arbiter_is_pure() -> None:
    for path in sources("cockpit/arbiter"):
        tops = {name.split(".")[0] for name in imported(path)}
        assert not tops & PURE, f"{path.relative_to(ROOT)} imports {tops & PURE}"
