"""The files of a pack, from a folder or a tar: only what was signed, and only plain files.

Refused: links of both kinds (ONNX Runtime reads a hard link's content wherever it leads), devices, paths that leave the
pack, files more or fewer than signed, other sizes or contents, and pickles under whatever name.
"""

from __future__ import annotations

import hashlib
import os
import re
import stat
import tarfile
import zipfile
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import BinaryIO

from models.errors import InputError, PackRefused
from models.pack.signing import LARGEST_ENVELOPE_BYTES

ENVELOPE = "pack.json"
BLOCK_BYTES = 1 << 20
_PICKLES = (".pkl", ".pickle", ".pt", ".pth", ".ckpt", ".joblib", ".dill")
_ODD = re.compile(r"[\x00-\x1f\x7f\\]")


class FolderSource:
    """A pack as a folder."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def envelope(self) -> bytes:
        """The signature file. Raises PackRefused."""
        try:
            with _plain(self.path / ENVELOPE) as file:
                return _bounded(file)
        except FileNotFoundError as error:
            raise PackRefused(f"{self.path} is no pack: it has no {ENVELOPE}") from error

    def files(self) -> Iterator[tuple[str, int, BinaryIO]]:
        """(path in the pack, bytes, content) of every file but the signature file. Raises PackRefused."""
        for folder, below, names in os.walk(self.path):
            for name in below:
                if not stat.S_ISDIR(os.lstat(os.path.join(folder, name)).st_mode):
                    raise PackRefused(f"{_relative(folder, name, self.path)} is a link")
            for name in sorted(names):
                inside = _relative(folder, name, self.path)
                if inside != ENVELOPE:
                    with _plain(Path(folder, name), inside) as file:
                        yield inside, os.fstat(file.fileno()).st_size, file


class TarSource:
    """A pack as an uncompressed tar whose first member is the signature file."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def envelope(self) -> bytes:
        """See FolderSource."""
        with self._opened() as tar:
            first = tar.next()
            if first is None or first.name != ENVELOPE or not first.isreg():
                raise PackRefused(f"{self.path} is no pack: its first member is not {ENVELOPE}")
            file = tar.extractfile(first)
            assert file is not None
            return _bounded(file)

    def files(self) -> Iterator[tuple[str, int, BinaryIO]]:
        """See FolderSource."""
        with self._opened() as tar:
            tar.next()
            while (member := tar.next()) is not None:
                if member.isdir():
                    safe_path(member.name.rstrip("/"))
                    continue
                if not member.isreg() or member.issparse():
                    raise PackRefused(f"{member.name!r} is no plain file")
                file = tar.extractfile(member)
                assert file is not None
                yield member.name, member.size, file  # type: ignore[misc]

    @contextmanager
    def _opened(self) -> Iterator[tarfile.TarFile]:
        try:
            with tarfile.open(self.path, "r:") as tar:
                yield tar
        except tarfile.TarError as error:
            raise PackRefused(f"{self.path} is no tar, or cut off: {error}") from error


Source = FolderSource | TarSource


def source_of(path: Path) -> Source:
    """Raises InputError for what is not there."""
    if path.is_dir():
        return FolderSource(path)
    if path.is_file():
        return TarSource(path)
    raise InputError(f"no pack {path}")


def take(source: Source, signed: dict[str, tuple[int, str]], into: Path | None) -> None:
    """Read every file, and compare with what was signed; the bytes that were hashed are those that are written.

    into: write them there and onto the disk, too. Raises PackRefused, or OSError of a disk that is full.
    """
    try:
        _take(source, signed, into)
    except tarfile.TarError as error:
        raise PackRefused(f"{source.path} is cut off: {error}") from error


