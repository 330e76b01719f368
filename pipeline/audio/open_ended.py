"""RIFF files whose data chunk does not say how long it is: the recorder was killed, or it wrote to a pipe.

Such a header says 0 or a placeholder near 4 GiB. The samples then go on to the end of the file, or to the chunks of
text (LIST, id3, ...) that were appended behind them, which are no sound.
"""

from __future__ import annotations

import os
import shutil
import struct
import tempfile
from pathlib import Path
from typing import BinaryIO, Final

_NO_LENGTH: Final = 0x7FFF_0000
"""From here on a length is a placeholder: no file of 2 GiB of speech was meant."""
_TEXT_CHUNKS: Final = (
    b"LIST", b"id3 ", b"ID3 ", b"bext", b"iXML", b"cue ", b"smpl", b"inst", b"JUNK", b"junk", b"PAD ", b"_PMX", b"acid",
    b"fact", b"afsp", b"cart", b"levl", b"plst", b"DISP", b"umid", b"note", b"labl", b"PEAK", b"ds64", b"fmt ",
)  # fmt: skip
_SEARCHED_BYTES: Final = 8 << 20
"""Chunks behind the samples are looked for in so much of the end."""


def mended(path: Path) -> int | None:
    """The descriptor of a copy of the file whose header says the true length, at its start; None where the header is
    right. The copy has no name and is gone once the descriptor is closed. Raises OSError.
    """
    with path.open("rb") as file:
        size = path.stat().st_size
        start = _open_ended_data(file, size)
        if start is None:
            return None
        length = _end_of_samples(file, start, size) - start
        with tempfile.TemporaryFile(prefix="cockpit-wav-") as copy:
            file.seek(0)
            shutil.copyfileobj(file, copy)
            copy.truncate(start + length)
            for at, count in ((4, start + length - 8), (start - 4, length)):
                copy.seek(at)
                copy.write(struct.pack("<I", count))
            copy.seek(0)
            return os.dup(copy.fileno())


def _open_ended_data(file: BinaryIO, size: int) -> int | None:
    """Where the samples begin, when the header does not say where they end; None otherwise."""
    head = file.read(12)
    if len(head) < 12 or head[:4] != b"RIFF" or head[8:] != b"WAVE":
        return None
    at = 12
    while at + 8 <= size:
        file.seek(at)
        name, length = struct.unpack("<4sI", file.read(8))
        if name == b"data":
            unsaid = length == 0 or length >= _NO_LENGTH
            return at + 8 if unsaid and at + 8 < size and size < _NO_LENGTH else None
        at += 8 + length + (length & 1)
    return None


def _end_of_samples(file: BinaryIO, start: int, size: int) -> int:
    """The earliest place from which known chunks, one behind the other, reach exactly to the end of the file."""
    first = max(start, size - _SEARCHED_BYTES)
    file.seek(first)
    tail = file.read(size - first)
    end = len(tail)
    while True:
        found = [at for name in _TEXT_CHUNKS if (at := _last_chunk(tail, name, end)) is not None]
        if not found:
            return first + end
        end = min(found)


def _last_chunk(tail: bytes, name: bytes, end: int) -> int | None:
    """Where a chunk of that name begins that reaches to `end`, padded or not."""
    at = tail.rfind(name, 0, end)
    while at >= 0:
        if at + 8 <= end:
            (length,) = struct.unpack_from("<I", tail, at + 4)
            if at + 8 + length in (end, end - 1):
                return at
        at = tail.rfind(name, 0, at)
    return None
