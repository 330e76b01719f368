"""SIGINT, SIGTERM and SIGHUP in every phase: one line, exit code 128 + signal, no child and no socket left behind."""

from __future__ import annotations

import os
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cockpit import stop_signals
from cockpit.profile.load import load_profile
from hil.virtual import AUDIO as AUDIO_DEVICES
from tests.support.paths import AUDIO, ROOT, short_folder
from tests.support.waiting import until

START_S = 300.0
"""What a start with all models may take on a machine that is busy with other things."""
SIGNALS = (signal.SIGINT, signal.SIGTERM, signal.SIGHUP)


def heeds_signals() -> None:
    """In a child, before it begins: what the tests were started under (nohup) may have had signals ignored."""
    for number in SIGNALS:
        signal.signal(number, signal.SIG_DFL)


pytestmark = pytest.mark.usefixtures("served_models")


class Child:
    """`python -m cockpit ...` with the fake audio device and a control socket of its own, in a session of its own."""

    def __init__(self, folder: Path, *arguments: str | Path, mic: Path | None = None, lines: bool = False) -> None:
        self.socket = folder / "control.sock"
        self.stderr = folder / "stderr"
        self.stdout = folder / "stdout"
        paths = [str(AUDIO_DEVICES), str(ROOT)]
        environment = {**os.environ, "PYTHONPATH": os.pathsep.join(paths), "O3CTL_SOCKET": str(self.socket)}
        environment.pop("FAKE_MIC", None)
        if mic is not None:
            environment["FAKE_MIC"] = str(mic)
        with self.stdout.open("wb") as out, self.stderr.open("wb") as err:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cockpit", *map(str, arguments)],
                stdin=subprocess.PIPE if lines else subprocess.DEVNULL,
                stdout=out,
                stderr=err,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
                preexec_fn=heeds_signals,  # noqa: PLW1509
            )

    def has_handlers(self) -> bool:
        status = Path(f"/proc/{self.process.pid}/status").read_text()
        caught = int(next(line for line in status.splitlines() if line.startswith("SigCgt")).split()[1], 16)
        return bool(caught & 1 << signal.SIGTERM - 1)

    def said(self, text: str) -> bool:
        """Whether it has printed `text` so far. Fails when the process has ended without."""
        found = text in self.stderr.read_text() + self.stdout.read_text()
        assert found or self.process.poll() is None, self.stderr.read_text()
        return found

    def children(self) -> list[int]:
        found: list[int] = []
        for path in Path(f"/proc/{self.process.pid}/task").glob("*/children"):
            found += map(int, path.read_text().split())
        return found


@pytest.fixture
def folder() -> Iterator[Path]:
    with short_folder() as path:
        yield path


@pytest.fixture
def unwarmed(folder: Path) -> Path:
    """The default profile without warm-up requests, for what comes after the start."""
    path = folder / "unwarmed.yaml"
    tasks = "".join(f"  {name}: {{warmup_requests: 0}}\n" for name in load_profile("cpu").profile.tasks)
    path.write_text(f"extends: cpu\ntasks:\n{tasks}", encoding="utf-8")
    return path


def ended_by(child: Child, number: signal.Signals, *, group: bool = False) -> None:
    """Send the signal and check everything that must hold afterwards. group: as a terminal does."""
    children = child.children()
    if group:
        os.killpg(child.process.pid, number)
    else:
        child.process.send_signal(number)
    code = child.process.wait(60.0)
    if child.process.stdin is not None:
        child.process.stdin.close()
    said = child.stderr.read_text()
    assert code == 128 + number, said
    lines = [
        line
        for line in said.splitlines()
        if not line.startswith("  ready: ") and " INFO " not in line and " DEBUG " not in line
    ]
    assert lines == [f"cockpit: stopped by {number.name}"]
    assert not child.socket.exists()
    assert not [pid for pid in children if Path(f"/proc/{pid}").exists()]


@pytest.mark.parametrize("number", SIGNALS)
def test_while_importing(folder: Path, number: signal.Signals) -> None:
    child = Child(folder, "ask", "turn on the rear defroster")
    until(child.has_handlers)
    ended_by(child, number)


@pytest.mark.parametrize(("number", "phase"), [(SIGNALS[0], "asr"), (SIGNALS[1], "llm"), (SIGNALS[2], "lanes")])
def test_while_loading(folder: Path, number: signal.Signals, phase: str) -> None:
    child = Child(folder, "ask", "turn on the rear defroster")
    until(lambda: child.said(f"ready: {phase}"), within_s=START_S)
    ended_by(child, number, group=True)


