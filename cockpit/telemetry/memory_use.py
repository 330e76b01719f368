"""Memory in use while the process runs, against what there is: NVML's for a GPU, the process's own for a CPU."""

from __future__ import annotations

import os
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cockpit.telemetry.watch import Watch

_CGROUPS = Path("/sys/fs/cgroup")


@dataclass(frozen=True, slots=True)
class MemoryUse:
    """used_bytes: on a GPU whoever's, on a CPU what is resident of this process."""

    used_bytes: int
    total_bytes: int


def nothing_known() -> MemoryUse | None:
    """For devices that do not answer."""
    return None


def memory_use(kind: str, watch: Watch) -> Callable[[], MemoryUse | None]:
    """What reads the memory of device `kind`. watch: the GPU's."""
    if kind == "cpu":
        total = host_bytes()
        return lambda: MemoryUse(resident_bytes(), total)

    def of_gpu() -> MemoryUse | None:
        sample = watch.sample()
        if sample.memory_used_bytes is None or not sample.memory_total_bytes:
            return None
        return MemoryUse(sample.memory_used_bytes, sample.memory_total_bytes)

    return of_gpu


def resident_bytes() -> int:
    """Resident memory of this process, a page that it shows in several places once: Linux's Pss, which takes some
    milliseconds. Where the kernel has none, the pages of statm, which counts each place.
    """
    try:
        lines = Path("/proc/self/smaps_rollup").read_text(encoding="ascii").splitlines()
        return next(int(line.split()[1]) << 10 for line in lines if line.startswith("Pss:"))
    except (OSError, StopIteration):
        pages = Path("/proc/self/statm").read_text(encoding="ascii").split()[1]
        return int(pages) * os.sysconf("SC_PAGE_SIZE")


def host_bytes(groups: Path = _CGROUPS, own: Path = Path("/proc/self/cgroup")) -> int:
    """Memory that this process may have: the machine's, or less where its cgroup or one around it has a limit.

    groups: where cgroup v2 is mounted; v1 has other files and is not looked at.
    """
    total = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    try:
        lines = own.read_text(encoding="utf-8").splitlines()
    except OSError:
        return total
    path = next((line[3:].strip("/") for line in lines if line.startswith("0::")), "")
    folder = groups / path
    limits = [total]
    for at in (folder, *folder.parents):
        if not at.is_relative_to(groups):
            break
        try:
            text = (at / "memory.max").read_text(encoding="ascii").strip()
        except OSError:
            continue
        if text.isdigit():
            limits.append(int(text))
    return min(limits)
