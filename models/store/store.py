"""The models on this machine: fetched source files, built folders, and whether both are what they should be.

    <root>/sources/<model>/<file>      bytes pinned by the registry
    <root>/built/<model>/...           what a builder made of them, with its fingerprint
    <root>/downloads/, building/       unfinished work; a download goes on from there, a build starts again

Fetching and building belong to the command line and the tests; the serving process only asks for `built()`.
"""

from __future__ import annotations

import contextlib
import fcntl
import importlib
import inspect
import os
import platform
import shutil
from collections.abc import Callable, Iterator
from dataclasses import dataclass
from pathlib import Path

from models.errors import FingerprintMismatch, ModelMissing, StartupError
from models.store.fetch import Fetcher, NoProgress, Origins, Progress, configured_origins, extract_folder, sha256_of
from models.store.fingerprint import (
    Fingerprint,
    builder_sha256,
    check_fingerprint,
    onnxruntime_version,
    write_fingerprint,
)
from models.store.registry import ArchiveFolder, BuildRule, ModelEntry, ModelFile, Registry, load_registry

BuildProgress = Callable[[str, float], None]


def cache_root() -> Path:
    """`COCKPIT_CACHE`, or `~/.cache/cockpit`."""
    return Path(os.environ.get("COCKPIT_CACHE") or "~/.cache/cockpit").expanduser()


@dataclass(frozen=True, slots=True)
class StoreFault:
    """Something wrong with a stored model, and the command that mends it."""

    model: str
    path: Path
    problem: str
    remedy: str


