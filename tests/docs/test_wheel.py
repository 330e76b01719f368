"""The wheel: its packages and nothing else, typed, with man pages and completion, and it runs without the clone."""

from __future__ import annotations

import os
import subprocess
import sys
import tomllib
import zipfile
from email.parser import Parser
from pathlib import Path

import pytest

from cockpit import __version__
from tests.support.paths import ROOT

PACKAGES = {"cockpit", "pipeline", "models", "profiles", "hil"}


@pytest.fixture(scope="module")
def wheel(tmp_path_factory: pytest.TempPathFactory) -> Path:
    folder = tmp_path_factory.mktemp("wheel")
    command = [sys.executable, "-m", "hatchling", "build", "-t", "wheel", "-d", str(folder)]
    done = subprocess.run(command, cwd=ROOT, capture_output=True, text=True, check=False)
    assert done.returncode == 0, done.stderr
    (file,) = folder.glob("*.whl")
    return file


@pytest.fixture(scope="module")
def names(wheel: Path) -> set[str]:
    return set(zipfile.ZipFile(wheel).namelist())


def test_it_owns_the_packages_that_the_readme_names(names: set[str]) -> None:
    tops = {name.split("/")[0] for name in names if ".dist-info/" not in name and ".data/" not in name}
    assert tops == PACKAGES


def test_every_package_is_typed(names: set[str]) -> None:
    assert {f"{package}/py.typed" for package in PACKAGES} <= names


def test_every_file_of_the_packages_is_in_it(names: set[str]) -> None:
    listed = subprocess.run(["git", "ls-files", *PACKAGES], cwd=ROOT, capture_output=True, text=True, check=False)
    if listed.returncode:
        pytest.skip("no git here")
    assert {line for line in listed.stdout.splitlines() if (ROOT / line).exists()} <= names


def test_man_pages_and_completion_are_put_under_share(names: set[str]) -> None:
    share = {name.partition(".data/data/")[2] for name in names if ".data/data/" in name}
    made = {path.relative_to(ROOT / "docs").as_posix() for path in (ROOT / "docs/share").rglob("*") if path.is_file()}
    assert share == made
    assert {"share/man/man1/cockpit.1", "share/man/man1/o3ctl.1"} <= share


def test_its_metadata(wheel: Path) -> None:
    archive = zipfile.ZipFile(wheel)
    info = next(name for name in archive.namelist() if name.endswith(".dist-info/METADATA"))
    meta = Parser().parsestr(archive.read(info).decode())
    project = tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"]
    assert meta["Version"] == __version__
    assert meta["License-Expression"] == "Apache-2.0"
    assert meta.get_all("Classifier") == project["classifiers"]


def test_it_runs_without_the_clone(wheel: Path, tmp_path: Path) -> None:
    zipfile.ZipFile(wheel).extractall(tmp_path / "site")
    environment = {**os.environ, "PYTHONPATH": str(tmp_path / "site")}
    for arguments, expected in (
        (("--version",), f"cockpit {__version__}\n"),
        (("profile", "check", "cpu"), "cpu"),
        (("models", "list"), "whisper-base"),
    ):
        command = [sys.executable, "-m", "cockpit", *arguments]
        done = subprocess.run(command, cwd=tmp_path, env=environment, capture_output=True, text=True, check=False)
        assert done.returncode == 0, done.stderr
        assert expected in done.stdout


def test_the_changelog_names_the_version() -> None:
    assert f"\n## [{__version__}] - 20" in (ROOT / "CHANGELOG.md").read_text(encoding="utf-8")
