"""Faults of the GPU as NVML shows them, through the file that the virtual GPU reads (hil.virtual.gpu)."""

from __future__ import annotations

import json
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any, Literal

from hil.faults.base import Evidence, FaultUnavailable

GpuFault = Literal["pcie_x8", "thermal", "lost", "nvml_gone"]
_STATES: dict[GpuFault, dict[str, Any]] = {
    "pcie_x8": {"pcie_width": 8},
    "thermal": {"clock_events": 0x40, "sm_clock_mhz": 990, "temperature_c": 95},
    "lost": {"lost": True},
    "nvml_gone": {"gone": True},
}
_LOOKED_S = 5.0
"""The process looks about once a second."""


@contextmanager
def gpu(file: Path | None, kind: GpuFault) -> Iterator[Evidence]:
    """pcie_x8: the link trained at half its width. thermal: hardware holds the clocks down. lost: what XID 79 leaves.
    nvml_gone: the driver answers nothing. file: None where the device under test has no virtual GPU.
    """
    if file is None:
        raise FaultUnavailable(f"gpu {kind} needs the rig's virtual GPU: a process that the rig starts")
    evidence = Evidence(f"gpu {kind}")
    write_state(file, _STATES[kind])
    before, end_s = reads(file), time.monotonic() + _LOOKED_S
    try:
        yield evidence
    finally:
        while reads(file) <= before and time.monotonic() < end_s:
            time.sleep(0.05)
        if reads(file) > before:
            evidence.add(f"the process read it {reads(file) - before} times")
        write_state(file, {})


def write_state(file: Path, state: dict[str, Any]) -> None:
    """What NVML shows from now on; {}: a healthy GPU."""
    part = file.with_suffix(".new")
    part.write_text(json.dumps(state))
    part.rename(file)


def reads(file: Path) -> int:
    """How often the process has asked NVML for something."""
    try:
        return int(file.with_suffix(".reads").read_text())
    except (OSError, ValueError):
        return 0
