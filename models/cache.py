"""Where fetched and built models are, and what is said where nothing can be kept there."""

from __future__ import annotations

import os
from pathlib import Path

from models.errors import StartupError

_REMEDY = "set COCKPIT_CACHE to a folder that this user may write"


def cache_root() -> Path:
    """`COCKPIT_CACHE`, or `~/.cache/cockpit`. Raises StartupError where this user has no home."""
    try:
        return Path(os.environ.get("COCKPIT_CACHE") or "~/.cache/cockpit").expanduser()
    except RuntimeError as error:
        raise StartupError(f"this user has no home folder for models; {_REMEDY}") from error


def writable(folder: Path) -> Path:
    """`folder`, made where it is not there. Raises StartupError where it cannot be made or written: a home that is
    missing or read-only.
    """
    try:
        folder.mkdir(parents=True, exist_ok=True)
    except OSError as error:
        raise StartupError(f"{folder} cannot be made ({error.strerror}); {_REMEDY}") from error
    if not os.access(folder, os.W_OK | os.X_OK):
        raise StartupError(f"{folder} cannot be written; {_REMEDY}")
    return folder
