"""Speech that comes through a pipe: taken in whole before it is played, since a WAV is read twice."""

from __future__ import annotations

import os
import select
import stat
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from tempfile import TemporaryDirectory
from typing import Final

from models.errors import InputError

WRITER_WITHIN_S: Final = 10.0
"""So long a named pipe is waited for when nobody writes to it."""
_MOST_BYTES: Final = 2 << 30


@contextmanager
def taken_in(paths: Sequence[Path]) -> Iterator[list[Path]]:
    """`paths`, and in the place of a pipe, `-` or /dev/stdin a file with what came through it, until the block ends.

    Raises InputError: a terminal, a pipe that nobody writes to, more than 2 GiB, a full disk.
    """
    named = [Path("/dev/stdin") if str(path) == "-" else path for path in paths]
    if not any(map(_is_stream, named)):
        yield named  # nothing is written
        return
    with TemporaryDirectory(prefix="cockpit-piped-") as folder:
        yield [_copied(path, Path(folder)) if _is_stream(path) else path for path in named]


def _is_stream(path: Path) -> bool:
    try:
        kind = path.stat().st_mode
    except OSError:
        return False  # whoever opens it says why it cannot
    if stat.S_ISCHR(kind):
        raise InputError(f"{path} is a terminal or a device, not a WAV file; name a file, or pipe one in")
    return stat.S_ISFIFO(kind)


def _copied(path: Path, folder: Path) -> Path:
    copy = folder / f"{path.name}.wav"
    source = os.open(path, os.O_RDONLY | os.O_NONBLOCK)
    with os.fdopen(source, "rb") as pipe:
        if not select.select([pipe], [], [], WRITER_WITHIN_S)[0]:
            raise InputError(
                f"{path} is a pipe and nobody wrote to it for {WRITER_WITHIN_S:g} s; start what writes first"
            )
        os.set_blocking(source, True)
        try:
            with copy.open("wb") as file:
                while block := pipe.read(1 << 20):
                    if file.tell() > _MOST_BYTES:
                        raise InputError(f"{path} gave more than 2 GiB; play a recording in parts")
                    file.write(block)
        except OSError as error:
            raise InputError(f"{path} cannot be taken in ({error.strerror}); free some space in {folder}") from error
    return copy
