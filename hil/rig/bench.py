"""Scenarios on a device under test, one after the other: stimulus, faults, repetitions, verdict."""

from __future__ import annotations

import os
import platform
import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from datetime import UTC, datetime
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np

from cockpit import __version__
from cockpit.profile.load import load_profile
from hil.acoustics.noise import Audio
from hil.acoustics.scene import heard
from hil.dut.base import DeviceUnderTest
from hil.faults.base import FaultUnavailable
from hil.faults.timeline import Planned, Timeline
from hil.rig.scenario import Loaded, Scenario
from hil.rig.verdict import Outcome, Repetition, judge, outcome_of
from models.errors import CockpitError
from models.store.fingerprint import onnxruntime_version
from pipeline.audio.wav import read_wav, write_wav
from pipeline.frames import SAMPLE_RATE_HZ

_LOOK_S = 0.1
_SETTLED_S = 2.0
"""A driver who was told that he is heard again does not speak within the same breath."""


@dataclass(slots=True)
class Result:
    """One scenario, run. audio: what the car heard, float32 at 16 kHz. noise_db: the ratio achieved."""

    loaded: Loaded
    outcome: Outcome
    why: str = ""
    repetitions: list[Repetition] = field(default_factory=list)
    audio: Audio = field(default_factory=lambda: np.zeros(0, np.float32))
    snr_db: float | None = None
    seconds: float = 0.0

    @property
    def reasons(self) -> list[str]:
        """Why it is not a PASS, each once."""
        own = [self.why] if self.why else []
        told = [text for repetition in self.repetitions for text in (*repetition.faults, *repetition.near)]
        return [*own, *dict.fromkeys(told)]

    def as_json(self) -> dict[str, Any]:
        scenario = self.loaded.scenario
        return {
            "id": scenario.id,
            "requirement": scenario.requirement,
            "outcome": self.outcome,
            "reasons": self.reasons,
            "file": str(self.loaded.file),
            "digest": self.loaded.digest,
            "snr_db": None if self.snr_db is None else round(self.snr_db, 2),
            "limits_ms": {stage: limit.ms for stage, limit in scenario.limits.items()},
            "seconds": round(self.seconds, 2),
            "repetitions": [repetition.as_json() for repetition in self.repetitions],
        }


def environment(profile: str) -> dict[str, Any]:
    """What a result is worth only together with."""
    loaded = load_profile(profile)
    return {
        "cockpit": __version__,
        "profile": profile,
        "profile_files": [str(file) for file in loaded.files],
        "models": sorted(loaded.profile.model_names),
        "machine": f"{platform.machine()}, {os.cpu_count()} cores, Linux {platform.release()}",
        "python": platform.python_version(),
        "onnxruntime": onnxruntime_version(),
        "load_average": round(os.getloadavg()[0], 2),
        "date": datetime.now(UTC).isoformat(timespec="seconds"),
    }


class Bench:
    """Runs scenarios on one device under test, one after the other. folder: where the stimuli as heard are written."""

    def __init__(self, device: DeviceUnderTest, folder: Path) -> None:
        folder.mkdir(parents=True, exist_ok=True)
        self.device = device
        self._folder = folder

    def run(self, loaded: Loaded) -> Result:
        """Every repetition of one scenario. What goes wrong with the rig itself is an ERROR, not an exception."""
        began = time.monotonic()
        result = Result(loaded, "ERROR")
        scenario = loaded.scenario
        try:
            result.audio, result.snr_db = self._stimulus(loaded)
            wav = self._folder / f"{scenario.id}.wav"
            write_wav(wav, result.audio, SAMPLE_RATE_HZ)
            for _ in range(scenario.repetitions):
                repetition = self._once(scenario, wav)
                if repetition is None:
                    result.outcome = "TIMEOUT"
                    result.why = f"no answer within {scenario.timeout}"
                    break
                judge(scenario, repetition)
                result.repetitions.append(repetition)
            else:
                result.outcome = outcome_of(result.repetitions)
        except FaultUnavailable as error:
            result.outcome, result.why = "SKIPPED", str(error)
        except (CockpitError, ValueError) as error:
            result.why = str(error)
        result.seconds = time.monotonic() - began
        return result

    def _once(self, scenario: Scenario, wav: Path) -> Repetition | None:
        device = self.device
        device.prepare(scenario)
        planned = [
            Planned(one.at.seconds, None if one.for_ is None else one.for_.seconds, partial(device.fault, one))
            for one in scenario.faults
        ]
        timeline, watch = Timeline(planned), ModeWatch(device.modes)
        timeline.start()
        answer = device.hear(wav, scenario.timeout.seconds)
        proofs = timeline.end()
        recovered_s = watch.recovered_s(timeline.off_s, _recovery_s(scenario)) if planned else None
        modes = watch.end()
        if answer is None:
            return None
        repetition = Repetition(answer.turns, answer.changed, answer.after, proofs=proofs, modes=modes)
        repetition.recovered_s = recovered_s
        if scenario.after is not None:
            time.sleep(_SETTLED_S)
            later = device.hear(wav, scenario.timeout.seconds)
            if later is None:
                return None
            repetition.later = Repetition(later.turns, later.changed, later.after)
        return repetition

    def _stimulus(self, loaded: Loaded) -> tuple[Audio, float | None]:
        scenario, wav = loaded.scenario, loaded.wav
        said = scenario.stimulus
        if wav is not None:
            speech = read_wav(wav)
        elif said.silence is not None:
            speech = np.zeros(said.silence.samples(SAMPLE_RATE_HZ), np.float32)
        else:
            speech = self.device.speak(str(said.say), said.language)
        cabin = None if scenario.cabin is None else scenario.cabin.path
        return heard(speech, [noise.source for noise in scenario.noise], cabin)


def _recovery_s(scenario: Scenario) -> float:
    """How long to wait until all is well: somewhat more than the limit, so that a late one is told as late."""
    limit = scenario.expect.recovers
    return 5.0 if limit is None else limit.seconds + 5.0


class ModeWatch:
    """What a device lacks while something is done to it, beyond what it lacked before. Looks ten times a second."""

    def __init__(self, modes: Callable[[], dict[str, str]]) -> None:
        self._modes = modes
        self._before = frozenset(modes())
        self._seen: dict[str, str] = {}
        self._lacking_s = 0.0
        self._ended = threading.Event()
        self._thread = threading.Thread(target=self._run, daemon=True)
        self._thread.start()

    def recovered_s(self, since_s: float, timeout_s: float) -> float | None:
        """Seconds from `since_s` until nothing was lacking any more; None where it still is after `timeout_s`."""
        end_s = time.monotonic() + timeout_s
        while self._new():
            if time.monotonic() > end_s:
                return None
            time.sleep(_LOOK_S)
        return max(0.0, self._lacking_s - since_s)

    def end(self) -> dict[str, str]:
        """Every mode that was seen, with its first reason."""
        self._ended.set()
        self._thread.join()
        return dict(self._seen)

    def _new(self) -> dict[str, str]:
        return {name: reason for name, reason in self._modes().items() if name not in self._before}

    def _run(self) -> None:
        while not self._ended.wait(_LOOK_S):
            for name, reason in self._new().items():
                self._seen.setdefault(name, reason)
                self._lacking_s = time.monotonic()
