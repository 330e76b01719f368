"""A user's module that hides one of Cockpit's packages is named with the remedy, without a traceback."""

from __future__ import annotations

import os
import subprocess
import sys
from pathlib import Path

import pytest

from cockpit.own_packages import CANNOT_START, PACKAGES
from models.errors import StartupError
from tests.support.source_code import imported, sources

ROOT = Path(__file__).resolve().parents[2]
SCRIPT = "import sys; sys.argv[0] = {program!r}\nfrom cockpit.__main__ import main\n"


def run(*arguments: str, folder: Path) -> subprocess.CompletedProcess[str]:
    """Python in `folder`, which comes before Cockpit on the import path."""
    environment = {**os.environ, "PYTHONPATH": os.pathsep.join([str(folder), str(ROOT)])}
    return subprocess.run(
        [sys.executable, *arguments], cwd=folder, env=environment, capture_output=True, text=True, check=False
    )


def hide(name: str, folder: Path, *, package: bool) -> Path:
    file = folder / name / "__init__.py" if package else folder / f"{name}.py"
    file.parent.mkdir(exist_ok=True)
    file.write_text("MINE = True\n")
    return file


@pytest.mark.parametrize("package", [False, True])
@pytest.mark.parametrize("name", PACKAGES)
@pytest.mark.parametrize(
    "arguments",
    [("-m", "cockpit", "--version"), ("-c", SCRIPT.format(program="/venv/bin/cockpit"))],
    ids=["module", "script"],
)
def test_programs_say_what_hides_them(arguments: tuple[str, ...], name: str, package: bool, tmp_path: Path) -> None:
    file = hide(name, tmp_path, package=package)
    done = run(*arguments, folder=tmp_path)
    assert done.returncode == CANNOT_START == StartupError.exit_code
    assert done.stderr.count("\n") == 1
    assert done.stderr.startswith(f"cockpit: {file} hides Cockpit's own package {name!r}")
    assert "an environment of its own" in done.stderr
    assert done.stdout == ""


@pytest.mark.parametrize("first", ["", "import models\n"], ids=["not imported yet", "imported before"])
def test_a_library_user_gets_an_import_error(first: str, tmp_path: Path) -> None:
    file = hide("models", tmp_path, package=False)
    (tmp_path / "app.py").write_text(f"{first}from cockpit.assemble import assemble\n")
    done = run("app.py", folder=tmp_path)
    assert done.returncode == 1
    assert done.stderr.splitlines()[-1].startswith(f"ImportError: {file} hides Cockpit's own package 'models'")


def test_a_folder_without_code_hides_nothing(tmp_path: Path) -> None:
    """A plain folder (`models/` full of weights) comes after a package in Python's own order."""
    (tmp_path / "models").mkdir()
    (tmp_path / "pipeline").mkdir()
    done = run("-m", "cockpit", "--version", folder=tmp_path)
    assert done.returncode == 0, done.stderr


def test_every_package_imported_beside_cockpit_is_checked() -> None:
    """`cockpit` may import no further top-level package of the house without its being checked."""
    house = {folder.name for folder in ROOT.iterdir() if (folder / "__init__.py").is_file()}
    tops = {
        name.split(".")[0] for package in ("cockpit", *PACKAGES) for path in sources(package) for name in imported(path)
    }
    assert tops & house == {"cockpit", *PACKAGES}
