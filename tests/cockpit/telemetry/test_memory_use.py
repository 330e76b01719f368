"""What the red line reads, and the maintenance thread that judges it."""

from __future__ import annotations

import logging
import os
import subprocess
import sys
from pathlib import Path

import pytest

from cockpit.scheduling.maintenance import Maintenance
from cockpit.telemetry.memory_use import MemoryUse, host_bytes, memory_use, resident_bytes
from cockpit.telemetry.watch import GpuSample, NoWatch
from tests.support.dispatchers import dispatcher_of
from tests.support.paths import ROOT

GIB = 1 << 30
SHOWN_BYTES = 16 << 20


def test_a_cgroup_around_the_process_limits_its_memory(tmp_path: Path) -> None:
    own = tmp_path / "cgroup"
    own.write_text("0::/system.slice/cockpit.service\n")
    groups = tmp_path / "groups"
    inner = groups / "system.slice" / "cockpit.service"
    inner.mkdir(parents=True)
    machine = os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    assert host_bytes(groups, own) == machine
    (inner / "memory.max").write_text("max\n")
    assert host_bytes(groups, own) == machine
    (inner.parent / "memory.max").write_text("1048576\n")
    assert host_bytes(groups, own) == 1 << 20
    assert host_bytes(groups, tmp_path / "absent") == machine


def test_a_cpu_counts_this_process_and_a_gpu_what_nvml_says() -> None:
    assert resident_bytes() > 20 << 20
    of_cpu = memory_use("cpu", NoWatch(""))()
    assert of_cpu is not None
    assert 0 < of_cpu.used_bytes < of_cpu.total_bytes
    assert memory_use("cuda", NoWatch("no NVML"))() is None

    class Gpu(NoWatch):
        def sample(self) -> GpuSample:
            return GpuSample(memory_used_bytes=3 * GIB, memory_total_bytes=8 * GIB)

    assert memory_use("cuda", Gpu(""))() == MemoryUse(3 * GIB, 8 * GIB)


def test_a_page_that_is_shown_twice_counts_once() -> None:
    """In a process of its own: what other tests left behind comes and goes."""
    code = f"""
import mmap, tempfile
from cockpit.telemetry.memory_use import resident_bytes
with tempfile.TemporaryFile() as file:
    file.truncate({SHOWN_BYTES})
    shown = [mmap.mmap(file.fileno(), {SHOWN_BYTES}) for _ in range(4)]
    before = resident_bytes()
    for each in shown:
        for at in range(0, {SHOWN_BYTES}, mmap.PAGESIZE):
            each[at] = 1
    print(resident_bytes() - before)
"""
    ran = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, cwd=ROOT, check=True)
    assert SHOWN_BYTES * 0.9 < int(ran.stdout) < SHOWN_BYTES * 1.9


def test_maintenance_judges_the_red_line_and_logs_both_ends(caplog: pytest.LogCaptureFixture) -> None:
    caplog.set_level(logging.INFO)
    dispatcher = dispatcher_of()
    used = [100]
    keeper = Maintenance(dispatcher, NoWatch(""), memory=lambda: MemoryUse(used[0], 100))
    keeper.run_once()
    assert dispatcher.status().memory.refusing
    keeper.run_once()
    assert caplog.text.count("new sessions are refused") == 1
    used[0] = 50
    keeper.run_once()
    assert not dispatcher.status().memory.refusing
    assert "new sessions are taken again" in caplog.text
    assert keeper.errors == 0
