"""Adapters as safetensors files: written whole or not at all, and read with an error that names the file."""

from __future__ import annotations

from collections.abc import Mapping
from pathlib import Path
from typing import Any

from numpy.typing import NDArray
from safetensors import SafetensorError, safe_open
from safetensors.numpy import save

from models.errors import InputError


def write_tensors(path: Path, tensors: Mapping[str, NDArray[Any]], metadata: Mapping[str, str]) -> None:
    """Write `path` whole or not at all. metadata: text by name."""
    part = path.with_name(path.name + ".part")
    part.write_bytes(save(dict(tensors), dict(metadata)))
    part.replace(path)


def read_tensors(path: Path) -> tuple[dict[str, NDArray[Any]], dict[str, str]]:
    """Tensors by name, and the metadata. Raises InputError for a file that is none or was cut short."""
    try:
        with safe_open(path, framework="numpy") as file:
            return {name: file.get_tensor(name) for name in file.keys()}, file.metadata() or {}  # noqa: SIM118
    except SafetensorError as error:
        raise InputError(f"{path} is no tensor file ({error}); take a fresh copy of the adapter") from error