class Store:
    """Fetched and built models under one root. Safe for several processes: writers of one model take its file lock."""

    def __init__(self, root: Path, registry: Registry, device: str = "cpu") -> None:
        self.root = root
        self.registry = registry
        self.device = device

    @classmethod
    def open(cls, root: Path | None = None, registry: Registry | None = None) -> Store:
        """The store at `root` (default: `cache_root()`) over `registry` (default: the one that ships)."""
        return cls(root or cache_root(), registry or load_registry())

    # --- where things are ------------------------------------------------------------------------------------------
    def source_folder(self, name: str) -> Path:
        """Folder of the source files that `name` is made of."""
        return self.root / "sources" / self.registry.source_entry(name).name

    def source(self, name: str, file: str) -> Path:
        """One fetched source file. Raises ModelMissing."""
        path = self.source_folder(name) / file
        if not path.is_file():
            raise ModelMissing(f"{name}: {file} is not fetched; run: cockpit models fetch {name}")
        return path

    def is_fetched(self, name: str) -> bool:
        """True when every source file is there with its size (the hash is `verify`'s business)."""
        folder = self.source_folder(name)
        files = self.registry.source_entry(name).needed_files.items()
        return all((folder / f).is_file() and (folder / f).stat().st_size == spec.size_bytes for f, spec in files)

    def is_built(self, name: str) -> bool:
        """True when `built(name)` would answer."""
        try:
            self.built(name)
        except (ModelMissing, FingerprintMismatch):
            return False
        return True

    def built(self, name: str) -> Path:
        """The folder an engine loads. Raises ModelMissing or FingerprintMismatch, each naming the command."""
        entry = self.registry.get(name)
        if entry.build is None:
            if not self.is_fetched(name):
                raise ModelMissing(f"{name} is not fetched; run: cockpit models fetch {name}")
            return self.source_folder(name)
        folder = self.root / "built" / name
        if not folder.is_dir():
            raise ModelMissing(f"{name} is not built; run: cockpit models build {name}")
        check_fingerprint(folder, self.expected_fingerprint(entry))
        return folder

    def expected_fingerprint(self, entry: ModelEntry) -> Fingerprint:
        """What a build of `entry` made now, here, would carry."""
        if entry.build is None:
            raise ValueError(f"{entry.name} has no build rule")
        files = self.registry.source_entry(entry.name).needed_files
        return Fingerprint(
            model=entry.name,
            sources={file: files[file].sha256 for file in sorted(self._build_files(entry).values())},
            builder=entry.build.builder,
            builder_sha256=builder_sha256(entry.build.builder.partition(":")[0]),
            options=dict(entry.build.options),
            onnxruntime=onnxruntime_version(),
            device=self.device,
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
                downloads.mkdir(parents=True, exist_ok=True)
                fetcher = Fetcher(downloads, origins or configured_origins(), progress or NoProgress())
                came_from.append(fetcher.fetch(file, spec, target))
                write_stamp(target, spec.sha256)
            shutil.rmtree(downloads, ignore_errors=True)
        return came_from

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

    def build(self, name: str, *, force: bool = False, progress: BuildProgress | None = None) -> Path:
        """Build `name` from its fetched files unless that is done; the old folder stays until the new one is complete.

        `progress(step, share)` is told the builder's steps, where it has any; share done in [0, 1].
        Raises ModelMissing when a source is not fetched, and StartupError when the `build` extra is not installed.
        """
        entry = self.registry.get(name)
        if entry.build is None:
            return self.built(name)
        with self._locked(name):
            if not force and self.is_built(name):
                return self.built(name)
            sources = {key: self.source(name, file) for key, file in self._build_files(entry).items()}
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
                write_fingerprint(out, self.expected_fingerprint(entry))
                if target.exists():
                    target.rename(scratch / "old")
                out.rename(target)
            finally:
                shutil.rmtree(scratch)
        return self.built(name)

    def ensure(self, name: str, *, origins: Origins | None = None, progress: Progress | None = None) -> Path:
        """Fetch and build `name` as far as needed; returns `built(name)`."""
        if not self.is_built(name):
            if not self.is_fetched(name):
                self.fetch(name, origins=origins, progress=progress)
            self.build(name)
        return self.built(name)

    def verify(self, name: str) -> list[StoreFault]:
        """Hash every source file and check the build's fingerprint; returns what is wrong (empty: all is well)."""
        faults = []
        folder = self.source_folder(name)
        for file, spec in self.registry.source_entry(name).needed_files.items():
            path, remedy = folder / file, f"cockpit models fetch {name}"
            if not path.is_file():
                faults.append(StoreFault(name, path, "not fetched", remedy))
            elif (digest := sha256_of(path)) != spec.sha256:
                stamp_of(path).unlink(missing_ok=True)
                faults.append(StoreFault(name, path, f"sha256 is {digest}, the registry pins {spec.sha256}", remedy))
        if self.registry.get(name).build is not None:
            try:
                self.built(name)
            except (ModelMissing, FingerprintMismatch) as error:
                path = self.root / "built" / name
                faults.append(StoreFault(name, path, str(error), f"cockpit models build {name}"))
        return faults

    @contextlib.contextmanager
    def _locked(self, name: str) -> Iterator[None]:
        locks = self.root / "locks"
        locks.mkdir(parents=True, exist_ok=True)
        with (locks / f"{name}.lock").open("w") as file:
            fcntl.flock(file, fcntl.LOCK_EX)
            yield


def stamp_of(file: Path) -> Path:
    """Where it is noted that `file` had the right hash, and its modification time then."""
    return file.with_name(f".{file.name}.stamp")


def read_stamp(file: Path) -> tuple[int, str] | None:
    """(modification time in ns, sha256) noted for `file`; None when nothing is."""
    try:
        mtime_ns, _, sha256 = stamp_of(file).read_text(encoding="utf-8").partition(" ")
        return int(mtime_ns), sha256
    except (OSError, ValueError):
        return None


def write_stamp(file: Path, sha256: str) -> None:
    """Note that `file` has this hash now."""
    stamp_of(file).write_text(f"{file.stat().st_mtime_ns} {sha256}", encoding="utf-8")


def _call_builder(rule: BuildRule, sources: dict[str, Path], out: Path, progress: BuildProgress | None) -> None:
    module_name, _, function_name = rule.builder.partition(":")
    try:
        function = getattr(importlib.import_module(module_name), function_name)
    except ModuleNotFoundError as error:
        remedy = 'install the build tools: pip install "cockpit-voice[build]"'
        raise StartupError(f"cannot build with {rule.builder}: {error.name} is not installed; {remedy}") from error
    tell = {"progress": progress} if "progress" in inspect.signature(function).parameters else {}
    function(**sources, out=out, **rule.options, **tell)
