"""The two tracks of a built model: the one that serves and the former one, which a new build leaves behind.

    <root>/built/<model>/     what an engine loads
    <root>/former/<model>/    the build before it, while that was seen to work; `cockpit models rollback` brings it back

A folder takes another one's place by one system call, so that a power cut leaves the old one or the new one.
"""

from __future__ import annotations

import contextlib
import ctypes
import errno
import fcntl
import logging
import os
import shutil
from collections.abc import Iterator
from pathlib import Path

from models.cache import writable
from models.store.manifest import Manifest
from models.store.validation import Validation

_LOG = logging.getLogger(__name__)
_AT_FDCWD = -100
_RENAME_EXCHANGE = 2  # linux/fs.h


def former_folder(root: Path, name: str) -> Path:
    """Where the build before the present one is, if it is kept."""
    return root / "former" / name


def seen_to_work(folder: Path) -> bool:
    """Whether a build is whole, by its samples, and passed a validation, on whatever machine."""
    manifest, validation = Manifest.read(folder), Validation.read(folder)
    return (
        manifest is not None and validation is not None and validation.passed and not any(manifest.damage(whole=False))
    )


def put_in_place(new: Path, current: Path, former: Path) -> None:
    """`new`, whole and on the disk, becomes `current`; what was there becomes `former` where it was seen to work.

    First `new` takes the former one's place, then the two are exchanged: at no moment is `current` missing or half.
    """
    for folder in (current, former):
        folder.parent.mkdir(parents=True, exist_ok=True)
    for folder in (new, *(path for path in new.rglob("*") if path.is_dir())):
        sync_folder(folder)  # the files are: `Manifest.write`
    keep = seen_to_work(current)
    if not current.is_dir():
        clear(current)
        new.rename(current)
    elif keep:
        clear(former)
        new.rename(former)
        exchange(former, current)
    else:
        exchange(new, current)  # `new` is in the scratch folder, which goes
    for folder in {current.parent, former.parent, new.parent}:
        sync_folder(folder)


def clear(path: Path) -> None:
    """Nothing is at `path` afterwards. It goes under another name first: half of it is never taken for a build."""
    if path.is_dir() and not path.is_symlink():
        going = path.with_name(f".{path.name}.going")
        shutil.rmtree(going, ignore_errors=True)
        path.rename(going)
        shutil.rmtree(going)
    else:
        path.unlink(missing_ok=True)


def exchange(one: Path, other: Path) -> None:
    """Each takes the other's place, at once (renameat2).

    A file system that cannot (NFS, old FAT) gets three renames: between them a power cut leaves `other` missing.
    """
    if _renamed_at_once(one, other):
        return
    _LOG.warning("%s is on a file system that cannot exchange folders at once: a power cut now would lose it", other)
    aside = other.with_name(f".{other.name}.going")
    shutil.rmtree(aside, ignore_errors=True)
    other.rename(aside)
    one.rename(other)
    aside.rename(one)


def _renamed_at_once(one: Path, other: Path) -> bool:
    rename = getattr(ctypes.CDLL(None, use_errno=True), "renameat2", None)
    if rename is None:
        return False
    if rename(_AT_FDCWD, os.fsencode(one), _AT_FDCWD, os.fsencode(other), _RENAME_EXCHANGE) == 0:
        return True
    number = ctypes.get_errno()
    if number in (errno.EINVAL, errno.ENOSYS, errno.EOPNOTSUPP):
        return False
    raise OSError(number, os.strerror(number), str(one), None, str(other))


def sync_folder(folder: Path) -> None:
    """See to it that renames in `folder` are on the disk."""
    descriptor = os.open(folder, os.O_RDONLY | os.O_DIRECTORY)
    try:
        with contextlib.suppress(OSError):  # not every file system can
            os.fsync(descriptor)
    finally:
        os.close(descriptor)


def leftovers(root: Path, names: set[str]) -> Iterator[tuple[str, Path, str]]:
    """(model, folder or file, why it may go) of what nobody loads: former builds, unfinished work, and what the
    registry, whose models are `names`, does not know."""
    for part, why in (
        ("former", "former build"),
        ("building", "unfinished build"),
        ("downloads", "unfinished download"),
    ):
        for path in _entries(root / part):
            going = path.name.startswith(".")
            yield path.name.removeprefix(".").removesuffix(".going"), path, "half removed" if going else why
    for part in ("built", "sources"):
        for path in _entries(root / part):
            if path.name.endswith(".going") and path.name.startswith("."):
                yield path.name.removeprefix(".").removesuffix(".going"), path, "half removed"
            elif path.name not in names:
                yield path.name, path, "not in the registry"


def removed(root: Path, model: str, path: Path) -> bool:
    """Remove a leftover. False where another process works on that model now."""
    locks = writable(root / "locks")
    with (locks / f"{model}.lock").open("w") as file:
        try:
            fcntl.flock(file, fcntl.LOCK_EX | fcntl.LOCK_NB)
        except BlockingIOError:
            return False
        if path.name.startswith("."):
            shutil.rmtree(path)
        else:
            clear(path)
        return True


def _entries(folder: Path) -> list[Path]:
    return sorted(folder.iterdir()) if folder.is_dir() else []
