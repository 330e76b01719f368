"""Weights as MatMulNBits stores them: blocks along K, one float32 scale each, unsigned codes around a fixed zero."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.build.llm_gguf import F32, Checkpoint, DecoderShape

EXACT_KINDS = {"Q5_0": 22, "Q8_0": 34}
"""GGUF types with one scale per 32 weights: bytes per block, the scale (float16) first. 8 bits hold them exactly."""
EXACT_BLOCK = 32


@dataclass(frozen=True, slots=True)
class Packed:
    """One matrix (n, k) for MatMulNBits. codes: uint8 (n, blocks, block * bits / 8); scales: float32 (n, blocks).

    offsets: float32 (n, blocks) or None: a constant per block that its sum of activations is multiplied with.
    """

    bits: int
    block: int
    codes: NDArray[np.uint8]
    scales: F32
    offsets: F32 | None = None

    @property
    def shape(self) -> tuple[int, int]:
        return self.codes.shape[0], self.codes.shape[1] * self.block


def offset_pack(checkpoint: Checkpoint, name: str) -> Packed | None:
    """Q4_1 and Q4_K as they are: w = scale * code - minimum is 4 bits around 8 plus a constant per block. Else None."""
    kind = checkpoint.kind(name)
    if kind not in ("Q4_1", "Q4_K"):
        return None
    raw = np.ascontiguousarray(checkpoint.raw(name))
    scales, minima = _q4_1_scales(raw) if kind == "Q4_1" else _q4_k_scales(raw)
    blocks = checkpoint.values(name).reshape(*scales.shape, EXACT_BLOCK)
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales != 0)
    codes = np.clip(np.rint((blocks + minima[:, :, None]) * inverse[:, :, None]), 0, 15).astype(np.uint8)
    return Packed(4, EXACT_BLOCK, nibbles(codes), scales, 8 * scales - minima)


def _q4_1_scales(raw: NDArray[np.uint8]) -> tuple[F32, F32]:
    """(scales, minima), (rows, blocks), of w = scale * code - minimum. Block: two float16, then 16 bytes of codes."""
    halves = np.ascontiguousarray(raw.reshape(raw.shape[0], -1, 20)[:, :, :4]).view(np.float16).astype(np.float32)
    return np.ascontiguousarray(halves[:, :, 0]), -halves[:, :, 1]


def _q4_k_scales(raw: NDArray[np.uint8]) -> tuple[F32, F32]:
    """As `_q4_1_scales`. Block of 256: two float16, 8 scales and 8 minima of 6 bits in 12 bytes, then the codes."""
    head = np.ascontiguousarray(raw.reshape(raw.shape[0], -1, 144)[:, :, :16])
    base = np.ascontiguousarray(head[:, :, :4]).view(np.float16).astype(np.float32)
    low, middle, high = head[:, :, 4:8], head[:, :, 8:12], head[:, :, 12:16]
    scales = np.concatenate([low & 63, (high & 15) | ((low >> 6) << 4)], axis=2)
    minima = np.concatenate([middle & 63, (high >> 4) | ((middle >> 6) << 4)], axis=2)
    rows = raw.shape[0]
    return (base[:, :, :1] * scales).reshape(rows, -1), (base[:, :, 1:2] * minima).reshape(rows, -1)


def stack(parts: list[Packed]) -> Packed:
    """One matrix out of several that read the same input, rows one below the other."""
    offsets = [part.offsets for part in parts if part.offsets is not None]
    return Packed(
        parts[0].bits,
        parts[0].block,
        np.concatenate([part.codes for part in parts]),
        np.concatenate([part.scales for part in parts]),
        np.concatenate(offsets) if offsets else None,
    )


def stored_scales(checkpoint: Checkpoint, name: str) -> F32 | None:
    """The file's own scale per 32 weights, (rows, blocks), where 8-bit codes on that scale are exact; else None."""
    size = EXACT_KINDS.get(checkpoint.kind(name))
    if size is None:
        return None
    raw = checkpoint.raw(name)
    blocks = np.ascontiguousarray(raw).reshape(raw.shape[0], -1, size)
    return np.ascontiguousarray(blocks[:, :, :2]).view(np.float16)[:, :, 0].astype(np.float32)


def pack8(values: F32, block: int, scales: F32 | None = None) -> Packed:
    """8 bits, zero at 128. `scales` given make the codes exact, else a block's largest weight sets its scale."""
    rows = values.shape[0]
    blocks = values.reshape(rows, -1, block)
    if scales is None:
        scales = np.abs(blocks).max(axis=2) / 127
    inverse = np.divide(1.0, scales, out=np.zeros_like(scales), where=scales != 0)
    codes = np.clip(np.rint(blocks * inverse[:, :, None]), -128, 127)
    return Packed(8, block, (codes + 128).astype(np.uint8), scales.astype(np.float32))


def pack4(values: F32, block: int, importance: F32 | None = None) -> Packed:
    """4 bits, zero at 8. A block's scale is searched for the least squared error, weighted by `importance` (k,)."""
    rows, columns = values.shape
    blocks = values.reshape(rows, -1, block)
    weight = np.ones(columns, np.float32) if importance is None else importance
    weight = weight.reshape(1, -1, block)
    peak = np.take_along_axis(blocks, np.abs(blocks).argmax(axis=2)[:, :, None], axis=2)[:, :, 0]
    best_error = np.full(peak.shape, np.inf, np.float32)
    best_scale = np.zeros(peak.shape, np.float32)
    for divisor in (-9.0, -8.5, -8.0, -7.5, -7.0):
        error, scale = _refine(blocks, weight, peak / np.float32(divisor))
        better = error < best_error
        best_error[better], best_scale[better] = error[better], scale[better]
    codes = _round4(blocks, best_scale) + 8
    return Packed(4, block, nibbles(codes.astype(np.uint8)), best_scale)


def _round4(blocks: F32, scale: F32) -> F32:
    inverse = np.divide(1.0, scale, out=np.zeros_like(scale), where=scale != 0)
    return np.clip(np.rint(blocks * inverse[:, :, None]), -8, 7)


def _refine(blocks: F32, weight: F32, scale: F32) -> tuple[F32, F32]:
    """Round on `scale`, then take the scale that fits those codes best: (error, scale), both (rows, blocks)."""
    codes = _round4(blocks, scale)
    cross = (weight * codes * blocks).sum(axis=2)
    square = (weight * codes * codes).sum(axis=2)
    fitted = np.divide(cross, square, out=np.zeros_like(cross), where=square != 0)
    error = (weight * (blocks - codes * fitted[:, :, None]) ** 2).sum(axis=2)
    return error, fitted


def nibbles(codes: NDArray[np.uint8]) -> NDArray[np.uint8]:
    """Two codes per byte, the first in the low half."""
    packed: NDArray[np.uint8] = codes[..., 0::2] | (codes[..., 1::2] << np.uint8(4))
    return packed


def ordered(checkpoint: Checkpoint, name: str, shape: DecoderShape) -> F32:
    """Tensor `name` dequantised, rows in the order the graph expects."""
    values = checkpoint.values(name)
    order = checkpoint.row_order(name, shape)
    return values if order is None else values[order]
