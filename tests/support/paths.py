"""Where the tests find their data."""

from __future__ import annotations

import tempfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
AUDIO = ROOT / "hil" / "audio"
"""The 48 recorded commands and their `manifest.yaml`."""


@contextmanager
def short_folder() -> Iterator[Path]:
    """A folder for sockets: their path has to fit 108 bytes, which pytest's `tmp_path` does not leave room for."""
    with tempfile.TemporaryDirectory(prefix="o3") as name:
        yield Path(name)
