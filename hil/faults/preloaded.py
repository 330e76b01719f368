"""Faults of the disk and the day's clock, by a small library that is loaded into the process under test first
(LD_PRELOAD). It is compiled on this machine; where there is no C compiler, these faults are unavailable.
"""

from __future__ import annotations

import shutil
import subprocess
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from hil.faults.base import Evidence, FaultUnavailable

DiskFault = Literal["full", "io_error"]
_SOURCES = Path(__file__).resolve().parent / "preload"
NAMES = ("disk", "clock")


@dataclass(frozen=True, slots=True)
class Preloads:
    """The libraries in `folder`, and the files by which they are switched. under: the only paths whose writes fail."""

    folder: Path
    under: Path

    @property
    def disk_switch(self) -> Path:
        return self.folder / "disk.fault"

    @property
    def clock_switch(self) -> Path:
        return self.folder / "clock.fault"

    def environment(self) -> dict[str, str]:
        """What the process under test is started with."""
        return {
            "LD_PRELOAD": " ".join(str(self.folder / f"{name}.so") for name in NAMES),
            "RIG_DISK_FAULT": str(self.disk_switch),
            "RIG_DISK_UNDER": str(self.under),
            "RIG_CLOCK_FAULT": str(self.clock_switch),
        }


def compile_into(folder: Path, under: Path) -> Preloads:
    """Compile both. Raises FaultUnavailable naming what is missing."""
    compiler = shutil.which("cc") or shutil.which("gcc") or shutil.which("clang")
    if compiler is None:
        raise FaultUnavailable("faults of disk and clock need a C compiler (apt-get install gcc libc6-dev)")
    for name in NAMES:
        files = str(folder / f"{name}.so"), str(_SOURCES / f"{name}.c")
        command = [compiler, "-O2", "-shared", "-fPIC", "-o", *files, "-ldl"]
        done = subprocess.run(command, capture_output=True, text=True, check=False)
        if done.returncode:
            raise FaultUnavailable(f"{compiler} cannot compile the fault of the {name}: {done.stderr.strip()[:300]}")
    return Preloads(folder, under)


@contextmanager
def disk(preloads: Preloads | None, kind: DiskFault) -> Iterator[Evidence]:
    """full: writes fail with ENOSPC; io_error: with EIO; below the process's cache folder only."""
    switch = _loaded(preloads, f"disk {kind}").disk_switch
    evidence, hits = Evidence(f"disk {kind}"), switch.with_name(switch.name + ".hits")
    before = _size(hits)
    switch.write_text("i" if kind == "io_error" else "f")
    try:
        yield evidence
    finally:
        switch.unlink(missing_ok=True)
        if _size(hits) > before:
            evidence.add(f"{_size(hits) - before} writes failed")


@contextmanager
def clock(preloads: Preloads | None, ahead_s: float, seen_s: Callable[[], float]) -> Iterator[Evidence]:
    """The day's clock jumps by `ahead_s`, and back. seen_s: by how much the process's own clock is ahead of ours."""
    switch = _loaded(preloads, "clock").clock_switch
    evidence = Evidence(f"clock {ahead_s:+.0f} s")
    switch.write_text(str(round(ahead_s)))
    try:
        seen = seen_s()
        if abs(seen - ahead_s) < max(60.0, 0.1 * abs(ahead_s)):
            evidence.add(f"the process says that it is {seen:+.0f} s")
        yield evidence
    finally:
        switch.unlink(missing_ok=True)


def _loaded(preloads: Preloads | None, what: str) -> Preloads:
    if preloads is None:
        raise FaultUnavailable(f"{what} needs a process that the rig starts, and a C compiler")
    return preloads


def _size(file: Path) -> int:
    return file.stat().st_size if file.exists() else 0
