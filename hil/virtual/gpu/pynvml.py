"""Stands in for nvidia-ml-py in a child process: one GPU, as the JSON file FAKE_GPU says at each reading.

Keys of the file (all optional): `gone`: NVML does not answer; `lost`: the GPU fell off the bus; `pcie_width`,
`clock_events` (NVML's bits), `sm_clock_mhz`, `temperature_c`, `utilisation`. FAKE_GPU.reads is where it says how often
it was asked, so that a fault can show that somebody looked. Found before the real one by PYTHONPATH.
"""

from __future__ import annotations

import json
import os
import threading
from pathlib import Path
from types import SimpleNamespace
from typing import Any

NVML_CLOCK_SM, NVML_CLOCK_MEM, NVML_TEMPERATURE_GPU = 1, 2, 0
_FILE = Path(os.environ.get("FAKE_GPU", "/nonexistent"))
_WIDTH, _GENERATION, _CLOCK_MHZ, _BYTES = 16, 4, 1980, 8 << 30
_lock = threading.Lock()
_reads = 0


class NVMLError(Exception):
    """As nvidia-ml-py names it."""


class NVMLError_GpuIsLost(NVMLError):
    """The GPU does not answer any more."""


def _state() -> dict[str, Any]:
    """Of now. Raises NVMLError."""
    try:
        state: dict[str, Any] = json.loads(_FILE.read_text())
    except (OSError, ValueError) as error:
        raise NVMLError("Driver Not Loaded") from error
    _count_read()
    if state.get("gone"):
        raise NVMLError("Driver Not Loaded")
    if state.get("lost"):
        raise NVMLError_GpuIsLost("GPU is lost")
    return state


def _count_read() -> None:
    global _reads
    with _lock:
        _reads += 1
        part = _FILE.with_suffix(".part")
        part.write_text(str(_reads))
        part.rename(_FILE.with_suffix(".reads"))


def nvmlInit() -> None:
    _state()


def nvmlShutdown() -> None:
    return None


def nvmlSystemGetDriverVersion() -> str:
    return "0.0 (virtual)"


def nvmlDeviceGetCount() -> int:
    return 1


def nvmlDeviceGetHandleByIndex(index: int) -> int:
    if index:
        raise NVMLError("Invalid Argument")
    return index


def nvmlDeviceGetName(_handle: int) -> str:
    return "virtual GPU"


def nvmlDeviceGetMemoryInfo(_handle: int) -> SimpleNamespace:
    _state()
    return SimpleNamespace(used=1 << 30, total=_BYTES)


def nvmlDeviceGetUtilizationRates(_handle: int) -> SimpleNamespace:
    return SimpleNamespace(gpu=int(_state().get("utilisation", 50)))


def nvmlDeviceGetCurrentClocksEventReasons(_handle: int) -> int:
    return int(_state().get("clock_events", 0))


def nvmlDeviceGetClockInfo(_handle: int, _kind: int) -> int:
    return int(_state().get("sm_clock_mhz", _CLOCK_MHZ))


def nvmlDeviceGetMaxClockInfo(_handle: int, _kind: int) -> int:
    return _CLOCK_MHZ


def nvmlDeviceGetCurrPcieLinkWidth(_handle: int) -> int:
    return int(_state().get("pcie_width", _WIDTH))


def nvmlDeviceGetMaxPcieLinkWidth(_handle: int) -> int:
    return _WIDTH


def nvmlDeviceGetCurrPcieLinkGeneration(_handle: int) -> int:
    return _GENERATION


def nvmlDeviceGetMaxPcieLinkGeneration(_handle: int) -> int:
    return _GENERATION


def nvmlDeviceGetTemperature(_handle: int, _kind: int) -> int:
    return int(_state().get("temperature_c", 45))