def _take(source: Source, signed: dict[str, tuple[int, str]], into: Path | None) -> None:
    waiting = dict(signed)
    for name, size_bytes, file in source.files():
        safe_path(name)
        if name not in waiting:
            raise PackRefused(f"{name!r} {'is there twice' if name in signed else 'was not signed'}")
        wanted_bytes, sha256 = waiting.pop(name)
        if size_bytes != wanted_bytes:
            raise PackRefused(f"{name} is {size_bytes} bytes long, {wanted_bytes} were signed")
        if _copied(name, file, size_bytes, into) != sha256:
            raise PackRefused(f"the content of {name} is not what was signed")
    if waiting:
        raise PackRefused(f"{next(iter(waiting))} is missing" + (f", and {len(waiting) - 1} more" * (len(waiting) > 1)))


def safe_path(name: str) -> None:
    """Raises PackRefused for a path that could lead out of a folder, or that file systems read in several ways."""
    parts = name.split("/")
    if name.startswith("/") or _ODD.search(name) or any(part in ("", ".", "..") for part in parts):
        raise PackRefused(f"{name!r} is no path inside a pack")
    if name.lower().endswith(_PICKLES):
        raise PackRefused(f"{name} is a pickle by its name: it would run code when loaded")


def refuse_pickle(name: str, file: BinaryIO, start: bytes) -> None:
    """Raises PackRefused for a pickle, and for an archive that holds one. `file` may be read from anywhere after."""
    if start[:1] == b"\x80" and start[1:2] in (b"\x02", b"\x03", b"\x04", b"\x05") and start[2:3] in b"}]()cX\x95\x8a":
        raise PackRefused(f"{name} is a pickle: it would run code when loaded")
    if start[:4] == b"PK\x03\x04":
        file.seek(0)
        try:
            inside = zipfile.ZipFile(file).namelist()
        except zipfile.BadZipFile as error:
            raise PackRefused(f"{name} is a damaged archive") from error
        if any(member.lower().endswith(_PICKLES) for member in inside):
            raise PackRefused(f"{name} holds a pickle: it would run code when loaded")


def _copied(name: str, file: BinaryIO, size_bytes: int, into: Path | None) -> str:
    """sha256 of the content."""
    start = file.read(16)
    refuse_pickle(name, file, start)
    file.seek(0)
    digest, left = hashlib.sha256(), size_bytes
    target = None if into is None else into / name
    if target is not None:
        target.parent.mkdir(parents=True, exist_ok=True)
    with open(os.devnull if target is None else target, "wb" if target is None else "xb") as out:
        while left > 0 and (block := file.read(min(BLOCK_BYTES, left))):
            digest.update(block)
            out.write(block)
            left -= len(block)
        if target is not None:
            out.flush()
            os.fsync(out.fileno())
    if left or file.read(1):
        raise PackRefused(f"{name} changed while it was read, or is cut off")
    return digest.hexdigest()


@contextmanager
def _plain(path: Path, shown: str = ENVELOPE) -> Iterator[BinaryIO]:
    """Open a plain file that has no second name. Raises PackRefused."""
    try:
        descriptor = os.open(path, os.O_RDONLY | os.O_NOFOLLOW | os.O_NONBLOCK)
    except FileNotFoundError:
        raise
    except OSError as error:
        raise PackRefused(f"{shown} is a link, or cannot be read: {error.strerror}") from error
    with open(descriptor, "rb") as file:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            raise PackRefused(f"{shown} is no plain file")
        if found.st_nlink > 1:
            raise PackRefused(f"{shown} has a second name (hard link)")
        yield file


def _bounded(file: object) -> bytes:
    data: bytes = file.read(LARGEST_ENVELOPE_BYTES + 1)  # type: ignore[attr-defined]
    if len(data) > LARGEST_ENVELOPE_BYTES:
        raise PackRefused(f"its {ENVELOPE} is longer than {LARGEST_ENVELOPE_BYTES} bytes")
    return data


def _relative(folder: str, name: str, root: Path) -> str:
    return os.path.relpath(os.path.join(folder, name), root)
