"""Nothing leaves the car: no socket but AF_UNIX and no file outside what the command was told to write, in whole runs.

The child process reports what Python code opens through an audit hook; what native code leaves behind is looked for on
the disk, and, where strace is installed, every system call is watched.
"""

from __future__ import annotations

import ast
import os
import re
import shutil
import subprocess
import sys
from collections.abc import Callable
from pathlib import Path

import pytest

from models.privacy import SWITCHES
from models.store.store import Store
from tests.support.paths import ROOT

HOOK = """
import os, socket, sys
log = os.open(os.environ["PRIVACY_LOG"], os.O_WRONLY | os.O_APPEND | os.O_CREAT)
OPENS_TO_WRITE = os.O_WRONLY | os.O_RDWR | os.O_CREAT
WRITES = {"os.mkdir", "os.rename", "os.remove", "os.link", "os.symlink"}
def hook(event, arguments):
    if event == "socket.__new__" and arguments[1] != socket.AF_UNIX or event.startswith("socket.getaddrinfo"):
        os.write(log, f"network {event} {arguments!r}\\n".encode())
    elif event == "open" and not isinstance(arguments[0], int) and (arguments[2] or 0) & OPENS_TO_WRITE:
        os.write(log, f"write {arguments[0]}\\n".encode())
    elif event in WRITES:
        os.write(log, f"write {arguments[0]}\\n".encode())
sys.addaudithook(hook)
"""
QUIET = {"PYTHONDONTWRITEBYTECODE": "1"}
DEVICES = ("/dev/", "/proc/")


def clean_environment(home: Path) -> dict[str, str]:
    """As after a login to an empty home directory: none of the switches is set."""
    kept = {name: value for name, value in os.environ.items() if name not in SWITCHES and not name.startswith("XDG_")}
    return {**kept, **QUIET, "HOME": str(home)}


@pytest.mark.parametrize("module", ["models", "cockpit", "pipeline", "hil", "benchmarks"])
def test_every_way_in_switches_reports_off_before_onnxruntime_is_loaded(module: str, tmp_path: Path) -> None:
    code = f"import {module}, os; print([os.environ.get(name) for name in {list(SWITCHES)}])"
    done = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        check=True,
        cwd=ROOT,
        env=clean_environment(tmp_path),
    )
    if imports_onnxruntime(ROOT / module):
        assert done.stdout.strip() == str(list(SWITCHES.values()))


def imports_onnxruntime(folder: Path) -> bool:
    nodes = [node for path in folder.rglob("*.py") for node in ast.walk(ast.parse(path.read_text(encoding="utf-8")))]
    return any(
        (isinstance(node, ast.Import) and any(alias.name.startswith("onnxruntime") for alias in node.names))
        or (isinstance(node, ast.ImportFrom) and (node.module or "").startswith("onnxruntime"))
        for node in nodes
    )


def test_a_runtime_that_was_loaded_before_is_told_directly(tmp_path: Path) -> None:
    code = (
        "import sys, types; fake = types.ModuleType('onnxruntime'); fake.told = []\n"
        "fake.disable_telemetry_events = lambda: fake.told.append(1); sys.modules['onnxruntime'] = fake\n"
        "import models; print(fake.told)"
    )
    done = subprocess.run([sys.executable, "-c", code], capture_output=True, text=True, check=True, cwd=ROOT)
    assert done.stdout == "[1]\n"


@pytest.mark.parametrize(
    "arguments",
    [["ask", "Hello."], ["say", str(ROOT / "hil/audio/en01.wav"), "--fast"]],
    ids=["ask", "say"],
)
def test_a_whole_run_opens_no_connection_and_leaves_no_file(
    arguments: list[str], tmp_path: Path, model_dir: Callable[[str], Path], model_store: Store
) -> None:
    for name in model_store.registry.default_names:
        model_dir(name)
    home, out, hook, log = (tmp_path / name for name in ("home", "out", "hook", "log"))
    home.mkdir()
    hook.mkdir()
    (hook / "sitecustomize.py").write_text(HOOK)
    path = os.pathsep.join([str(hook), str(ROOT)])
    environment = clean_environment(home) | {"PYTHONPATH": path, "PRIVACY_LOG": str(log), "TMPDIR": str(home / "tmp")}
    environment["COCKPIT_CACHE"] = str(model_store.root)
    (home / "tmp").mkdir()
    command = [sys.executable, "-m", "cockpit", *arguments]
    if arguments[0] == "say":
        command += ["--out", str(out)]
    trace = tmp_path / "strace"
    if shutil.which("strace"):
        calls = "trace=socket,connect,openat,open,creat,mkdir,mkdirat"
        command = ["strace", "-f", "-qq", "--seccomp-bpf", "-e", calls, "-o", str(trace), *command]
    done = subprocess.run(command, capture_output=True, text=True, check=False, cwd=home, env=environment)
    assert done.returncode == 0, done.stderr
    said = log.read_text(encoding="utf-8").splitlines()
    allowed = (str(out), *DEVICES)
    assert [line for line in said if line.startswith("network") or not line.split(" ", 1)[1].startswith(allowed)] == []
    assert [str(found.relative_to(home)) for found in home.rglob("*")] == ["tmp"]
    if trace.exists():
        calls_seen = trace.read_text(encoding="utf-8", errors="replace").splitlines()
        assert [line for line in calls_seen if re.search(r"socket\((?!AF_UNIX)", line)] == []
        written = [line for line in calls_seen if re.search(r"O_WRONLY|O_RDWR|O_CREAT|creat\(|mkdir(at)?\(", line)]
        ours = (*allowed, str(log))
        assert [line for line in written if not any(f'"{start}' in line for start in ours)] == []
