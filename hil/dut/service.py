"""A running `cockpit serve`, through its API: what it says of itself is all that is known of it."""

from __future__ import annotations

import io
import time
from pathlib import Path
from typing import Any

import numpy as np
import soundfile

from cockpit.client import Cockpit, CockpitError
from hil.dut.base import Audio, Heard
from hil.dut.events import EventLog
from hil.dut.in_process import padded
from hil.faults.base import Fault, FaultUnavailable
from hil.faults.client import client
from hil.rig.scenario import FaultEntry, Scenario
from models.errors import InputError
from pipeline.frames import Language

_ANSWER_S = 600.0
_LOOK_S = 0.05


def calls_as_changes(turns: list[dict[str, Any]]) -> Heard:
    """A process tells which calls were done and what it read back; more of its signals is not known."""
    done = [call["result"] for turn in turns for call in turn["tool_calls"] if call["result"]["status"] == "done"]
    after = {result["path"]: result["value"] for result in done if result["path"] is not None}
    return Heard(turns, {path: (None, value) for path, value in after.items()}, after)


class RunningService:
    """The service on `socket`. A recording is recognised by `/v1/audio/transcriptions`, and its words are asked by
    `/v1/control`: recognition, understanding, the car and the voice are those of the service; microphone, VAD and
    endpointing are not heard.
    """

    def __init__(self, socket: Path) -> None:
        """Raises InputError where nothing answers."""
        self.name = f"the service on {socket}"
        self._socket = socket
        self._client = Cockpit(str(socket), _ANSWER_S)
        try:
            self._client.ask("GET", "/health")
        except CockpitError as error:
            raise InputError(str(error)) from error
        self._events = EventLog(str(socket))

    def close(self) -> None:
        self._events.close()

    def prepare(self, scenario: Scenario) -> None:
        """See DeviceUnderTest."""
        if scenario.before or scenario.expect.state:
            raise InputError("a running service shows no signals: expect calls instead of state, and leave before out")
        end_s = time.monotonic() + 10.0
        while self._events.gone is not None and time.monotonic() < end_s:
            time.sleep(_LOOK_S)

    def hear(self, wav: Path, timeout_s: float) -> Heard | None:
        """See DeviceUnderTest."""
        began_s = time.monotonic()
        words = self.transcribe(wav)
        asr_ms = (time.monotonic() - began_s) * 1e3
        if not words.strip():
            return Heard([])
        try:
            turn_id = int(self._client.control("ask", text=words)["turn_id"])
        except CockpitError as error:
            raise InputError(f"{self.name} may not be asked ({error}): see api.control in docs/headunit.md") from error
        while time.monotonic() - began_s < timeout_s:
            for turn in self._events.turns():
                if turn["turn_id"] == turn_id:
                    return calls_as_changes([{**turn, "ms": {**turn["ms"], "asr": round(asr_ms, 1)}}])
            time.sleep(_LOOK_S)
        return None

    def transcribe(self, wav: Path) -> str:
        """What it recognises. Raises InputError with the service's own words."""
        try:
            return self._client.transcribe(wav.read_bytes())
        except CockpitError as error:
            raise InputError(f"{self.name} did not recognise {wav.name}: {error}") from error

    def fault(self, entry: FaultEntry) -> Fault:
        """See DeviceUnderTest."""
        if entry.client is None:
            raise FaultUnavailable(f"{entry.kind}: needs a process that the rig starts; leave --service out")
        return client(self._socket, entry.client)

    def modes(self) -> dict[str, str]:
        """See DeviceUnderTest."""
        return self._events.modes()

    def speak(self, text: str, language: Language) -> Audio:
        """See DeviceUnderTest."""
        return spoken_by(self._client, text, language)


def spoken_by(client: Cockpit, text: str, language: Language) -> Audio:
    """By the service's own voice, 16 kHz, with silence around it. Raises InputError."""
    try:
        data = client.speech(text, language=language)
    except CockpitError as error:
        raise InputError(f"the service does not speak {language}: {error}") from error
    sound, rate_hz = soundfile.read(io.BytesIO(data), dtype="float32")
    return padded(np.asarray(sound, np.float32), int(rate_hz), text)
