"""The models on this machine: fetched source files, built folders, and whether both are what they should be.

    <root>/sources/<model>/<file>      bytes pinned by the registry
    <root>/built/<model>/...           what a builder made of them, with its manifest
    <root>/former/<model>/...          the build before it: see models/store/tracks.py
    <root>/downloads/, building/       unfinished work; a download goes on from there, a build starts again

Fetching and building belong to the command line and the tests; the serving process only asks for `built()`.
"""

from __future__ import annotations

import contextlib
import fcntl
import hashlib
import importlib
import inspect
import logging
import platform
import shutil
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass
from pathlib import Path

from models.cache import cache_root, writable
from models.errors import (
    ConfigError,
    FingerprintMismatch,
    InputError,
    LibraryMissing,
    ModelDamaged,
    ModelMissing,
    ModelUnusable,
    NotValidated,
    StartupError,
    fetch_command,
    validate_command,
)
from models.store.declared import differences as declared_differences
from models.store.declared import missing_libraries
from models.store.fetch import Fetcher, NoProgress, Origins, Progress, configured_origins, extract_folder, sha256_of
from models.store.fingerprint import BuilderCode, Fingerprint, onnxruntime_version
from models.store.machine import machine_fields
from models.store.manifest import FILE_NAME as MANIFEST
from models.store.manifest import Manifest
from models.store.registry import ArchiveFolder, BuildRule, Device, ModelEntry, ModelFile, Registry, load_registry
from models.store.stamps import read_stamp, stamp_of, write_stamp
from models.store.tracks import exchange, former_folder, put_in_place, sync_folder
from models.store.validation import Validation

BuildProgress = Callable[[str, float], None]
_UNREADABLE = "missing or not readable: built by an older version, or damaged"
_LOG = logging.getLogger(__name__)


@dataclass(frozen=True, slots=True)
class StoreFault:
    """Something wrong with a file or folder of a stored model; `Store.remedy` names the command that mends it."""

    model: str
    path: Path
    problem: str


