"""`cockpit serve` in a process that the rig starts, with a microphone, a speaker and a GPU that the rig holds."""

from __future__ import annotations

import os
import shutil
import signal
import subprocess
import sys
import tempfile
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

from cockpit.client import Cockpit
from hil import virtual
from hil.dut.base import Audio, Heard
from hil.dut.events import EventLog
from hil.dut.service import calls_as_changes, spoken_by
from hil.faults.audio import microphone
from hil.faults.base import Fault, FaultUnavailable
from hil.faults.client import client
from hil.faults.gpu import gpu, write_state
from hil.faults.preloaded import Preloads, clock, compile_into, disk
from hil.faults.process import service
from hil.rig.scenario import FaultEntry, Scenario
from models.errors import InputError, StartupError
from models.store.store import Store
from pipeline.frames import Language

START_S = 300.0
"""What a start may take on a machine that is busy with other things."""
_QUIET_S = 1.2
"""So long must nothing happen before what was said counts as answered: longer than the silence that ends a turn."""
_LOOK_S = 0.05
_IDLE = ("idle", "degraded")


class OwnProcess:
    """Made by `started`. The microphone hears what `hear` is given and silence between; faults act from outside."""

    name = "a process of its own"

    def __init__(self, profile: str, folder: Path, log: Path) -> None:
        self._profile = profile
        self._folder = folder
        self.audio = folder / "audio"
        self.audio.mkdir()
        self._gpu = folder / "gpu.json"
        write_state(self._gpu, {})
        self._socket = folder / "api.sock"
        self._log = log
        self._cache = _linked(Store.open().root, folder / "cache")
        self._state = self._cache / "state"
        self._heard_s = 0.0
        self._preloads, self._no_preloads = self._compiled()
        self._process: subprocess.Popen[bytes] | None = None
        self.start()
        self._events = EventLog(str(self._socket))
        self._wait_ready()
        self._resting = set(self.modes())

    def _compiled(self) -> tuple[Preloads | None, str]:
        folder = self._folder / "preload"
        folder.mkdir()
        try:
            return compile_into(folder, self._state), ""
        except FaultUnavailable as error:
            return None, str(error)

    # --- the process -----------------------------------------------------------------------------------------------
    def start(self) -> None:
        """See Restartable: returns at once."""
        for left in self.audio.glob("*.wav"):  # nobody says it again
            left.unlink()
        shutil.rmtree(self._state, ignore_errors=True)  # every start is a first one, and writes its state
        self._state.mkdir()
        root = Path(virtual.__file__).resolve().parents[2]
        paths = [str(virtual.AUDIO), str(virtual.GPU), str(root)]
        environment = {
            **os.environ,
            **({} if self._preloads is None else self._preloads.environment()),
            "PYTHONPATH": os.pathsep.join(paths),
            "O3CTL_SOCKET": str(self._folder / "o3.sock"),
            "COCKPIT_CACHE": str(self._cache),
            "FAKE_AUDIO": str(self.audio),
            "FAKE_GPU": str(self._gpu),
        }
        for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID", "FAKE_MIC"):
            environment.pop(name, None)
        command = [sys.executable, "-m", "cockpit", "serve", "--profile", self._profile]
        command += ["--socket", str(self._socket), "--allow-unvalidated"]
        if self._process is not None:
            self._events.forget()
        with self._log.open("ab") as log:
            self._process = subprocess.Popen(
                command, stdin=subprocess.DEVNULL, stdout=log, stderr=log, env=environment, start_new_session=True
            )

    @property
    def pid(self) -> int:
        """See Restartable."""
        assert self._process is not None
        return self._process.pid

    def wait_dead(self, timeout_s: float) -> int | None:
        """See Restartable."""
        assert self._process is not None
        try:
            return self._process.wait(timeout_s)
        except subprocess.TimeoutExpired:
            return None

    def _wait_ready(self) -> None:
        """Raises StartupError with the end of the log where it does not start."""
        end_s = time.monotonic() + START_S
        while self._events.gone is not None:
            code = self.wait_dead(_LOOK_S)
            if code is not None or time.monotonic() > end_s:
                what = f"ended with code {code}" if code is not None else f"was not ready within {START_S:.0f} s"
                raise StartupError(f"the service under test {what}: {self._log.read_text()[-600:]}")

    def close(self) -> None:
        """End it, by SIGTERM and, where that is not enough, SIGKILL."""
        self._events.close()
        assert self._process is not None
        self._process.send_signal(signal.SIGCONT)
        self._process.terminate()
        if self.wait_dead(20.0) is None:
            self.wait_dead_by(signal.SIGKILL)

    def wait_dead_by(self, number: signal.Signals) -> None:
        assert self._process is not None
        self._process.send_signal(number)
        self._process.wait()

    # --- as a device under test ------------------------------------------------------------------------------------
    def prepare(self, scenario: Scenario) -> None:
        """See DeviceUnderTest."""
        if scenario.before or scenario.expect.state:
            raise InputError("a process of its own shows no signals: expect calls instead of state")
        if self._events.gone is None and set(self.modes()) - self._resting:  # what an earlier scenario left behind
            self.wait_dead_by(signal.SIGKILL)
            self.start()
        self._wait_ready()

    def hear(self, wav: Path, timeout_s: float) -> Heard | None:
        """See DeviceUnderTest."""
        known, end_s = self._events.last_turn, time.monotonic() + timeout_s
        generation = self._process
        self._hand_over(wav)
        while time.monotonic() < end_s:
            time.sleep(_LOOK_S)
            if self._process is not generation:  # killed and started again: its turns begin anew
                known = 0
            if self._answered():
                return calls_as_changes(self._events.turns(known))
        return None

    def _answered(self) -> bool:
        events = self._events
        quiet_s = time.monotonic() - max(events.newest_s, self._heard_s)
        heard = not any(self.audio.glob("*.wav"))
        if not heard:
            self._heard_s = time.monotonic()
        return heard and events.gone is None and events.state.get("state") in _IDLE and quiet_s > _QUIET_S

    def _hand_over(self, wav: Path) -> None:
        """The microphone hears it next."""
        part = self.audio / "part"
        part.write_bytes(wav.read_bytes())
        part.rename(self.audio / wav.name)
        self._heard_s = time.monotonic()

    def fault(self, entry: FaultEntry) -> Fault:
        """See DeviceUnderTest."""
        if entry.microphone is not None:
            return microphone(self.audio, entry.microphone)
        if entry.service is not None:
            return service(self, entry.service)
        if entry.gpu is not None:
            return gpu(self._gpu, entry.gpu)
        if entry.client is not None:
            return client(self._socket, entry.client)
        if self._preloads is None and entry.vehicle is None:
            raise FaultUnavailable(self._no_preloads)
        if entry.disk is not None:
            return disk(self._preloads, entry.disk)
        if entry.clock is not None:
            return clock(self._preloads, entry.clock.seconds, self._clock_ahead_s)
        raise FaultUnavailable("vehicle: its signals are inside that process; leave expect.mode and other faults out")

    def _clock_ahead_s(self) -> float:
        """By how much its clock of the day is ahead of ours, from its next event (levels come ten times a second)."""
        asked_s, end_s = time.time(), time.monotonic() + 5.0
        while self._events.day_seen_s <= asked_s and time.monotonic() < end_s:
            time.sleep(_LOOK_S)
        return self._events.day_s - self._events.day_seen_s

    def modes(self) -> dict[str, str]:
        """See DeviceUnderTest."""
        return self._events.modes()

    def speak(self, text: str, language: Language) -> Audio:
        """See DeviceUnderTest."""
        return spoken_by(Cockpit(str(self._socket)), text, language)


def _linked(root: Path, folder: Path) -> Path:
    """The machine's models under another root, without what an earlier process learnt."""
    folder.mkdir()
    for path in root.iterdir():
        if path.name != "state":
            (folder / path.name).symlink_to(path)
    return folder


@contextmanager
def started(profile: str, log: Path) -> Iterator[OwnProcess]:
    """Warm, and ended afterwards. log: where what it prints goes. Raises StartupError with the end of that."""
    folder = Path(tempfile.mkdtemp(prefix="rig-"))  # a socket's path must be short
    try:
        device = OwnProcess(profile, folder, log)
        try:
            yield device
        finally:
            device.close()
    finally:
        shutil.rmtree(folder, ignore_errors=True)
