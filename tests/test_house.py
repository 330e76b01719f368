"""The one-way imports of the house, what may not be imported where, and how full a folder may be."""

from __future__ import annotations

import pytest

from tests.support.paths import ROOT
from tests.support.source_code import imported, sources, tops

LAYERS = {"models": 0, "pipeline": 1, "cockpit": 2, "hil": 3, "benchmarks": 4, "docs": 4, "tests": 5}
PRODUCT = ("models", "pipeline", "cockpit", "hil")
AT_THE_BENCH = ROOT / "models" / "train"
"""Writes what models are trained on, and holds it against the tools and numbers of the pipeline. Nothing that serves
imports it, so no circle can come of it.
"""
PURE = {"numpy", "cuda", "onnxruntime", "time"}
"""The arbiter decides and never computes: no arrays, no device, no clock."""
MODULES_PER_FOLDER = 16
CROWDED = {"models/build": 19, "cockpit/cli": 18}
"""What a built model was made by is known by the names in models/build: moving one means rebuilding all. In cockpit/cli
every command of the program is a file.
"""
ONLY_TESTS = {
    "tests",
    "tests/data",
    "tests/docs",
    "tests/support",
    "tests/support/headunit",
    "tests/support/nlu",
    "tests/support/service",
    "tests/support/cuda",
}


@pytest.mark.parametrize("package", list(LAYERS))
def test_imports_run_one_way(package: str) -> None:
    for path in sources(package):
        above = {top for top in tops(path) & set(LAYERS) if top != package and LAYERS[top] >= LAYERS[package]}
        above -= {"pipeline"} if path.is_relative_to(AT_THE_BENCH) else set()
        assert not above, f"{path.relative_to(ROOT)} imports {above}"


def test_nothing_that_serves_imports_what_trains() -> None:
    for path in (path for package in ("models", "pipeline") for path in sources(package)):
        if not path.is_relative_to(AT_THE_BENCH):
            assert not {name for name in imported(path) if name.startswith("models.train")}, path


def test_nothing_imports_a_test() -> None:
    """What two tests need stands in tests/support."""
    for path in sources("tests"):
        wrong = {name for name in imported(path) if name.startswith("tests.") and not name.startswith("tests.support")}
        assert not wrong, f"{path.relative_to(ROOT)} imports {wrong}"


def test_no_torch_or_transformers_at_run_time() -> None:
    for path in (path for package in PRODUCT for path in sources(package)):
        if not path.is_relative_to(ROOT / "models" / "build") and not path.is_relative_to(AT_THE_BENCH):
            assert not tops(path) & {"torch", "transformers", "mobius"}, path


def test_only_the_device_folder_knows_cuda() -> None:
    for path in (path for package in PRODUCT for path in sources(package)):
        if not path.is_relative_to(ROOT / "cockpit" / "device"):
            assert "cuda" not in tops(path), path


def test_arbiter_is_pure() -> None:
    for path in sources("cockpit/arbiter"):
        assert not tops(path) & PURE, f"{path.relative_to(ROOT)} imports {tops(path) & PURE}"


def test_no_folder_is_crowded() -> None:
    for folder in {path.parent for package in LAYERS for path in sources(package)}:
        name = folder.relative_to(ROOT).as_posix()
        modules = sorted(path.stem for path in folder.glob("*.py") if path.stem != "__init__")
        assert len(modules) <= CROWDED.get(name, MODULES_PER_FOLDER), f"{name}: give one subject a folder: {modules}"


def test_tests_mirror_the_packages() -> None:
    folders = {path.parent.relative_to(ROOT).as_posix() for path in sources("tests")} - ONLY_TESTS
    assert len(folders) > 10
    gone = {folder for folder in folders if not (ROOT / folder.removeprefix("tests/")).is_dir()}
    assert not gone, f"these packages are not there: {gone}"
