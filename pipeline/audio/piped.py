"""Speech that comes through a pipe: taken in whole before it is played, since a WAV is read twice."""

from __future__ import annotations

import os
import select
import stat
from pathlib import Path
from typing import Final

from models.errors import InputError

WRITER_WITHIN_S: Final = 10.0
"""So long a named pipe is waited for when nobody writes to it."""
_MOST_BYTES: Final = 2 << 30


def taken_in(path: Path, folder: Path) -> Path:
    """`path` itself when it is a file; what a pipe, `-` or /dev/stdin holds, as a file in `folder`.

    Raises InputError: a terminal, a pipe that nobody writes to, more than 2 GiB, a full disk.
    """
    path = Path("/dev/stdin") if str(path) == "-" else path
    try:
        kind = path.stat().st_mode
    except OSError:
        return path  # whoever opens it says why it cannot
    if stat.S_ISCHR(kind):
        raise InputError(f"{path} is a terminal or a device, not a WAV file; name a file, or pipe one in")
    if not stat.S_ISFIFO(kind):
        return path
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