class Store:
    """Fetched and built models under one root. Safe for several processes: writers of one model take its file lock."""

    def __init__(
        self,
        root: Path,
        registry: Registry,
        device: Device | None = None,
        *,
        stand_ins: bool = False,
        profile: str | None = None,
    ) -> None:
        self.root = root
        self.registry = registry
        self.device = device
        self.stand_ins = stand_ins
        self.profile = profile

    @classmethod
    def open(
        cls,
        root: Path | None = None,
        registry: Registry | None = None,
        *,
        device: Device | None = None,
        stand_ins: bool = False,
        profile: str | None = None,
    ) -> Store:
        """The store at `root` (default: `cache_root()`) over `registry` (default: the one that ships).

        device: what the models will run on: `built` refuses those made for another one. None: not known here, as when
        models are fetched and built for some other machine. stand_ins: take builds that stand in, too, as serving does.
        profile: the one that names `registry`, for the commands that messages name; None: the shipped one.
        """
        return cls(root or cache_root(), registry or load_registry(), device, stand_ins=stand_ins, profile=profile)

    # --- where things are ------------------------------------------------------------------------------------------
    def source_folder(self, name: str) -> Path:
        """Folder of the source files that `name` is made of."""
        return self.root / "sources" / self.registry.source_entry(name).name

    def source(self, name: str, file: str) -> Path:
        """One fetched source file. Raises ModelMissing."""
        path = self.source_folder(name) / file
        if not path.is_file():
            raise ModelMissing(f"{name}: {file} is not fetched; run: {self.remedy(name)}")
        return path

    def is_fetched(self, name: str) -> bool:
        """True when every source file is there with its size (the hash is `verify`'s business)."""
        folder = self.source_folder(name)
        files = self.registry.source_entry(name).needed_files.items()
        return all((folder / f).is_file() and (folder / f).stat().st_size == spec.size_bytes for f, spec in files)

    def is_built(self, name: str) -> bool:
        """True when nothing speaks against loading `name`."""
        return self.fault(name) is None

    def built(self, name: str) -> Path:
        """The folder an engine loads. Raises as `built_all`."""
        return self.built_all([name])[name]

    def built_all(self, names: Iterable[str], *, any_device: bool = False) -> dict[str, Path]:
        """The folder an engine loads, by model. any_device: also of a model that is made for another device.

        Raises ModelUnusable (ModelMissing, FingerprintMismatch or ModelDamaged): the message holds the fault of every
        model that has one, and the command that mends them all. Raises ConfigError for an unknown model, and for one
        made for another device than the store's.
        """
        wanted = list(dict.fromkeys(names))
        if self.device is not None and not any_device:
            for entry in map(self.registry.get, wanted):
                if self.device not in entry.devices:
                    raise ConfigError(f"{entry.name} is made for {' or '.join(entry.devices)}, not for {self.device}")
        faults = {name: fault for name in wanted if (fault := self.fault(name)) is not None}
        if faults:
            first, *more = faults.values()
            texts = "\n".join(map(str, faults.values())) + "\n" if more else f"{first}; "
            mended = [name for name, fault in faults.items() if not isinstance(fault, LibraryMissing)]
            run = f"run: {self.remedy(*mended)}" if mended else "install the packages"
            raise type(first)(texts + run) from first
        for name in wanted:
            for note in self.notes(name):
                _LOG.warning("%s: %s", name, note)
        return {name: self.folder(name) for name in wanted}

    def remedy(self, *names: str) -> str:
        """The command that fetches and builds `names` as far as needed."""
        entries = [self.registry.get(name) for name in names]
        if len(entries) > 1 and all(entry.default for entry in entries):
            return fetch_command(profile=self.profile)
        free = all(entry.commercial_use for entry in entries)
        return fetch_command(*names, accept_licence=not free, profile=self.profile)

    def validation_remedy(self, *names: str) -> str:
        """The command after which `names` may be served."""
        return validate_command(*names, profile=self.profile)

    def fault(self, name: str, *, whole: bool = False) -> ModelUnusable | None:
        """What speaks against loading `name`, None when nothing does. The message names no command.

        whole: read every byte; without, sizes and samples (see models/store/manifest.py). A model that is loaded as it
        was fetched is small and always read whole. A built model needs no source files.
        """
        entry, folder = self.registry.get(name), self.folder(name)
        if lacking := missing_libraries(entry):
            return LibraryMissing(f"{name} needs {', '.join(lacking)}")
        if entry.build is not None:
            if not folder.is_dir():
                return ModelMissing(f"{name} is not built")
            return self._build_fault(entry, folder, whole=whole)
        if not self.is_fetched(name):
            return ModelMissing(f"{name} is not fetched")
        return _damaged(name, list(self._wrong_sources(name)))

    def _build_fault(self, entry: ModelEntry, folder: Path, *, whole: bool = False) -> ModelUnusable | None:
        """What speaks against loading the build in `folder`."""
        manifest = Manifest.read(folder)
        if manifest is None:
            return ModelDamaged(f"{entry.name} is damaged: {folder / MANIFEST}: {_UNREADABLE}")
        found = manifest.fingerprint
        differences = found.differences(self.expected_fingerprint(entry, found))
        if differences and not (self.stand_ins and self.stands_in(entry.name)):
            return FingerprintMismatch(f"{entry.name} was built for something else ({'; '.join(differences)})")
        wrong = [*manifest.damage(whole=whole), *declared_differences(entry, folder, whole=whole)]
        return _damaged(entry.name, wrong)

    def fault_in(self, name: str, folder: Path) -> ModelUnusable | None:
        """What speaks against loading `name` from `folder`, every byte read: a build, or source files."""
        entry = self.registry.get(name)
        if entry.build is not None:
            return self._build_fault(entry, folder, whole=True)
        files = entry.needed_files.items()
        wrong = [
            (folder / file, "not the file that the registry pins")
            for file, spec in files
            if not (folder / file).is_file() or sha256_of(folder / file) != spec.sha256
        ]
        return _damaged(name, wrong)

    def notes(self, name: str) -> list[str]:
        """What is worth knowing about a build that may be loaded all the same."""
        entry = self.registry.get(name)
        manifest = None if entry.build is None else Manifest.read(self.folder(name))
        if manifest is None:
            return []
        return manifest.fingerprint.notes(self.expected_fingerprint(entry, manifest.fingerprint))

    def runs_on(self, name: str) -> Device:
        """Where the store's device runs `name`: recognition, language models and voices on a GPU, the rest never."""
        entry = self.registry.get(name)
        on_gpu = self.device == "cuda" and "cuda" in entry.devices and entry.kind in ("asr", "llm", "tts")
        return "cuda" if on_gpu or entry.devices == ("cuda",) else "cpu"

    def content(self, name: str, folder: Path | None = None) -> str:
        """sha256 that changes with every byte of what an engine loads, and with what it must answer. folder: of a build
        that has not taken its place yet.
        """
        entry = self.registry.get(name)
        if entry.build is not None:
            loaded = sha256_of((folder or self.folder(name)) / MANIFEST)
        else:
            loaded = repr(sorted((file, spec.sha256) for file, spec in entry.needed_files.items()))
        answers = [(answer.ask, answer.answer) for answer in entry.known_answers]
        return hashlib.sha256(repr((loaded, answers)).encode()).hexdigest()

    def unvalidated(self, name: str) -> str:
        """Why a model without a fault may not be served yet; "" when it may."""
        if self.registry.get(name).engine is None:
            return ""
        found = Validation.read(self.folder(name))
        if found is None:
            return "it was not validated"
        return found.against(self.content(name), machine_fields(self.runs_on(name)))

    def may_stand_in(self, name: str) -> str:
        """What `Validation.stands_in_for` must say for the build that is here to stand in for the one that is wanted;
        "" where it cannot: it is as wanted, or made of other sources or with other options, or damaged.
        """
        entry = self.registry.get(name)
        manifest = None if entry.build is None else Manifest.read(self.folder(name))
        if manifest is None or any(manifest.damage(whole=False)):
            return ""
        wanted = self.expected_fingerprint(entry, manifest.fingerprint)
        return wanted.software if manifest.fingerprint.differs_in_software_alone(wanted) else ""

    def stands_in(self, name: str) -> bool:
        """Whether a build by another version was seen to work with the software of this one, on this machine."""
        found = Validation.read(self.folder(name))
        if found is None or not found.stands_in_for:
            return False
        return found.stands_in_for == self.may_stand_in(name) and not self.unvalidated(name)

    def require_validated(self, names: Iterable[str]) -> None:
        """Raises NotValidated: why, for each model, and the command. A model with a fault is `built_all`'s business."""
        reasons = self.unvalidated_all(names)
        if reasons:
            texts = "\n".join(f"{name} may not be served: {reason}" for name, reason in reasons.items())
            raise NotValidated(f"{texts}\nrun: {self.validation_remedy(*reasons)}")

    def unvalidated_all(self, names: Iterable[str]) -> dict[str, str]:
        """Model -> why it may not be served, of those that have no fault."""
        whole = (name for name in dict.fromkeys(names) if self.is_built(name))
        return {name: reason for name in whole if (reason := self.unvalidated(name))}

    def folder(self, name: str) -> Path:
        """What an engine loads of `name`, whether it is there or not."""
        return self.source_folder(name) if self.registry.get(name).build is None else self.root / "built" / name

    def _wrong_sources(self, name: str) -> Iterator[tuple[Path, str]]:
        """(file, what is wrong with it) of the source files that are there, every byte read."""
        folder = self.source_folder(name)
        for file, spec in self.registry.source_entry(name).needed_files.items():
            path = folder / file
            if path.is_file() and (digest := sha256_of(path)) != spec.sha256:
                with contextlib.suppress(OSError):
                    stamp_of(path).unlink(missing_ok=True)
                yield path, f"sha256 is {digest}, the registry pins {spec.sha256}"

    def expected_fingerprint(self, entry: ModelEntry, found: Fingerprint | None = None) -> Fingerprint:
        """What a build of `entry` made now, here, would carry. found: what the build that is here carries."""
        if entry.build is None:
            raise ValueError(f"{entry.name} has no build rule")
        code = BuilderCode.here(entry.build.builder.partition(":")[0], found)
        files = self.registry.source_entry(entry.name).needed_files
        return Fingerprint(
            model=entry.name,
            sources={file: files[file].sha256 for file in sorted(self._build_files(entry).values())},
            builder=entry.build.builder,
            builder_sha256=code.sha256,
            options=dict(entry.build.options),
            onnxruntime=onnxruntime_version(),
            device=entry.devices[0] if len(entry.devices) == 1 else "any",
            builder_files=code.files,
        )

    def _build_files(self, entry: ModelEntry) -> dict[str, str]:
        """Builder argument -> source file behind it on this machine. Raises StartupError for a foreign processor."""
        chosen = {}
        needed = self.registry.source_entry(entry.name).needed_files
        for key, value in (entry.build.arguments if entry.build else {}).items():
            names = value.archives if isinstance(value, ArchiveFolder) else (value,)
            fitting = [name for name in names if name in needed]
            if not fitting:
                raise StartupError(
                    f"{entry.name} has no files for a {platform.machine()} processor; choose another model"
                )
            chosen[key] = fitting[0]
        return chosen

    # --- changing it -----------------------------------------------------------------------------------------------
    def fetch(self, name: str, *, origins: Origins | None = None, progress: Progress | None = None) -> list[str]:
        """Fetch what is missing of `name`; returns where each new file came from.

        Raises FetchError; whatever was there before is kept.
        """
        entry = self.registry.source_entry(name)
        folder = self.source_folder(name)
        came_from = []
        with self._locked(entry.name):
            downloads = self.root / "downloads" / entry.name
            for file, spec in entry.needed_files.items():
                target = folder / file
                if self._is_right(target, spec):
                    continue
                if target.is_dir():
                    shutil.rmtree(target)  # a folder stands in the file's place
                if self._taken_from_another(entry, spec, target):
                    came_from.append("another model's copy")
                    continue
                downloads.mkdir(parents=True, exist_ok=True)
                fetcher = Fetcher(downloads, origins or configured_origins(), progress or NoProgress())
                came_from.append(fetcher.fetch(file, spec, target))
                write_stamp(target, spec.sha256)
            shutil.rmtree(downloads, ignore_errors=True)
        return came_from

    def _taken_from_another(self, entry: ModelEntry, spec: ModelFile, target: Path) -> bool:
        """Copy the same bytes from another model's sources, where they lie there whole, instead of fetching them."""
        for other in self.registry.models:
            for file, known in other.files.items():
                there = self.source_folder(other.name) / file
                if other.name != entry.name and known.sha256 == spec.sha256 and self._is_right(there, known):
                    target.parent.mkdir(parents=True, exist_ok=True)
                    part = target.with_name(target.name + ".part")
                    shutil.copyfile(there, part)
                    part.replace(target)
                    write_stamp(target, spec.sha256)
                    return True
        return False

    def _is_right(self, target: Path, spec: ModelFile) -> bool:
        """Hash `target` unless it is unchanged since it was last hashed: a second start must take no time."""
        if not target.is_file() or target.stat().st_size != spec.size_bytes:
            return False
        if read_stamp(target) == (target.stat().st_mtime_ns, spec.sha256):
            return True
        if sha256_of(target) != spec.sha256:
            return False
        write_stamp(target, spec.sha256)
        return True

    def build(
        self,
        name: str,
        *,
        force: bool = False,
        whole: bool = False,
        progress: BuildProgress | None = None,
        accept: Callable[[Path], object] | None = None,
    ) -> Path:
        """Build `name` from its fetched files unless that is done; the old folder stays until the new one is complete.

        whole: see `fault`. accept: called with the complete new folder before it takes the old one's place; what it
        raises leaves the old one where it is. `progress(step, share)` is told the builder's steps, where it has any;
        share in [0, 1].
        Raises ModelMissing when a source is not fetched, ModelDamaged when one is not what the registry pins, and
        StartupError when the `build` extra is not installed.
        """
        entry = self.registry.get(name)
        if entry.build is None:
            return self.built(name)
        with self._locked(name):
            if not force and self.fault(name, whole=whole) is None:
                return self.built(name)
            sources = {key: self._sound_source(name, file) for key, file in self._build_files(entry).items()}
            target = self.root / "built" / name
            target.parent.mkdir(parents=True, exist_ok=True)
            scratch = self.root / "building" / name
            shutil.rmtree(scratch, ignore_errors=True)  # what a killed build left
            try:
                out = scratch / "new"
                out.mkdir(parents=True)
                for key, value in entry.build.arguments.items():
                    if isinstance(value, ArchiveFolder):
                        sources[key] = extract_folder(sources[key], value.folder, scratch / key)
                _call_builder(entry.build, sources, out, progress)
                for path, problem in declared_differences(entry, out, whole=True):
                    raise ModelDamaged(f"the new build of {name} is not as declared: {path.name}: {problem}")
                Manifest.write(out, self.expected_fingerprint(entry))
                if accept is not None:
                    accept(out)
                put_in_place(out, target, former_folder(self.root, name))
            finally:
                shutil.rmtree(scratch, ignore_errors=True)
        return self.built(name)

    def place(self, name: str, new: Path) -> None:
        """`new`, whole and on the disk, takes the place of what is loaded of `name`; see models/store/tracks.py."""
        with self._locked(name):
            put_in_place(new, self.folder(name), former_folder(self.root, name))

    def rollback(self, name: str) -> Path:
        """The former build of `name` and the present one change places; returns the folder, which an engine may load.

        Raises InputError where there is no former one, FingerprintMismatch or ModelDamaged where it cannot be loaded
        here: then nothing is changed.
        """
        entry, former = self.registry.get(name), former_folder(self.root, name)
        with self._locked(name):
            if entry.build is None or not former.is_dir():
                raise InputError(f"{name} has no former build to go back to")
            if fault := self._build_fault(entry, former):
                raise type(fault)(f"the former build cannot be used: {fault}; the present one stays")
            target = self.folder(name)
            if target.is_dir():
                exchange(former, target)
            else:
                target.parent.mkdir(parents=True, exist_ok=True)
                former.rename(target)
            sync_folder(former.parent)
            sync_folder(target.parent)
        return self.built(name)

    def _sound_source(self, name: str, file: str) -> Path:
        """A source file that may be built from. Raises ModelMissing or ModelDamaged."""
        path = self.source(name, file)
        if not self._is_right(path, self.registry.source_entry(name).needed_files[file]):
            raise ModelDamaged(f"{name}: {path} is not the file that the registry pins; run: {self.remedy(name)}")
        return path

    def ensure(
        self,
        name: str,
        *,
        origins: Origins | None = None,
        progress: Progress | None = None,
        build_progress: BuildProgress | None = None,
        whole: bool = False,
    ) -> Path:
        """Fetch and build `name` as far as needed; returns `built(name)`. whole: see `fault`.

        Source files that are gone are fetched only where they are needed; those that are wrong always.
        """
        if self.needs_work(name, whole=whole):
            self.fetch(name, origins=origins, progress=progress)
            self.build(name, whole=whole, progress=build_progress)
        return self.built(name)

    def needs_work(self, name: str, *, whole: bool = True) -> bool:
        """True when `name` cannot be loaded as it is, or (`whole`) one of the source files that are here is wrong."""
        return self.fault(name, whole=whole) is not None or (whole and self._has_wrong_source(name))

    def missing_bytes(self, name: str) -> int:
        """Bytes of the source files that `fetch` would fetch."""
        folder = self.source_folder(name)
        files = self.registry.source_entry(name).needed_files.items()
        return sum(spec.size_bytes for file, spec in files if not self._is_right(folder / file, spec))

    def _has_wrong_source(self, name: str) -> bool:
        """As `_wrong_sources`, but unchanged files are not read again."""
        folder = self.source_folder(name)
        files = self.registry.source_entry(name).needed_files.items()
        return any((folder / file).exists() and not self._is_right(folder / file, spec) for file, spec in files)

    def verify(self, name: str) -> list[StoreFault]:
        """Read every byte of the source files that are there and of what was built; returns what is wrong.

        A build that is as it should be needs no source files.
        """
        wrong = list(self._wrong_sources(name))
        entry, folder, fault = self.registry.get(name), self.folder(name), self.fault(name)
        if entry.build is not None and folder.is_dir():
            manifest = Manifest.read(folder)
            wrong += [(folder / MANIFEST, _UNREADABLE)] if manifest is None else manifest.damage(whole=True)
            wrong += declared_differences(entry, folder, whole=True)
        if fault is not None and not wrong:
            wrong.append((folder, str(fault).removeprefix(f"{name} ")))
        return [StoreFault(name, path, problem) for path, problem in wrong]

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        locks = writable(self.root / "locks")
        with (locks / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def _damaged(name: str, wrong: list[tuple[Path, str]]) -> ModelDamaged | None:
    if not wrong:
        return None
    (path, problem), more = wrong[0], len(wrong) - 1
    others = f" (and {more} more of its files)" if more else ""
    return ModelDamaged(f"{name} is damaged: {path}: {problem}{others}")


def _call_builder(rule: BuildRule, sources: dict[str, Path], out: Path, progress: BuildProgress | None) -> None:
    module_name, _, function_name = rule.builder.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ModuleNotFoundError as error:
        remedy = 'install the build tools: pip install "cockpit-voice[build]"'
        raise StartupError(f"cannot build with {rule.builder}: {error.name} is not installed; {remedy}") from error
    tell = {"progress": progress} if "progress" in inspect.signature(function).parameters else {}
    function(**sources, out=out, **rule.options, **tell)
