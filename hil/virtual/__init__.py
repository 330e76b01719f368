"""Devices that a bench without hardware lends to `cockpit serve` in a child process.

Each folder goes first on its PYTHONPATH and holds one module that stands in for the package of that name.
"""

from pathlib import Path

AUDIO = Path(__file__).resolve().parent / "audio"
"""A microphone and a speaker: sounddevice."""
GPU = Path(__file__).resolve().parent / "gpu"
"""NVML's view of a GPU: pynvml."""
