"""From the start of the process to READY, phase by phase, as a service manager sees it.

    python -m benchmarks boot [--json] [--runs 5] [--profile cpu]

`cockpit serve --no-voice` in a fresh process each time, with a notification socket of ours; a phase lasts from its
STATUS to the next. Files come from the page cache: the first run is not counted. wall: what passed; cpu: what the
process and its children computed meanwhile, which says more on a machine that is busy with other things.
"""

from __future__ import annotations

import json
import os
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path

import numpy as np

from benchmarks.harness.report import command_line

LIMIT_S = 3.0
"""What the product promises with a warm cache on two free cores."""
LONGEST_S = 600.0
_TICK_S = 1.0 / os.sysconf("SC_CLK_TCK")


@dataclass(frozen=True, slots=True)
class Mark:
    """One message: when it came after the start, CPU seconds of the process by then, and its status."""

    wall_s: float
    cpu_s: float
    status: str
    ready: bool


def one_start(profile: str, folder: Path) -> list[Mark]:
    """Start once, wait for READY, stop. Raises RuntimeError with what was printed when it ends before."""
    address = folder / "notify.sock"
    address.unlink(missing_ok=True)
    environment = {**os.environ, "NOTIFY_SOCKET": str(address), "O3CTL_SOCKET": str(folder / "o3.sock")}
    environment.pop("WATCHDOG_USEC", None)
    marks: list[Mark] = []
    with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager, (folder / "log").open("wb") as log:
        manager.bind(str(address))
        manager.settimeout(1.0)
        begin_s = time.perf_counter()
        command = [sys.executable, "-m", "cockpit", "serve", "--no-voice", "--profile", profile]
        process = subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)
        try:
            while not (marks and marks[-1].ready):
                try:
                    fields = dict(line.split("=", 1) for line in manager.recv(8192).decode().splitlines())
                except TimeoutError:
                    if process.poll() is not None or time.perf_counter() - begin_s > LONGEST_S:
                        raise RuntimeError((folder / "log").read_text()) from None
                    continue
                wall_s = time.perf_counter() - begin_s
                marks.append(Mark(wall_s, cpu_seconds(process.pid), fields.get("STATUS", ""), "READY" in fields))
        finally:
            process.send_signal(signal.SIGTERM)
            process.wait(60.0)
    return marks


def cpu_seconds(pid: int) -> float:
    """User and system time of a process and of its children that have ended."""
    fields = Path(f"/proc/{pid}/stat").read_text(encoding="ascii").rpartition(")")[2].split()
    return sum(map(int, fields[11:15])) * _TICK_S


def phases(marks: Sequence[Mark]) -> dict[str, tuple[float, float]]:
    """Name -> (wall, CPU) seconds, in their order. What comes before the first message is the interpreter's start."""
    spans = {"interpreter": (marks[0].wall_s, marks[0].cpu_s)}
    for mark, following in pairwise(marks):
        name = mark.status.removeprefix("starting: ").removeprefix("loading ")
        spans[name] = (following.wall_s - mark.wall_s, following.cpu_s - mark.cpu_s)
    return spans


def _seconds(start: dict[str, tuple[float, float]], phase: str) -> tuple[float, float]:
    if phase != "all":
        return start[phase]
    return sum(wall for wall, _ in start.values()), sum(cpu for _, cpu in start.values())


def measure(profile: str, runs: int) -> dict[str, dict[str, float]]:
    """Seconds per phase and of all, median and P99 over `runs` starts after one that warms the page cache."""
    with tempfile.TemporaryDirectory(prefix="boot") as name:
        folder = Path(name)
        one_start(profile, folder)
        starts = [phases(one_start(profile, folder)) for _ in range(runs)]
    rows: dict[str, dict[str, float]] = {}
    for phase in (*starts[0], "all"):
        wall, cpu = ([_seconds(start, phase)[part] for start in starts] for part in (0, 1))
        rows[phase] = {
            "wall_p50_s": float(np.median(wall)),
            "wall_p99_s": float(np.percentile(wall, 99)),
            "cpu_p50_s": float(np.median(cpu)),
        }
    return rows


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table or, with --json, one object."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--runs", type=int, default=5, help="starts that count")
    parser.add_argument("--profile", default="cpu")
    options = parser.parse_args(arguments)
    before = os.getloadavg()[0]
    rows = measure(options.profile, options.runs)
    whole = rows["all"]["wall_p50_s"]
    load = {"load_before": before, "load_after": os.getloadavg()[0], "cores": len(os.sched_getaffinity(0))}
    if options.json:
        print(json.dumps({"phases": rows, "limit_s": LIMIT_S, "ratio": whole / LIMIT_S, "runs": options.runs, **load}))
        return 0
    print(f"{'phase':24}{'wall P50 s':>12}{'wall P99 s':>12}{'CPU P50 s':>12}")
    for phase, row in rows.items():
        print(f"{phase:24}{row['wall_p50_s']:12.2f}{row['wall_p99_s']:12.2f}{row['cpu_p50_s']:12.2f}")
    print(f"limit {LIMIT_S:g} s, {whole / LIMIT_S:.2f} of it; load average {before:.1f} on {load['cores']} cores")
    return 0
