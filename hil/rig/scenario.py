"""What a bench engineer writes: one YAML file per scenario, checked as a whole before anything runs."""

from __future__ import annotations

import difflib
import hashlib
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, ConfigDict, Field, ValidationError, model_validator
from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError

from cockpit.profile.base import Flag, OneOrMore, Section
from cockpit.profile.units import Duration, between
from hil import AUDIO
from hil.acoustics.kinds import NoiseKind, Surface
from hil.acoustics.rooms import Microphone, Mouth, Window
from hil.acoustics.scene import CabinPath, NoiseSource
from hil.faults.audio import MicrophoneFault
from hil.faults.client import ClientFault
from hil.faults.gpu import GpuFault
from hil.faults.preloaded import DiskFault
from hil.faults.process import ServiceFault
from hil.faults.vehicle import VehicleFault
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
    silence: Annotated[Duration, between(Duration, "1s", "60s")] | None = None
    """Nobody speaks for so long: whatever is understood was invented."""
    language: Language = "en"
    """Of `say`."""

    @model_validator(mode="after")
    def _one(self) -> Stimulus:
        if [self.wav, self.say, self.silence].count(None) != 2:
            raise ValueError("name either wav or say or silence")
        if self.wav is None and self.sha256 is not None:
            raise ValueError("sha256 belongs to wav")
        return self

    @property
    def told(self) -> str:
        """For people."""
        return self.say or (f"silence, {self.silence}" if self.wav is None else str(self.wav))


class Noise(Section):
    """What is heard beside it, made from a seed. See docs/hil.md."""

    kind: NoiseKind = "road"
    snr_db: Annotated[float, Field(ge=-10.0, le=60.0)]
    """Active speech (ITU-T P.56) over the noise; where nobody speaks, speech at -26 dB below full scale is meant."""
    speed: Annotated[float, Field(ge=0.0, le=250.0)] = 100.0
    """Of road and engine: km/h."""
    surface: Surface = "smooth"
    """Of road: smooth, rough, cobbles or wet."""
    level: Annotated[float, Field(ge=0.0, le=100.0)] = 50.0
    """Of hvac and rain: the fan, the downpour, in percent."""
    seed: Annotated[int, Field(strict=True, ge=0)] = 1

    @model_validator(mode="after")
    def _of_its_kind(self) -> Noise:
        of = {"speed": ("road", "engine"), "surface": ("road",), "level": ("hvac", "rain")}
        for name, kinds in of.items():
            if name in self.model_fields_set and self.kind not in kinds:
                raise ValueError(f"{name} is of {' and '.join(kinds)}, not of {self.kind}")
        return self

    @property
    def source(self) -> NoiseSource:
        """The same, as it is made."""
        return NoiseSource(self.kind, self.snr_db, self.seed, self.speed, self.surface, self.level)


class CabinSection(Section):
    """The way through the cabin: impulse responses that ship with the rig."""

    mouth: Mouth = "driver"
    window: Window = "closed"
    """The driver's side window."""
    microphone: Microphone = "left"
    """One of the two in the roof console, or `both`: their sum."""

    @property
    def path(self) -> CabinPath:
        return CabinPath(self.mouth, self.window, self.microphone)


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
    """Exactly these calls, in order: `- set_window: {zone: driver, action: set, value: 50}`. []: none at all."""
    may_call: tuple[dict[str, dict[str, Any]], ...] | None = None
    """Each of these may be called or not, and nothing else: what was torn may be understood, never misunderstood."""
    state: Signals = Field(default_factory=dict)
    """Signals afterwards, by VSS path."""
    unchanged: Flag = True
    """`true`: no other signal may have changed, nor any at all where `state` is empty and `calls` is not given."""
    reply: tuple[str, ...] = ()
    """Words of the reply, without case."""
    not_reply: tuple[str, ...] = ()
    """Words that the reply must not hold."""
    failed: str | None = None
    """The stage that may fail: a fault that costs the turn, and an apology for it, are then as expected."""
    turns: Annotated[int, Field(strict=True, ge=0, le=100)] | None = None
    """How many turns come of it; 0: nothing is heard as speech. Left out: at least one."""
    unheard: Flag = False
    """`true`: it is as well if nothing is heard as speech."""
    mode: Mode | None = None
    """What the process must say that it lacks while the fault is on."""
    recovers: Annotated[Duration, between(Duration, "10ms", "600s")] | None = None
    """How long after the last fault everything must be well again."""

    @model_validator(mode="after")
    def _calls_are_calls(self) -> Expected:
        for call in (*(self.calls or ()), *(self.may_call or ())):
            if len(call) != 1:
                raise ValueError(f"one call has one tool: {call}")
            ((name, arguments),) = call.items()
            fault = fault_of(name, arguments)
            if fault is not None:
                raise ValueError(f"{name} {arguments}: {fault}")
        return self


Mode = Literal[
    "no_microphone", "no_speaker", "no_vehicle", "no_gpu", "tasks_paused", "stalled", "unvalidated", "standing_in",
    "pcie_width", "pcie_generation", "pcie_replays", "gpu_lost", "hw_slowdown", "hw_thermal", "hw_power_brake",
    "sw_power_cap", "sw_thermal", "gone",
]  # fmt: skip
"""What a process says that it lacks (docs/service.md), what its watch finds on the GPU, or that it does not answer."""


