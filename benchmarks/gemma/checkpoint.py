"""Real weights for the decode kernels: a folder that benchmarks/gemma/weights.py wrote, copied to the device once.

Any number of sessions, in any lanes, decode from one loaded checkpoint; each has only its own cache and graph.
"""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.gemma.session import (
    DecodeShape,
    DecodeWeights,
    LayerAddresses,
    MatrixAddress,
)
from cockpit.device.cuda.driver import BoundDriver
from models.errors import InputError, ModelMissing

HEAD_DIM = 256
_PIECE_BYTES = 32 << 20
_FILES = ("kernels.json", "weights.bin")
_WRITE = "write it with: python -m benchmarks.gemma.weights MODEL.gguf"


@dataclass(frozen=True, slots=True)
class Checkpoint:
    """A model on the device. Its memory lives until `close`, so sessions are closed first.

    addresses: what `close` frees. bos_id, stop_ids: token ids of the model's vocabulary.
    """

    weights: DecodeWeights
    bos_id: int
    stop_ids: frozenset[int]
    size_bytes: int
    driver: BoundDriver
    addresses: tuple[int, ...]

    def close(self) -> None:
        """Give the memory back. Call once."""
        for address in self.addresses:
            self.driver.free(address)


def load_checkpoint(driver: BoundDriver, folder: Path, stream: int, positions: int) -> Checkpoint:
    """Copy the weights up, piece by piece, on `stream` (any), and make RoPE tables for `positions` positions.

    Call while nothing urgent runs. Raises ModelMissing, InputError (a file that was cut off, or more positions than
    the model was trained for) and DeviceUnavailable (no memory left).
    """
    missing = [name for name in _FILES if not (folder / name).is_file()]
    if missing:
        raise ModelMissing(f"{folder} lacks {', '.join(missing)}; {_WRITE} {folder}")
    said: dict[str, Any] = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))
    size = int(said["size_bytes"])
    if (folder / "weights.bin").stat().st_size != size:
        raise InputError(f"{folder / 'weights.bin'} is not {size} bytes; {_WRITE} {folder}")
    if not 0 < positions <= said["context_tokens"]:
        raise InputError(f"{positions} positions are outside 1..{said['context_tokens']} of {folder.name}")
    shape = DecodeShape(**said["shape"])
    base = driver.allocate(size)
    addresses = [base]
    try:
        file = np.memmap(folder / "weights.bin", np.uint8, "r")
        for start in range(0, size, _PIECE_BYTES):
            driver.write(base + start, file[start : start + _PIECE_BYTES].tobytes(), stream)
        for table in (rope_table(shape, positions, is_global=False), rope_table(shape, positions, is_global=True)):
            addresses.append(driver.allocate(len(table)))
            driver.write(addresses[-1], table, stream)
    except BaseException:
        for address in addresses:
            driver.free(address)
        raise
    weights = _weights(said, shape, base, (addresses[1], addresses[2]), positions)
    return Checkpoint(weights, said["bos_id"], frozenset(said["stop_ids"]), size, driver, tuple(addresses))


def _weights(
    said: dict[str, Any], shape: DecodeShape, base: int, rope: tuple[int, int], positions: int
) -> DecodeWeights:
    def matrix(name: str) -> MatrixAddress:
        offset, size = said["sections"][name]
        return MatrixAddress(base + offset, 0, size)

    layers = tuple(
        LayerAddresses(
            qkv=matrix(f"blk.{index}.qkv"),
            o=matrix(f"blk.{index}.o"),
            gate_up=matrix(f"blk.{index}.gate_up"),
            down=matrix(f"blk.{index}.down"),
            norms=matrix(f"blk.{index}.norms").weights,
            qk_norms=matrix(f"blk.{index}.qk_norms").weights,
        )
        for index in range(shape.layers)
    )
    final_norm = matrix("final_norm").weights
    return DecodeWeights(shape, said["format"], layers, matrix("embedding"), final_norm, *rope, positions)


def rope_table(shape: DecodeShape, positions: int, is_global: bool) -> bytes:
    """fp32 (positions, 128, 2): cosine and sine of every position and pair."""
    theta = shape.theta_global if is_global else shape.theta_local
    scale = shape.rope_scale_global if is_global else 1.0
    frequency = theta ** (-np.arange(0, HEAD_DIM, 2, dtype=np.float64) / HEAD_DIM) / scale
    angle = np.arange(positions, dtype=np.float64)[:, None] * frequency
    return np.stack([np.cos(angle), np.sin(angle)], axis=-1).astype(np.float32).tobytes()