def test_while_listening(folder: Path) -> None:
    child = Child(folder, "listen")
    until(lambda: child.said("listening on fake"), within_s=START_S)
    assert child.socket.exists()
    assert child.children()
    child.process.send_signal(signal.SIGSTOP)
    time.sleep(4.0)  # longer than a silent microphone is waited for: it must not be taken for one
    child.process.send_signal(signal.SIGCONT)
    time.sleep(1.0)
    assert child.process.poll() is None, child.stderr.read_text()
    ended_by(child, signal.SIGTERM, group=True)


def test_while_answering(folder: Path, unwarmed: Path) -> None:
    child = Child(folder, "say", AUDIO / "en17.wav", "--log-level", "debug", "--profile", unwarmed)
    until(lambda: child.said("turn 1 is answered"), within_s=START_S)
    ended_by(child, signal.SIGINT, group=True)


def test_while_asking_for_lines(folder: Path, unwarmed: Path) -> None:
    child = Child(folder, "ask", "--profile", unwarmed, lines=True)
    assert child.process.stdin is not None
    child.process.stdin.write(b"turn on the rear defroster\n")
    child.process.stdin.flush()
    until(lambda: child.said("reply"), within_s=START_S)
    ended_by(child, signal.SIGHUP)


def test_while_closing_what_must_be_closed_is_closed(monkeypatch: pytest.MonkeyPatch) -> None:
    """A signal inside a shield comes out behind it, once, and a second one cuts nothing short."""
    monkeypatch.setattr(stop_signals._State, "raised", False)
    done: list[str] = []

    def close() -> None:
        with stop_signals.shielded():
            with stop_signals.shielded():
                stop_signals._handle(signal.SIGTERM, None)
                done.append("inner")
            stop_signals._handle(signal.SIGINT, None)
            done.append("outer")

    with pytest.raises(stop_signals.Stopped) as caught:
        close()
    assert done == ["inner", "outer"]
    assert caught.value.exit_code == 143
    stop_signals._handle(signal.SIGTERM, None)  # raises nothing more: something is being cleaned up
    monkeypatch.setattr(stop_signals._State, "raised", False)


def test_a_process_that_does_not_end_is_ended_by_force(folder: Path) -> None:
    """A library that keeps the main thread: the watchdog ends child, socket and process all the same."""
    socket = folder / "socket"
    socket.touch()
    code = (
        "import pathlib, subprocess, time\n"
        "from cockpit import stop_signals\n"
        "stop_signals.GRACE_S = 0.2\n"
        "stop_signals.install()\n"
        "child = subprocess.Popen(['sleep', '100'])\n"
        f"with stop_signals.last_resort(pathlib.Path({str(socket)!r}).unlink), stop_signals.shielded():\n"
        "    print(child.pid, flush=True)\n"
        "    time.sleep(100)\n"
    )
    command = [sys.executable, "-c", code]
    process = subprocess.Popen(
        command,
        stdout=subprocess.PIPE,
        stderr=subprocess.PIPE,
        text=True,
        cwd=ROOT,
        preexec_fn=heeds_signals,  # noqa: PLW1509
    )
    assert process.stdout is not None
    child = int(process.stdout.readline())
    process.terminate()
    _, said = process.communicate(timeout=60.0)
    assert (process.returncode, said) == (143, "cockpit: stopped by SIGTERM\n")
    assert not socket.exists()
    until(lambda: not Path(f"/proc/{child}").exists())


def test_a_signal_that_a_library_turned_into_an_error_is_found_behind_it() -> None:
    signalled, error = stop_signals.Stopped(signal.SIGHUP), ImportError("initialization failed")
    error.__cause__ = signalled
    signalled.__context__ = error  # a chain may go round in a circle
    assert stop_signals.behind(error) is signalled
    assert stop_signals.behind(signalled) is signalled
    alone = ImportError("no such module")
    alone.__context__ = alone
    assert stop_signals.behind(alone) is None


def test_a_signal_swallowed_by_a_finalizer_is_raised_again() -> None:
    code = (
        "import os, signal, time\n"
        "from cockpit import stop_signals\n"
        "stop_signals.install()\n"
        "class Deaf:\n"
        "    def __del__(self):\n"
        "        os.kill(os.getpid(), signal.SIGHUP)\n"
        "        for _ in range(1000): pass\n"
        "try:\n"
        "    Deaf()\n"
        "    time.sleep(100)\n"
        "except stop_signals.Stopped as stopped:\n"
        "    raise SystemExit(stopped.exit_code)\n"
    )
    ran = subprocess.run(
        [sys.executable, "-c", code],
        capture_output=True,
        text=True,
        timeout=60,
        cwd=ROOT,
        check=False,
        preexec_fn=heeds_signals,
    )
    assert (ran.returncode, ran.stderr) == (129, "")
