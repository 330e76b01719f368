"""Scenarios in this process: the whole chain under a profile, one after the other, the car put back between them."""

from __future__ import annotations

import os
import platform
import time
from collections.abc import Iterator
from contextlib import contextmanager
from dataclasses import dataclass, field
from datetime import UTC, datetime
from pathlib import Path
from typing import Any

import numpy as np
import soxr

from cockpit import __version__
from cockpit.cli.talk import Talk, talking
from cockpit.profile.load import load_profile
from cockpit.runtime import NullSink
from hil.noise import Audio, mix, road_noise
from hil.rig.scenario import Loaded, Stimulus
from hil.rig.verdict import Outcome, Repetition, judge, outcome_of
from models.errors import CockpitError, InputError
from models.store.fingerprint import onnxruntime_version
from pipeline.audio.source import WavSource
from pipeline.audio.wav import read_wav, write_wav
from pipeline.frames import SAMPLE_RATE_HZ
from pipeline.vehicle.signals import EmbeddedTree, Value

_BEFORE_S, _AFTER_S = 0.3, 1.0
"""Silence around words that a voice speaks, as the recordings have it."""


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
    """A started chain with its car. Made by `opened`."""

    def __init__(self, talk: Talk, folder: Path) -> None:
        self._talk = talk
        self._folder = folder
        backend = talk.assembly.parts.dialogue.toolbox.access.backend
        if not isinstance(backend, EmbeddedTree):
            raise InputError("scenarios set the car up and look at every signal: use a profile with backend embedded")
        self._tree = backend

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
                repetition = self._once(loaded, wav)
                if repetition is None:
                    result.outcome = "TIMEOUT"
                    result.why = f"no answer within {scenario.timeout}"
                    break
                judge(scenario, repetition)
                result.repetitions.append(repetition)
            else:
                result.outcome = outcome_of(result.repetitions)
        except (CockpitError, ValueError) as error:
            result.why = str(error)
        result.seconds = time.monotonic() - began
        return result

    def _once(self, loaded: Loaded, wav: Path) -> Repetition | None:
        runtime, profile = self._talk.runtime, self._talk.profile
        self._prepare(loaded.scenario.before)
        before = self._tree.snapshot()
        known = {record.turn_id for record in runtime.turn_log.closed()}
        runtime.listen(WavSource(wav, pace="realtime", frame_samples=profile.audio.frame_samples))
        if not runtime.wait_idle(loaded.scenario.timeout.seconds):
            return None
        records = [record for record in runtime.turn_log.closed() if record.turn_id not in known]
        after = self._tree.snapshot()
        changed = {path: (before[path], value) for path, value in after.items() if value != before[path]}
        self._talk.assembly.parts.dialogue.begin_anew()  # no repetition refers to the one before
        return Repetition([record.as_json() for record in records], changed, after)

    def _prepare(self, values: dict[str, Value]) -> None:
        for path, signal in self._tree.signals.items():
            self._tree.simulate(path, values.get(path, signal.initial))

    def _stimulus(self, loaded: Loaded) -> tuple[Audio, float | None]:
        scenario = loaded.scenario
        wav = loaded.wav
        speech = self._spoken(scenario.stimulus) if wav is None else read_wav(wav)
        if scenario.noise is None:
            return speech, None
        noise = scenario.noise
        return mix(speech, road_noise(len(speech), noise.seed, corner_hz=noise.corner_hz), noise.snr_db)

    def _spoken(self, stimulus: Stimulus) -> Audio:
        assert stimulus.say is not None
        voice = self._talk.assembly.engines.voices.get(stimulus.language)
        if voice is None:
            raise InputError(f"the profile has no voice for {stimulus.language}")
        with self._talk.assembly.engines.tts_turns.urgent():
            parts = list(voice.synthesise(stimulus.say))
        sound = np.concatenate([np.zeros(0, np.float32), *parts])
        if not len(sound):
            raise InputError(f"the voice has no sound for {stimulus.say!r}")
        heard = soxr.resample(sound, voice.sample_rate_hz, SAMPLE_RATE_HZ).astype(np.float32)
        silence = [np.zeros(round(seconds * SAMPLE_RATE_HZ), np.float32) for seconds in (_BEFORE_S, _AFTER_S)]
        return np.concatenate([silence[0], heard, silence[1]])


@contextmanager
def opened(profile: str, folder: Path, *, quiet: bool = True) -> Iterator[Bench]:
    """The chain of `profile`, warm. folder: where the stimuli as heard are written. Raises what assembling raises."""
    folder.mkdir(parents=True, exist_ok=True)
    with talking(profile, NullSink(), None, quiet=quiet) as talk:
        yield Bench(talk, folder)
