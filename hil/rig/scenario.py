"""What a bench engineer writes: one YAML file per scenario, checked as a whole before anything runs."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from cockpit.profile.base import Flag, Section
from cockpit.profile.units import Duration, between
from hil import AUDIO
from models.errors import ConfigError, InputError
from pipeline.frames import Language
from pipeline.vehicle.schemas import fault_of
from pipeline.vehicle.signals import load_signals

SHIPPED = Path(__file__).resolve().parents[1] / "scenarios"
Scalar = bool | int | float | str
Limit = Annotated[Duration, between(Duration, "1ms", "60s")]


class Stimulus(Section):
    """What is said to the car."""

    wav: Path | None = None
    """A recording: a path beside the scenario, or the name of one that ships with the rig (`en01.wav`)."""
    sha256: Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")] | None = None
    """Of the file `wav`. Another file is an error of the run, not of the car."""
    say: Annotated[str, Field(min_length=1, max_length=400)] | None = None
    """Words instead of a recording, spoken by the profile's own voice, so that the ear is part of the test."""
    language: Language = "en"
    """Of `say`."""

    @model_validator(mode="after")
    def _one(self) -> Stimulus:
        if (self.wav is None) == (self.say is None):
            raise ValueError("name either wav or say")
        if self.wav is None and self.sha256 is not None:
            raise ValueError("sha256 belongs to wav")
        return self


class Noise(Section):
    """What is heard beside it."""

    kind: Literal["road"] = "road"
    """Tyres and wind, pink above `corner_hz`."""
    snr_db: Annotated[float, Field(ge=-10.0, le=60.0)]
    """Active speech over noise, measured over the blocks that hold speech."""
    corner_hz: Annotated[float, Field(ge=40.0, le=1000.0)] = 120.0
    """From here on the noise falls: faster roads lie higher."""
    seed: Annotated[int, Field(strict=True, ge=0)] = 1


def _known_signals(values: dict[str, Scalar]) -> dict[str, Scalar]:
    signals = load_signals()
    for path in values:
        if path not in signals:
            near = difflib.get_close_matches(path, signals, 1)
            raise ValueError(f"no signal {path}" + (f"; did you mean {near[0]}?" if near else ""))
    return values


Signals = Annotated[dict[str, Scalar], AfterValidator(_known_signals)]


class Expected(Section):
    """What must come of it. What is left out is not judged, but for `unchanged`."""

    transcript: str | None = None
    """What is heard, compared without case and punctuation."""
    calls: tuple[dict[str, dict[str, Any]], ...] | None = None
    """Exactly these calls, in order: `- set_window: {zone: driver, action: open, percent: 100}`. []: none at all."""
    state: Signals = Field(default_factory=dict)
    """Signals afterwards, by VSS path."""
    unchanged: Flag = True
    """`true`: no other signal may have changed, nor any at all where `state` is empty and `calls` is not given."""
    reply: tuple[str, ...] = ()
    """Words of the reply, without case."""
    not_reply: tuple[str, ...] = ()
    """Words that the reply must not hold."""

    @model_validator(mode="after")
    def _calls_are_calls(self) -> Expected:
        for call in self.calls or ():
            if len(call) != 1:
                raise ValueError(f"one call has one tool: {call}")
            ((name, arguments),) = call.items()
            fault = fault_of(name, arguments)
            if fault is not None:
                raise ValueError(f"{name} {arguments}: {fault}")
        return self


class Scenario(Section):
    """One scenario. See docs/hil.md."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{2,60}$")]
    """Its name in reports and for running it again."""
    requirement: str | None = None
    """What it proves: a number of the OEM's list."""
    about: str | None = None
    """One line for people."""
    stimulus: Stimulus
    noise: Noise | None = None
    before: Signals = Field(default_factory=dict)
    """Signals that are set before each repetition."""
    expect: Expected = Expected()
    limits: dict[Literal["endpoint", "asr", "llm_ttft", "llm", "tts_first", "first_audio"], Limit] = Field(
        default_factory=dict
    )
    """Stage -> the longest it may take. Counted from the end of speech for first_audio."""
    margin: Annotated[float, Field(ge=0.0, le=0.5)] = 0.1
    """So near to a limit (as a share of it) a turn is MARGINAL."""
    repetitions: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    timeout: Annotated[Duration, between(Duration, "1s", "600s")] = Duration.parse("60s")


@dataclass(frozen=True, slots=True)
class Loaded:
    """A scenario and where it came from. digest: sha256 of its file and of the recording."""

    scenario: Scenario
    file: Path
    digest: str

    @property
    def wav(self) -> Path | None:
        """The recording, found. Raises InputError for one that is not there, or another one."""
        stimulus = self.scenario.stimulus
        return None if stimulus.wav is None else _recording(self.file, stimulus)


def load(file: Path) -> Loaded:
    """Read and check one file. Raises ConfigError naming every fault with its key."""
    try:
        text = file.read_bytes()
    except OSError as error:
        raise InputError(f"{file}: {error.strerror}") from error
    try:
        data = YAML(typ="safe", pure=True).load(text.decode("utf-8"))
        scenario = Scenario.model_validate(data)
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 ({error.reason}); convert it") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark
        at = "" if mark is None else f":{mark.line + 1}:{mark.column + 1}"
        raise ConfigError(f"{file}{at}: {error.problem or 'no YAML'}") from error
    except ValidationError as error:
        faults = [f"{'.'.join(map(str, one['loc'])) or 'the file'}: {one['msg']}" for one in error.errors()]
        raise ConfigError("\n".join(f"{file}: {fault}" for fault in faults)) from error
    digest = hashlib.sha256(text)
    if scenario.stimulus.wav is not None:
        digest.update(_recording(file, scenario.stimulus).read_bytes())
    return Loaded(scenario, file, digest.hexdigest())


def find(patterns: Sequence[str]) -> list[Loaded]:
    """Scenarios by file, folder, or id with wildcards among those that ship; all that ship without a pattern.

    Raises InputError where a pattern finds nothing, ConfigError for a faulty file and for an id used twice.
    """
    found: dict[Path, Loaded] = {}
    for pattern in patterns or ["*"]:
        path = Path(pattern)
        if path.is_dir():
            files = sorted(path.glob("*.yaml"))
        elif path.is_file():
            files = [path]
        else:
            files = sorted(SHIPPED.glob(f"{pattern}.yaml"))
        if not files:
            known = ", ".join(sorted(file.stem for file in SHIPPED.glob("*.yaml")))
            raise InputError(f"{pattern}: no such file or folder, and no scenario that ships: {known}")
        for file in files:
            found.setdefault(file.resolve(), load(file))
    names: dict[str, Path] = {}
    for loaded in found.values():
        other = names.setdefault(loaded.scenario.id, loaded.file)
        if other != loaded.file:
            raise ConfigError(f"{loaded.file}: the id {loaded.scenario.id} is that of {other}; give each its own")
    return list(found.values())


def _recording(file: Path, stimulus: Stimulus) -> Path:
    assert stimulus.wav is not None
    for folder in (file.parent, AUDIO):
        path = folder / stimulus.wav
        if path.is_file():
            if stimulus.sha256 is not None and hashlib.sha256(path.read_bytes()).hexdigest() != stimulus.sha256:
                raise InputError(f"{file}: {path} is another recording than the one with the sha256 that is given")
            return path
    raise InputError(f"{file}: no recording {stimulus.wav} beside it or in {AUDIO}")
