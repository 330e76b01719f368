"""The whole chain in the rig's own process: every signal of the car can be set and looked at."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path

import numpy as np
import soxr

from cockpit.cli.talk import Talk, talking
from cockpit.runtime import NullSink
from hil.dut.base import Audio, Heard
from hil.faults.base import Fault, FaultUnavailable
from hil.faults.vehicle import FaultyTree, vehicle
from hil.rig.scenario import FaultEntry, Scenario
from models.errors import InputError
from pipeline.audio.source import WavSource
from pipeline.frames import SAMPLE_RATE_HZ, Language
from pipeline.vehicle.signals import EmbeddedTree

_BEFORE_S, _AFTER_S = 0.3, 1.0
"""Silence around words that a voice speaks, as the recordings have it."""


class InProcess:
    """A started chain with its car. Made by `opened`."""

    name = "in this process"

    def __init__(self, talk: Talk) -> None:
        """Raises InputError for a profile whose car is not in this process."""
        self.talk = talk
        access = talk.assembly.parts.dialogue.toolbox.access
        if not isinstance(access.backend, EmbeddedTree):
            raise InputError("scenarios set the car up and look at every signal: use a profile with backend embedded")
        if not isinstance(access.backend, FaultyTree):
            access.backend = FaultyTree()  # the same signals, each where it starts, and a switch for faults
        self._tree: FaultyTree = access.backend

    def prepare(self, scenario: Scenario) -> None:
        """See DeviceUnderTest. Every signal goes back to where it starts, and the dialogue begins anew."""
        for path, signal in self._tree.signals.items():
            self._tree.simulate(path, scenario.before.get(path, signal.initial))
        self.talk.assembly.parts.dialogue.begin_anew()

    def hear(self, wav: Path, timeout_s: float) -> Heard | None:
        """See DeviceUnderTest."""
        runtime, frame_samples = self.talk.runtime, self.talk.profile.audio.frame_samples
        before = self._tree.snapshot()
        known = {record.turn_id for record in runtime.turn_log.closed()}
        runtime.listen(WavSource(wav, pace="realtime", frame_samples=frame_samples))
        if not runtime.wait_idle(timeout_s):
            return None
        records = [record for record in runtime.turn_log.closed() if record.turn_id not in known]
        after = self._tree.snapshot()
        changed = {path: (before[path], value) for path, value in after.items() if value != before[path]}
        return Heard([record.as_json() for record in records], changed, after)

    def fault(self, entry: FaultEntry) -> Fault:
        """See DeviceUnderTest."""
        if entry.vehicle is None:
            raise FaultUnavailable(f"{entry.kind}: needs a process of its own")
        delay_s = 0.0 if entry.delay is None else entry.delay.seconds
        return vehicle(self._tree, entry.vehicle, entry.path, delay_s)

    def modes(self) -> dict[str, str]:
        """See DeviceUnderTest. The chain alone names none."""
        return {}

    def speak(self, text: str, language: Language) -> Audio:
        """See DeviceUnderTest."""
        voice = self.talk.assembly.engines.voices.get(language)
        if voice is None:
            raise InputError(f"the profile has no voice for {language}")
        with self.talk.assembly.engines.tts_turns.urgent():
            parts = list(voice.synthesise(text))
        return padded(np.concatenate([np.zeros(0, np.float32), *parts]), voice.sample_rate_hz, text)


def padded(sound: Audio, rate_hz: int, text: str) -> Audio:
    """At 16 kHz, with silence around it. Raises InputError for no sound at all."""
    if not len(sound):
        raise InputError(f"the voice has no sound for {text!r}")
    heard = soxr.resample(sound, rate_hz, SAMPLE_RATE_HZ).astype(np.float32)
    silence = [np.zeros(round(seconds * SAMPLE_RATE_HZ), np.float32) for seconds in (_BEFORE_S, _AFTER_S)]
    return np.concatenate([silence[0], heard, silence[1]])


@contextmanager
def opened(profile: str, *, quiet: bool = True) -> Iterator[InProcess]:
    """The chain of `profile`, warm. Raises what assembling raises."""
    with talking(profile, NullSink(), None, quiet=quiet) as talk:
        yield InProcess(talk)
