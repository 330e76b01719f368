"""The rig."""

from pathlib import Path

AUDIO = Path(__file__).resolve().parent / "audio"
"""The recorded commands and their `manifest.yaml`."""
