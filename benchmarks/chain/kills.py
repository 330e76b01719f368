"""kill -9 at random moments of a service: it must be ready again, and nothing may be left half-written.

    python -m benchmarks kills [--json] [--times 50] [--profile cpu] [--seed 1]

One service after another on the same state folder and the same sockets, each killed at a random moment: most of them
while they start (that is when files are written), some after READY. After the last kill one start must reach READY.
After each kill every file of the state folder is read: JSON must parse, beginnings of texts must have their hash, and
what is left of an unfinished write is counted and must be gone after the next READY.
"""

from __future__ import annotations

import hashlib
import json
import os
import random
import signal
import socket
import subprocess
import sys
import tempfile
import time
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from benchmarks.harness.report import command_line
from models.store.store import Store

LONGEST_S = 600.0


def started(profile: str, folder: Path, manager: socket.socket, cache: Path) -> subprocess.Popen[bytes]:
    """A service whose readiness goes to `manager`, with models from `cache` and sockets in `folder`."""
    environment = {
        **os.environ,
        "NOTIFY_SOCKET": str(folder / "notify.sock"),
        "O3CTL_SOCKET": str(folder / "o3.sock"),
        "COCKPIT_CACHE": str(cache),
    }
    command = [sys.executable, "-m", "cockpit", "serve", "--no-voice", "--profile", profile]
    with (folder / "log").open("wb") as log:
        return subprocess.Popen(command, env=environment, stdout=log, stderr=log, stdin=subprocess.DEVNULL)


def ready_s(process: subprocess.Popen[bytes], folder: Path, manager: socket.socket, at_most_s: float) -> float | None:
    """Seconds to READY; None when that did not come in time. Raises RuntimeError when the service ended by itself."""
    begin_s = time.perf_counter()
    while (passed_s := time.perf_counter() - begin_s) < at_most_s:
        manager.settimeout(min(0.5, max(0.01, at_most_s - passed_s)))
        try:
            if b"READY=1" in manager.recv(8192).splitlines():
                return time.perf_counter() - begin_s
        except TimeoutError:
            if process.poll() is not None:
                raise RuntimeError((folder / "log").read_text()) from None
    return None


def half_written(state: Path) -> list[str]:
    """Files of the state folder that are not whole, without those whose name says that they are parts."""
    faults = []
    for path in sorted(path for path in state.rglob("*") if path.is_file()):
        if path.suffix == ".json":
            try:
                json.loads(path.read_text(encoding="utf-8"))
            except ValueError:
                faults.append(str(path))
        elif path.suffix == ".kv":
            header, _, rows = path.read_bytes().partition(b"\n")
            if hashlib.sha256(rows).hexdigest() != json.loads(header)["sha256"]:
                faults.append(str(path))
    return faults


def parts(state: Path) -> int:
    """Files of writes that were not finished."""
    return sum(path.is_file() and path.name.startswith(".") for path in state.rglob("*"))


def measure(profile: str, times: int, seed: int) -> dict[str, Any]:
    """The counts of the module's text. Raises RuntimeError when a service does not come up."""
    chance = random.Random(seed)
    with tempfile.TemporaryDirectory(prefix="kill") as name:
        folder, cache = Path(name), Path(name) / "cache"
        cache.mkdir()
        for entry in Store.open().root.iterdir():  # the models themselves are shared; state is this run's own
            if entry.name != "state":
                (cache / entry.name).symlink_to(entry)
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as manager:
            manager.bind(str(folder / "notify.sock"))
            first = started(profile, folder, manager, cache)
            whole_s = ready_s(first, folder, manager, LONGEST_S)
            if whole_s is None:
                raise RuntimeError("the service was not ready in time")
            first.kill()
            first.wait()
            faults: list[str] = []
            after_ready = left = 0
            for _ in range(times):
                process = started(profile, folder, manager, cache)
                after_ready += ready_s(process, folder, manager, chance.uniform(0.0, whole_s * 1.2)) is not None
                process.send_signal(signal.SIGKILL)
                process.wait()
                faults += half_written(cache / "state")
                left = max(left, parts(cache / "state"))
            last = started(profile, folder, manager, cache)
            again_s = ready_s(last, folder, manager, LONGEST_S)
            last.terminate()
            code = last.wait(60.0)
            return {
                "kills": times,
                "after_ready": after_ready,
                "half_written": faults,
                "most_parts": left,
                "parts_after_ready": parts(cache / "state"),
                "ready_again_s": again_s,
                "exit_code": code,
                "sockets_left": sum(path.is_socket() for path in folder.glob("*.sock")) - 1,
            }


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the counts or, with --json, one object. 1 when something was half-written or did not come up."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--times", type=int, default=50, help="kills")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--seed", type=int, default=1)
    options = parser.parse_args(arguments)
    counts = measure(options.profile, options.times, options.seed)
    if options.json:
        print(json.dumps(counts))
    else:
        for name, value in counts.items():
            print(f"{name.replace('_', ' '):20} {value}")
    good = not counts["half_written"] and not counts["parts_after_ready"] and counts["ready_again_s"] is not None
    return 0 if good and counts["sockets_left"] == 0 else 1
