"""Where the tests find their data."""

from __future__ import annotations

from pathlib import Path

ROOT = Path(__file__).resolve().parents[2]
DATA = ROOT / "tests" / "data"
AUDIO = ROOT / "hil" / "audio"
"""The 48 recorded commands and their `manifest.yaml`."""
