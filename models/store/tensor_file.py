"""safetensors files, read and written with numpy alone: a length, a JSON header, the tensors' bytes."""

from __future__ import annotations

import json
from collections.abc import Mapping
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.errors import InputError

_NAMES = {"F32": np.float32, "F16": np.float16, "I8": np.int8, "U8": np.uint8, "I64": np.int64}
_MOST_HEADER_BYTES = 1 << 24


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write `path` whole or not at all. metadata: text by name. Raises KeyError for a dtype that is not stored."""
    kinds = {np.dtype(dtype): name for name, dtype in _NAMES.items()}
    header: dict[str, Any] = {"__metadata__": dict(metadata)}
    at = 0
    for name, values in sorted(tensors.items()):
        header[name] = {
            "dtype": kinds[values.dtype],
            "shape": list(values.shape),
            "data_offsets": [at, at + values.nbytes],
        }
        at += values.nbytes
    text = json.dumps(header, ensure_ascii=False, sort_keys=True).encode()
    text += b" " * (-len(text) % 8)
    part = path.with_name(path.name + ".part")
    with part.open("wb") as file:
        file.write(len(text).to_bytes(8, "little") + text)
        for _, values in sorted(tensors.items()):
            file.write(np.ascontiguousarray(values).tobytes())
    part.replace(path)


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Tensors by name, and the metadata. Raises InputError for a file that is none or was cut short."""
    data = path.read_bytes()
    size = int.from_bytes(data[:8], "little")
    try:
        if not 0 < size <= min(len(data) - 8, _MOST_HEADER_BYTES):
            raise ValueError("no header")
        header = json.loads(data[8 : 8 + size])
        metadata = header.pop("__metadata__", {})
        tensors = {}
        for name, entry in header.items():
            start, end = entry["data_offsets"]
            if end + 8 + size > len(data):
                raise ValueError(f"{name} is cut short")
            raw = data[8 + size + start : 8 + size + end]
            tensors[name] = np.frombuffer(raw, _NAMES[entry["dtype"]]).reshape(entry["shape"])
    except (ValueError, KeyError, TypeError) as error:
        raise InputError(f"{path} is no tensor file ({error}); take a fresh copy of the adapter") from error
    return tensors, metadata
