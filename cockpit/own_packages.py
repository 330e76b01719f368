"""Cockpit's wheel installs `models` and `pipeline` beside `cockpit`. A user's own `models.py` that comes first on the
import path hides Cockpit's: this is found here, before the first import that would fail, and said in one line."""

from __future__ import annotations

import importlib.util
import sys
from pathlib import Path
from typing import NoReturn

PACKAGES = ("models", "pipeline")
"""What `cockpit` imports beside itself (`profiles` and `hil` hold data that is found by path)."""

PROGRAMS = ("cockpit", "o3ctl", "-m")
"""`sys.argv[0]` of the two scripts, and of `python -m cockpit` while Python looks for the module."""

CANNOT_START = 3
"""`StartupError.exit_code`; `models.errors` may be what is hidden."""


def refuse_if_hidden() -> None:
    """Do nothing when `PACKAGES` are Cockpit's own. Otherwise end a program of Cockpit with one line and exit code 3,
    and raise ImportError with the same line in anybody else's."""
    home = Path(__file__).resolve().parents[1]
    for name in PACKAGES:
        found = _origin(name)
        if found is None or Path(found).resolve().parent != home / name:
            _refuse(name, found, home)


def _origin(name: str) -> str | None:
    try:
        spec = importlib.util.find_spec(name)
    except ValueError:  # already imported, by hand, without a spec
        return getattr(sys.modules[name], "__file__", None)
    return None if spec is None else spec.origin


def _refuse(name: str, found: str | None, home: Path) -> NoReturn:
    if found is None:
        message = f"the package {name!r} is missing beside {home / 'cockpit'}; install cockpit-voice again"
    else:
        message = (
            f"{found} hides Cockpit's own package {name!r} ({home / name}); rename it, start from another folder, "
            "take its folder off PYTHONPATH, or install Cockpit in an environment of its own (pipx, uv tool or a venv)"
        )
    program = Path(sys.argv[0]).name if getattr(sys, "argv", None) else ""
    if program in PROGRAMS:
        sys.stderr.write(f"cockpit: {message}\n")
        raise SystemExit(CANNOT_START)
    raise ImportError(message, name=name, path=found)
