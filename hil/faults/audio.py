"""Faults of the microphone, through the folder that the virtual device looks into (hil.virtual.audio)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from hil.faults.base import Evidence, FaultUnavailable

MicrophoneFault = Literal["lost", "frames_stop", "xruns", "drift"]
DRIFT_PPM = 500.0
"""Far beyond two crystals (100 ppm each): what it breaks, a car would meet in an hour."""
_FILES = {"lost": "no-input", "frames_stop": "frames-stop", "xruns": "xruns", "drift": "drift"}
_COUNTED = {"lost": ("withheld", "refused"), "frames_stop": ("withheld",), "xruns": ("lost",), "drift": ("ahead_ns",)}
_SETTLE_S = 0.3
"""The device writes its counters ten times a second."""


@contextmanager
def microphone(folder: Path | None, kind: MicrophoneFault) -> Iterator[Evidence]:
    """lost: unplugged, and cannot be opened. frames_stop: there, and silent. xruns: every third block of 10 ms is lost.
    drift: its clock is DRIFT_PPM fast. folder: None where the device under test has a real microphone.
    """
    if folder is None:
        raise FaultUnavailable(f"microphone {kind} needs the rig's own microphone: a process that the rig starts")
    evidence = Evidence(f"microphone {kind}")
    file, before = folder / _FILES[kind], counters(folder)
    file.write_text(str(DRIFT_PPM) if kind == "drift" else "")
    try:
        yield evidence
    finally:
        time.sleep(_SETTLE_S)
        after = counters(folder)
        file.unlink(missing_ok=True)
        for name in _COUNTED[kind]:
            if after.get(name, 0) > before.get(name, 0):
                evidence.add(f"the device counts {name} +{after[name] - before.get(name, 0)}")


def counters(folder: Path) -> dict[str, Any]:
    """What the virtual device says that it did. Empty before it was opened."""
    try:
        return dict(json.loads((folder / "counters").read_text()))
    except (OSError, ValueError):
        return {}