class FaultEntry(Section):
    """One fault of the timeline: when, for how long, and exactly one of the others."""

    model_config = ConfigDict(populate_by_name=True)

    at: Annotated[Duration, between(Duration, "0ms", "600s")] = Duration.parse("0ms")
    """From the first sample of the stimulus."""
    for_: Annotated[Duration, between(Duration, "10ms", "600s")] | None = Field(default=None, alias="for")
    """How long. Left out: until the stimulus is answered."""
    microphone: MicrophoneFault | None = None
    """`lost`: unplugged. `frames_stop`: silent. `xruns`: a third of it is lost. `drift`: its clock is 500 ppm fast."""
    service: ServiceFault | None = None
    """`killed`: SIGKILL and started again. `stopped`: SIGSTOP, then SIGCONT."""
    vehicle: VehicleFault | None = None
    """`fails`: writes are refused. `sticks`: they are taken and do nothing. `slow`: after `delay`. `gone`: no car."""
    disk: DiskFault | None = None
    """`full` (ENOSPC) or `io_error` (EIO), where the process keeps its state."""
    clock: Duration | None = None
    """By how much the day's clock jumps ahead."""
    gpu: GpuFault | None = None
    """What NVML shows: `pcie_x8`, `thermal`, `lost` or `nvml_gone` (it answers nothing)."""
    client: ClientFault | None = None
    """Of the API: `never_reads`, `garbage`, `half_request`, or a `crowd`."""
    path: str | None = None
    """Of `vehicle`: the only signal that lets down. Left out: every one."""
    delay: Annotated[Duration, between(Duration, "1ms", "30s")] | None = None
    """Of `vehicle: slow`."""

    @model_validator(mode="after")
    def _one(self) -> FaultEntry:
        kinds = [name for name in FAULTS if getattr(self, name) is not None]
        if len(kinds) != 1:
            raise ValueError(f"one fault has one of {', '.join(FAULTS)}; here: {', '.join(kinds) or 'none'}")
        if self.path is not None:
            _known_signals({self.path: 0})
        if self.path is not None and self.vehicle is None:
            raise ValueError("path belongs to vehicle")
        if (self.delay is None) == (self.vehicle == "slow"):
            raise ValueError("delay belongs to vehicle: slow, which needs one")
        return self

    @property
    def kind(self) -> str:
        """Which of `FAULTS` it is."""
        return next(name for name in FAULTS if getattr(self, name) is not None)


FAULTS = ("microphone", "service", "vehicle", "disk", "clock", "gpu", "client")


class Scenario(Section):
    """One scenario. See docs/hil.md."""

    id: Annotated[str, Field(pattern=r"^[a-z0-9][a-z0-9-]{2,60}$")]
    """Its name in reports and for running it again."""
    requirement: str | None = None
    """What it proves: a number of the OEM's list."""
    about: str | None = None
    """One line for people."""
    stimulus: Stimulus
    noise: Annotated[tuple[Noise, ...], OneOrMore()] = ()
    """One, or several at once."""
    cabin: CabinSection | None = None
    """Left out: the words are as they were recorded."""
    before: Signals = Field(default_factory=dict)
    """Signals that are set before each repetition."""
    faults: tuple[FaultEntry, ...] = ()
    """What goes wrong meanwhile."""
    expect: Expected = Expected()
    after: Expected | None = None
    """The stimulus is said once more when the faults are over; this must come of it."""
    limits: dict[Literal["endpoint", "asr", "llm_ttft", "llm", "tts_first", "first_audio"], Limit] = Field(
        default_factory=dict
    )
    """Stage -> the longest it may take. Counted from the end of speech for first_audio."""
    margin: Annotated[float, Field(ge=0.0, le=0.5)] = 0.1
    """So near to a limit (as a share of it) a turn is MARGINAL."""
    repetitions: Annotated[int, Field(strict=True, ge=1, le=1000)] = 1
    timeout: Annotated[Duration, between(Duration, "1s", "600s")] = Duration.parse("60s")

    @property
    def own_process(self) -> bool:
        """Whether it needs a process that the rig starts, with devices that the rig holds."""
        return self.expect.mode is not None or any(fault.vehicle is None for fault in self.faults)

    @model_validator(mode="after")
    def _fits(self) -> Scenario:
        kinds = {fault.kind for fault in self.faults}
        if self.expect.mode is not None and not self.faults:
            raise ValueError("expect.mode is of a fault: give faults")
        if "vehicle" in kinds and self.own_process:
            raise ValueError("faults of the vehicle are made in the rig's own process, and the others are not")
        if (self.expect.recovers is not None or self.after is not None) and not self.faults:
            raise ValueError("recovers and after are of faults: give faults")
        if self.own_process and (self.before or self.expect.state or (self.after and self.after.state)):
            raise ValueError("a process of its own shows no signals: expect calls, not state, and leave before out")
        if self.after is not None and (self.after.mode, self.after.recovers) != (None, None):
            raise ValueError("mode and recovers stand in expect")
        return self


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
