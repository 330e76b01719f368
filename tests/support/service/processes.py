"""`cockpit serve` or `listen` in a child process, with a fake audio device and a fake service manager."""

from __future__ import annotations

import os
import signal
import socket
import subprocess
import sys
import threading
from pathlib import Path

from hil.virtual import AUDIO as AUDIO_DEVICES
from tests.support.paths import ROOT

START_S = 300.0
"""What a start with all models may take on a machine that is busy with other things."""


class FakeManager:
    """A notification socket, as a service manager has one. `abstract`: in the kernel's namespace, without a file."""

    def __init__(self, folder: Path, *, abstract: bool = False) -> None:
        self.address = f"@cockpit-test-{os.getpid()}-{id(self)}" if abstract else str(folder / "notify.sock")
        self._socket = socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM)
        self._socket.bind("\0" + self.address[1:] if abstract else self.address)
        self._messages: list[dict[str, str]] = []
        self._thread = threading.Thread(target=self._read, daemon=True)
        self._thread.start()

    def _read(self) -> None:
        """At once: the kernel keeps ten datagrams, and then whoever sends waits."""
        while data := self._socket.recv(8192):
            self._messages.append(dict(line.split("=", 1) for line in data.decode().splitlines()))

    def received(self) -> list[dict[str, str]]:
        """Every message so far, oldest first."""
        return list(self._messages)

    def count(self, key: str) -> int:
        """Messages with `key`."""
        return sum(key in message for message in self.received())

    def statuses(self) -> list[str]:
        """Every STATUS so far."""
        return [message["STATUS"] for message in self.received() if "STATUS" in message]

    def close(self) -> None:
        with socket.socket(socket.AF_UNIX, socket.SOCK_DGRAM) as last:
            last.sendto(b"", "\0" + self.address[1:] if self.address.startswith("@") else self.address)
        self._thread.join()
        self._socket.close()


def _heeds_signals() -> None:
    """In the child, before it begins: what the tests were started under (nohup) may have had signals ignored."""
    for number in (signal.SIGINT, signal.SIGTERM, signal.SIGHUP):
        signal.signal(number, signal.SIG_DFL)


class ServedProcess:
    """`audio`: the folder that the fake device looks into. Its control socket is `folder / o3.sock`."""

    def __init__(
        self,
        folder: Path,
        *arguments: str | Path,
        manager: FakeManager | None = None,
        watchdog_s: float = 0.0,
        echo: float = 0.0,
    ) -> None:
        self.folder = folder
        self.audio = folder / "audio"
        self.audio.mkdir(exist_ok=True)
        self.control = folder / "o3.sock"
        self.api = folder / "api.sock"
        self._log = folder / "log"
        paths = [str(AUDIO_DEVICES), str(ROOT)]
        environment = {
            **os.environ,
            "PYTHONPATH": os.pathsep.join(paths),
            "O3CTL_SOCKET": str(self.control),
            "FAKE_AUDIO": str(self.audio),
        }
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "FAKE_MIC", "FAKE_ECHO"):
            environment.pop(name, None)
        if echo:
            environment["FAKE_ECHO"] = str(echo)
        if manager is not None:
            environment["NOTIFY_SOCKET"] = manager.address
        if watchdog_s:
            environment["WATCHDOG_USEC"] = str(round(watchdog_s * 1e6))
        with self._log.open("ab") as out:
            self.process = subprocess.Popen(
                [sys.executable, "-m", "cockpit", *map(str, arguments)],
                stdin=subprocess.DEVNULL,
                stdout=out,
                stderr=out,
                cwd=ROOT,
                env=environment,
                start_new_session=True,
                preexec_fn=_heeds_signals,  # noqa: PLW1509
            )

    @property
    def log(self) -> str:
        """All that was printed so far."""
        return self._log.read_text()

    def alive(self) -> bool:
        """Raises AssertionError with the log where it has ended."""
        assert self.process.poll() is None, self.log
        return True

    def turns(self) -> list[str]:
        """One line of the log for each turn that has ended."""
        return [line for line in self.log.splitlines() if "cockpit.runtime: turn " in line and "first_audio" in line]

    def say(self, wav: Path) -> None:
        """The microphone hears it next."""
        part = self.audio / "part"
        part.write_bytes(wav.read_bytes())
        part.rename(self.audio / wav.name)

    def heard(self) -> bool:
        """Whether the microphone has heard everything."""
        return not list(self.audio.glob("*.wav"))

    def send(self, number: signal.Signals) -> None:
        self.process.send_signal(number)

    def end(self) -> int:
        """SIGTERM; returns the exit code."""
        if self.process.poll() is None:
            self.process.send_signal(signal.SIGCONT)
            self.process.terminate()
        return self.process.wait(60.0)
