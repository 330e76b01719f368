"""Reading CTranslate2's `model.bin`: named arrays behind a small header, little-endian, no compression.

Layout (binary version 6): u32 version, string spec, u32 revision, u32 count, then per variable: string name, u8 rank,
u32 dimension x rank, u8 dtype, u32 byte count, the bytes; then u32 count of aliases: string alias, string name. A
string is a u16 length that counts its closing zero byte. Source: the writer in CTranslate2's `specs/model_spec.py`.
"""

from __future__ import annotations

import struct
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.errors import InputError

BINARY_VERSION = 6
_DTYPES: dict[int, str] = {0: "<f4", 1: "i1", 2: "<i2", 3: "<i4", 4: "<f2"}


@dataclass(frozen=True, slots=True)
class Ct2Model:
    """What a `model.bin` holds. `variables`: read-only views of the file; aliases are resolved to the same array."""

    spec: str
    revision: int
    variables: dict[str, NDArray[np.generic]]

    def f32(self, name: str) -> NDArray[np.float32]:
        """The variable as float32, copied. Raises InputError when the file has no such variable."""
        if name not in self.variables:
            raise InputError(f"{self.spec} holds no variable {name!r}; is this the right checkpoint?")
        return np.asarray(self.variables[name], dtype=np.float32)


class _Reader:
    """A cursor over the file's bytes that never reads past the end."""

    def __init__(self, data: NDArray[np.uint8], path: Path) -> None:
        self._data = data
        self._path = path
        self._at = 0

    def take(self, size_bytes: int) -> NDArray[np.uint8]:
        end = self._at + size_bytes
        if end > self._data.size:
            raise InputError(
                f"{self._path} is cut short: {end} bytes expected, {self._data.size} there; "
                "fetch it again with `cockpit models fetch`"
            )
        part = self._data[self._at : end]
        self._at = end
        return part

    def number(self, code: str) -> int:
        (value,) = struct.unpack(f"<{code}", self.take(struct.calcsize(f"<{code}")).tobytes())
        return int(value)

    def text(self) -> str:
        return self.take(self.number("H")).tobytes().rstrip(b"\0").decode("utf-8")


def read_ct2(path: Path) -> Ct2Model:
    """Map `path` and name its arrays. Raises InputError for another format, another version or a truncated file."""
    if path.stat().st_size == 0:
        raise InputError(f"{path} is empty; fetch it again with `cockpit models fetch`")
    reader = _Reader(np.memmap(path, dtype=np.uint8, mode="r"), path)
    version = reader.number("I")
    if version != BINARY_VERSION:
        raise InputError(f"{path} is no CTranslate2 model of binary version {BINARY_VERSION} (found {version})")
    spec, revision = reader.text(), reader.number("I")
    variables: dict[str, NDArray[np.generic]] = {}
    for _ in range(reader.number("I")):
        name, rank = reader.text(), reader.number("B")
        shape = tuple(reader.number("I") for _ in range(rank))
        dtype_code = reader.number("B")
        if dtype_code not in _DTYPES:
            raise InputError(f"{path}: variable {name!r} has dtype code {dtype_code}; known are {sorted(_DTYPES)}")
        dtype = np.dtype(_DTYPES[dtype_code])
        raw = reader.take(reader.number("I"))
        if raw.size != dtype.itemsize * int(np.prod(shape)):
            raise InputError(f"{path}: variable {name!r} {shape} {dtype} does not fit its {raw.size} bytes")
        variables[name] = np.frombuffer(raw, dtype=dtype).reshape(shape)
    for _ in range(reader.number("I")):
        alias, name = reader.text(), reader.text()
        if name not in variables:
            raise InputError(f"{path}: alias {alias!r} names {name!r}, which is not in the file")
        variables[alias] = variables[name]
    return Ct2Model(spec, revision, variables)
