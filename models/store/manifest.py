"""What a built folder says of itself: what it was made from, and its files as the builder wrote them.

    manifest.json   {"format": 1, "fingerprint": {...}, "files": {path: {size_bytes, sha256, sample_sha256}}, "sha256":
                    of the fields before it}

It is written into the folder before that becomes visible. A start compares sizes and samples, `verify` every byte.
"""

from __future__ import annotations

import hashlib
import json
import os
import stat
from collections.abc import Iterator
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.store.fingerprint import Fingerprint
from models.store.validation import FILE_NAME as VALIDATION

FILE_NAME = "manifest.json"
SIGNATURE = "signature.json"
"""Beside it: see models/pack/signature.py."""
FORMAT = 1
SAMPLE_BYTES = 4096
SAMPLES = 64
"""A sample of a file: this many pieces spread evenly over it, the first and the last among them. A file that is not
larger than they are together is read whole."""


@dataclass(frozen=True, slots=True)
class FileRecord:
    """One file as the builder wrote it. sample_sha256: over its sample."""

    size_bytes: int
    sha256: str
    sample_sha256: str


@dataclass(frozen=True, slots=True)
class Manifest:
    """files: path below `folder` -> record, of everything that was built."""

    folder: Path
    fingerprint: Fingerprint
    files: dict[str, FileRecord]

    @classmethod
    def write(cls, folder: Path, fingerprint: Fingerprint) -> None:
        """Record every file below `folder`, and see to it that all of them are on the disk: after a power cut a folder
        that is there must be whole."""
        files = {}
        own = (folder / FILE_NAME, folder / VALIDATION, folder / SIGNATURE)
        for path in sorted(path for path in folder.rglob("*") if path.is_file() and path not in own):
            with path.open("rb") as file:
                os.fsync(file.fileno())
                digest = hashlib.file_digest(file, "sha256").hexdigest()
                size = os.fstat(file.fileno()).st_size
                record = FileRecord(size, digest, _sample_sha256(file.fileno(), size))
            files[path.relative_to(folder).as_posix()] = asdict(record)
        said: dict[str, Any] = {"format": FORMAT, "fingerprint": asdict(fingerprint), "files": files}
        with (folder / FILE_NAME).open("w", encoding="utf-8") as out:
            json.dump(said | {"sha256": _sha256_of(said)}, out, indent=1)
            out.flush()
            os.fsync(out.fileno())

    @classmethod
    def read(cls, folder: Path) -> Manifest | None:
        """None when there is none, or it is not as it was written."""
        try:
            said = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
            if said["format"] != FORMAT or said.pop("sha256") != _sha256_of(said):
                return None
            files = {name: FileRecord(**record) for name, record in said["files"].items()}
            return cls(folder, Fingerprint(**said["fingerprint"]), files)
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None

    def damage(self, *, whole: bool) -> Iterator[tuple[Path, str]]:
        """(file, what is wrong with it) for every file that is not as it was built.

        whole: read every byte. Without, sizes and samples are compared: that finds files that are missing, cut off,
        overwritten with zeros or replaced, but not every flipped bit.
        """
        for name, record in self.files.items():
            problem = _problem(f"{self.folder}/{name}", record, whole=whole)
            if problem:
                yield self.folder / name, problem


def _problem(path: str, record: FileRecord, *, whole: bool) -> str:
    """What is wrong with one file; "" when nothing is. Plain system calls: some builds have hundreds of files."""
    try:
        descriptor = os.open(path, os.O_RDONLY)
    except FileNotFoundError:
        return "missing"
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    try:
        found = os.fstat(descriptor)
        if not stat.S_ISREG(found.st_mode):
            return "something else than a file stands in its place"
        if found.st_size != record.size_bytes:
            return f"{found.st_size} bytes long, was built with {record.size_bytes}"
        same = _sample_sha256(descriptor, found.st_size) == record.sample_sha256
        if same and whole:
            with open(descriptor, "rb", closefd=False) as file:
                same = hashlib.file_digest(file, "sha256").hexdigest() == record.sha256
    except OSError as error:
        return f"cannot be read: {error.strerror}"
    finally:
        os.close(descriptor)
    return "" if same else "its content has changed"


def _sample_sha256(descriptor: int, size_bytes: int) -> str:
    """Does not move the file's position."""
    digest = hashlib.sha256()
    if size_bytes <= SAMPLE_BYTES * SAMPLES:
        digest.update(os.pread(descriptor, size_bytes, 0))
    else:
        for index in range(SAMPLES):
            digest.update(os.pread(descriptor, SAMPLE_BYTES, index * (size_bytes - SAMPLE_BYTES) // (SAMPLES - 1)))
    return digest.hexdigest()


def _sha256_of(said: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
