"""The hardware-in-the-loop rig: recorded commands, noise, scoring, a simulator of the arbiter's load."""

from pathlib import Path

AUDIO = Path(__file__).resolve().parent / "audio"
"""The recorded commands and their `manifest.yaml`."""
