"""Random weights of a Gemma-3-shaped decoder on the GPU, packed for the decode kernels, and an fp32 reference.

Bench only: torch makes the numbers and checks the answers; what is measured does not use it.
"""

from __future__ import annotations

import json
import math
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import torch

from benchmarks.gemma.session import (
    DecodeSession,
    DecodeShape,
    DecodeWeights,
    Format,
    LayerAddresses,
    MatrixAddress,
)

HEAD_DIM = 256
_HALF = {"fp16": torch.float16, "bf16": torch.bfloat16}


@dataclass
class Packed:
    """One matrix as the kernels read it, and a way back to fp32 (N, K)."""

    format: Format
    data: torch.Tensor
    scales: torch.Tensor | None
    slices: int
    shape: tuple[int, int]

    def address(self) -> MatrixAddress:
        scales = self.scales.data_ptr() if self.scales is not None else 0
        return MatrixAddress(self.data.data_ptr(), scales, self.data.numel() * self.data.element_size())

    def dense(self) -> torch.Tensor:
        """fp32 (N, K): exactly the numbers that the kernels multiply with."""
        rows, columns = self.shape
        if self.scales is None:
            return self.data.view(rows, columns).float()
        if self.format == "int8":
            q = self.data.view(rows // 2, self.slices, 2, columns // self.slices)
            return q.permute(0, 2, 1, 3).reshape(rows, columns).float() * self.scales[:, None]
        blocks = columns // 32 // self.slices
        q = self.data.view(rows // 2, self.slices, 2, blocks, 16)
        both = torch.cat([q & 15, q >> 4], dim=-1).float() - 8
        scales = self.scales.view(rows // 2, self.slices, 2, blocks, 1).float()
        return (both * scales).permute(0, 2, 1, 3, 4).reshape(rows, columns)


def pack(weights: torch.Tensor, format: Format, slices: int = 1) -> Packed:
    """weights: (N, K) float. slices: how many tiles a row is cut into (FFN / hidden for `down`)."""
    rows, columns = weights.shape
    if format in _HALF:
        return Packed(format, weights.to(_HALF[format]).contiguous(), None, slices, (rows, columns))
    w = weights.float()
    if format == "int8":
        scales = w.abs().amax(1).clamp_min(1e-8) / 127
        q = torch.round(w / scales[:, None]).to(torch.int8)
        tiled = q.view(rows // 2, 2, slices, columns // slices).permute(0, 2, 1, 3).contiguous()
        return Packed(format, tiled, scales.contiguous(), slices, (rows, columns))
    blocks = w.view(rows // 2, 2, slices, columns // slices // 32, 32).permute(0, 2, 1, 3, 4)
    scales = (blocks.abs().amax(-1, keepdim=True) / 7).clamp_min(1e-7).half()
    q = (torch.round(blocks / scales.float()).clamp(-8, 7) + 8).to(torch.uint8)
    packed = (q[..., :16] | (q[..., 16:] << 4)).contiguous()
    return Packed(format, packed, scales.squeeze(-1).contiguous(), slices, (rows, columns))


@dataclass
class Layer:
    qkv: Packed
    o: Packed
    gate_up: Packed
    down: Packed
    norms: torch.Tensor
    qk_norms: torch.Tensor


@dataclass
class Model:
    """Owns every tensor whose address `weights` holds."""

    shape: DecodeShape
    format: Format
    layers: list[Layer]
    embedding: Packed
    final_norm: torch.Tensor
    rope: dict[bool, torch.Tensor] = field(default_factory=dict)

    def weights(self) -> DecodeWeights:
        layers = tuple(
            LayerAddresses(
                layer.qkv.address(),
                layer.o.address(),
                layer.gate_up.address(),
                layer.down.address(),
                layer.norms.data_ptr(),
                layer.qk_norms.data_ptr(),
            )
            for layer in self.layers
        )
        return DecodeWeights(
            self.shape,
            self.format,
            layers,
            self.embedding.address(),
            self.final_norm.data_ptr(),
            self.rope[False].data_ptr(),
            self.rope[True].data_ptr(),
            len(self.rope[True]),
        )


def _rope(shape: DecodeShape, capacity: int, is_global: bool) -> torch.Tensor:
    theta = shape.theta_global if is_global else shape.theta_local
    scale = shape.rope_scale_global if is_global else 1.0
    frequency = theta ** (-torch.arange(0, HEAD_DIM, 2, dtype=torch.float64) / HEAD_DIM) / scale
    angle = torch.arange(capacity, dtype=torch.float64)[:, None] * frequency
    return torch.stack([angle.cos(), angle.sin()], dim=-1).float().contiguous()


def random_model(shape: DecodeShape, format: Format, capacity: int, seed: int) -> Model:
    """Weights that keep activations near unit size, as a trained model's norms do."""
    generator = torch.Generator(device="cuda").manual_seed(seed)

    def matrix(rows: int, columns: int, slices: int = 1) -> Packed:
        w = torch.empty(rows, columns, dtype=torch.float16, device="cuda")
        w.normal_(0, columns**-0.5, generator=generator)
        return pack(w, format, slices)

    def norm(*sizes: int) -> torch.Tensor:
        return torch.empty(*sizes, device="cuda").normal_(1, 0.1, generator=generator)

    layers = [
        Layer(
            matrix(shape.qkv_rows, shape.hidden),
            matrix(shape.hidden, shape.attention_width),
            matrix(2 * shape.ffn, shape.hidden),
            matrix(shape.hidden, shape.ffn, shape.ffn // shape.down_columns),
            norm(4, shape.hidden),
            norm(2, HEAD_DIM),
        )
        for _ in range(shape.layers)
    ]
    embedding = matrix(shape.vocab, shape.hidden)
    rope = {flag: _rope(shape, capacity, flag).cuda() for flag in (False, True)}
    torch.cuda.synchronize()
    return Model(shape, format, layers, embedding, norm(shape.hidden), rope)


def checkpoint_model(folder: Path, capacity: int, device: str = "cuda") -> Model:
    """Real weights that benchmarks/gemma/weights.py wrote, as torch tensors of their own: for the peer."""
    said = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))
    shape, format = DecodeShape(**said["shape"]), said["format"]
    file = np.memmap(folder / "weights.bin", np.uint8, "r")

    def tensor(name: str, kind: torch.dtype) -> torch.Tensor:
        offset, size = said["sections"][name]
        return torch.from_numpy(file[offset : offset + size].copy()).view(kind).to(device)

    def matrix(name: str, columns: int) -> Packed:
        data = tensor(name, _HALF[format])
        return Packed(format, data, None, 1, (data.numel() // columns, columns))

    layers = [
        Layer(
            matrix(f"blk.{index}.qkv", shape.hidden),
            matrix(f"blk.{index}.o", shape.attention_width),
            matrix(f"blk.{index}.gate_up", shape.hidden),
            matrix(f"blk.{index}.down", shape.ffn),
            tensor(f"blk.{index}.norms", torch.float32).view(4, -1),
            tensor(f"blk.{index}.qk_norms", torch.float32).view(2, -1),
        )
        for index in range(shape.layers)
    ]
    rope = {flag: _rope(shape, capacity, flag).to(device) for flag in (False, True)}
    final_norm = tensor("final_norm", torch.float32)
    return Model(shape, format, layers, matrix("embedding", shape.hidden), final_norm, rope)


class _Memory:
    def __init__(self, address: int, shape: tuple[int, ...], kind: str) -> None:
        self.__cuda_array_interface__ = {"shape": shape, "typestr": kind, "data": (address, False), "version": 3}


def view(address: int, shape: tuple[int, ...], kind: str) -> torch.Tensor:
    """Device memory as a tensor, without a copy. kind: a numpy type string such as "<f2"."""
    return torch.as_tensor(_Memory(address, shape, kind), device="cuda")


def cache_views(session: DecodeSession) -> tuple[torch.Tensor, torch.Tensor]:
    """K and V of a session: fp16 (layers, kv_heads, capacity, 256)."""
    shape = session.weights.shape
    sizes = (shape.layers, shape.kv_heads, session.capacity, HEAD_DIM)
    return view(session.buffers["k"], sizes, "<f2"), view(session.buffers["v"], sizes, "<f2")


def fill_cache(session: DecodeSession, seed: int) -> None:
    """Random K and V at every position, so that any position can be decoded from."""
    generator = torch.Generator(device="cuda").manual_seed(seed)
    for cache in cache_views(session):
        cache.normal_(0, 1, generator=generator)
    torch.cuda.synchronize()


def _norm(x: torch.Tensor, weight: torch.Tensor, eps: float) -> torch.Tensor:
    return x * torch.rsqrt(x.square().mean(-1, keepdim=True) + eps) * weight


def _rotate(x: torch.Tensor, table: torch.Tensor) -> torch.Tensor:
    cos, sin = table[:, 0], table[:, 1]
    a, b = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
    return torch.cat([a * cos - b * sin, b * cos + a * sin], dim=-1)


def _as_served(x: torch.Tensor, format: Format, quantise: bool) -> torch.Tensor:
    """Activations as the int8/int4 kernels see them: 8 bits with one scale per 32."""
    if not quantise or format in _HALF:
        return x
    blocks = x.view(-1, 32)
    peak = blocks.abs().amax(1, keepdim=True).clamp_min(1e-20)
    return (torch.round(blocks * (127 / peak)) * (peak / 127)).view(-1)


class Reference:
    """One token at a time in fp32 over the same weights; K and V rounded to fp16 as the cache stores them."""

    def __init__(self, model: Model, k: torch.Tensor, v: torch.Tensor, quantise: bool) -> None:
        self.model, self.k, self.v, self.quantise = model, k.clone(), v.clone(), quantise

    def _times(self, packed: Packed, x: torch.Tensor) -> torch.Tensor:
        return packed.dense() @ _as_served(x, self.model.format, self.quantise)

    def step(self, token: int, position: int) -> torch.Tensor:
        """fp32 logits (vocab,)."""
        shape = self.model.shape
        x = self.model.embedding.dense()[token] * shape.hidden**0.5
        for index, layer in enumerate(self.model.layers):
            h = _norm(x, layer.norms[0], shape.eps)
            attention = self._attention(index, layer, self._times(layer.qkv, h), position)
            x = x + _norm(self._times(layer.o, attention), layer.norms[1], shape.eps)
            both = self._times(layer.gate_up, _norm(x, layer.norms[2], shape.eps))
            act = torch.nn.functional.gelu(both[0::2], approximate="tanh") * both[1::2]
            x = x + _norm(self._times(layer.down, act), layer.norms[3], shape.eps)
        return self._times(self.model.embedding, _norm(x, self.model.final_norm, shape.eps))

    def _attention(self, index: int, layer: Layer, qkv: torch.Tensor, position: int) -> torch.Tensor:
        shape = self.model.shape
        table = self.model.rope[shape.is_global(index)][position]
        heads = qkv.view(-1, HEAD_DIM)
        q = _rotate(_norm(heads[: shape.q_heads], layer.qk_norms[0], shape.eps), table)
        k = _rotate(_norm(heads[shape.q_heads : -shape.kv_heads], layer.qk_norms[1], shape.eps), table)
        self.k[index, :, position], self.v[index, :, position] = k.half(), heads[-shape.kv_heads :].half()
        first = 0 if shape.is_global(index) else max(0, position + 1 - shape.window)
        keys = self.k[index, :, first : position + 1].float()
        values = self.v[index, :, first : position + 1].float()
        grouped = q.view(shape.kv_heads, -1, HEAD_DIM)
        scores = torch.softmax(grouped @ keys.transpose(1, 2) / HEAD_DIM**0.5, dim=-1)
        return (scores @ values).reshape(-1)


def compare(
    session: DecodeSession, model: Model, token: int, position: int, steps: int, quantise: bool
) -> dict[str, Any]:
    """Decode `steps` tokens and compare every step's logits with the reference fed the same tokens."""
    torch.backends.cuda.matmul.allow_tf32 = False
    reference = Reference(model, *cache_views(session), quantise)
    logits = view(session.buffers["logits"], (model.shape.vocab,), "<f4")
    logits.fill_(float("nan"))  # what the kernels do not write stays wrong
    torch.cuda.synchronize()
    session.seek(token, position)
    errors: list[float] = []
    ties, agreed = 0, 0
    for step in range(steps):
        session.replay()
        (chosen,) = session.tokens(position + step, 1)
        got, want = logits.double(), reference.step(token, position + step).double()
        error = float((got - want).norm() / want.norm())
        errors.append(error if math.isfinite(error) else math.inf)
        best = int(want.argmax())
        agreed += chosen == best
        ties += chosen == int(got.argmax())
        token = chosen
    return {
        "rel_error": max(errors),
        "least_rel_error": min(errors),
        "argmax_equal": agreed,
        "argmax_of_own_logits": ties,
        "steps": steps,
    }
