"""`make` finds a Python that fits, says which ones it saw when none does, and mends a broken environment."""

from __future__ import annotations

import os
import shutil
import subprocess
from pathlib import Path

import pytest

from tests.support.paths import ROOT

TOOLS = ("sh", "make", "ls", "rm", "mkdir", "env", "find")
MISSING = [tool for tool in TOOLS if shutil.which(tool) is None]
pytestmark = pytest.mark.skipif(bool(MISSING), reason=f"not installed: {', '.join(MISSING)}")


@pytest.fixture
def tools(tmp_path: Path) -> Path:
    """A PATH of the tools that recipes use, and no Python."""
    folder = tmp_path / "bin"
    folder.mkdir()
    for tool in TOOLS:
        found = shutil.which(tool)
        assert found is not None
        (folder / tool).symlink_to(found)
    return folder


def python(folder: Path, name: str, version: str) -> None:
    """A stand-in for an interpreter of `version`: answers the check, and makes environments with itself inside."""
    major, minor, _ = version.split(".")
    supported = major == "3" and 11 <= int(minor) <= 13
    script = folder / name
    script.parent.mkdir(parents=True, exist_ok=True)
    script.write_text(
        "#!/bin/sh\n"
        f'if [ "$1" = -c ]; then echo {version}; exit {0 if supported else 1}; fi\n'
        f'if [ "$2" = venv ]; then mkdir -p "$3/bin"; : > "$3/pyvenv.cfg"; : > "$3/made-by-{name}"; fi\n'
    )
    script.chmod(0o755)


def make(tools: Path, where: Path, *arguments: str) -> tuple[int, str]:
    shutil.copy(ROOT / "Makefile", where / "Makefile")
    (where / "pyproject.toml").touch()
    environment = {"PATH": str(tools), "HOME": str(where), "LC_ALL": "C"}
    command = ["make", "--no-print-directory", *arguments]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=where, env=environment)
    return done.returncode, done.stdout + done.stderr


def test_a_wrong_python_is_said_in_two_lines(tools: Path, tmp_path: Path) -> None:
    python(tools, "python3", "3.9.2")
    python(tools, "python3.13", "3.14.0")
    code, said = make(tools, tmp_path, "demo")
    assert code == 2
    assert "needs Python 3.11, 3.12 or 3.13 with venv; found: python3 is 3.9.2, python3.13 is 3.14.0," in said
    assert "python3.12 is not here" in said
    assert "make PYTHON=" in said
    assert len(said.splitlines()) <= 4
    code, said = make(tools, tmp_path, "demo", "PYTHON=python3")
    assert "found: python3 is 3.9.2." in said


def test_a_python_that_fits_is_found(tools: Path, tmp_path: Path) -> None:
    python(tools, "python3", "3.14.1")
    python(tools, "python3.12", "3.12.9")
    code, said = make(tools, tmp_path, ".venv/bin/python")
    assert code == 0, said
    assert "with python3.12 (3.12.9)" in said
    assert (tmp_path / ".venv" / "made-by-python3.12").exists()


def test_a_broken_environment_is_made_anew_and_a_sound_one_kept(tools: Path, tmp_path: Path) -> None:
    python(tools, "python3", "3.12.1")
    environment = tmp_path / ".venv"
    (environment / "bin").mkdir(parents=True)
    (environment / "pyvenv.cfg").touch()
    (environment / ".test").touch()
    (environment / "bin" / "python").symlink_to(tmp_path / "gone")
    assert make(tools, tmp_path, ".venv/bin/python")[0] == 0
    assert (environment / "made-by-python3").exists()
    assert not (environment / ".test").exists()
    python(environment / "bin", "python", "3.12.1")
    (environment / "mine").touch()
    assert make(tools, tmp_path, ".venv/bin/python")[0] == 0
    assert (environment / "mine").exists()
    python(environment / "bin", "python", "3.10.1")
    assert make(tools, tmp_path, ".venv/bin/python")[0] == 0
    assert not (environment / "mine").exists()


def test_what_is_no_environment_is_never_removed(tools: Path, tmp_path: Path) -> None:
    python(tools, "python3", "3.12.1")
    (tmp_path / "thesis").mkdir()
    (tmp_path / "thesis" / "chapter").touch()
    code, said = make(tools, tmp_path, "demo", "VENV=thesis")
    assert code == 2
    assert "no virtual environment" in said
    assert (tmp_path / "thesis" / "chapter").exists()


def test_clean_takes_products_and_distclean_the_environment(tools: Path, tmp_path: Path) -> None:
    for name in ("out/demo", "cockpit/__pycache__", ".venv/lib/__pycache__", ".mypy_cache"):
        (tmp_path / name).mkdir(parents=True)
    assert make(tools, tmp_path, "clean")[0] == 0
    assert not (tmp_path / "out").exists()
    assert not (tmp_path / "cockpit" / "__pycache__").exists()
    assert (tmp_path / ".venv" / "lib" / "__pycache__").exists()
    assert make(tools, tmp_path, "distclean")[0] == 0
    assert not (tmp_path / ".venv").exists()
    assert os.path.isdir(tmp_path / "cockpit")
