"""Gemma 3 in numpy and float32, for judging: from a GGUF file, or from the weights that the decode kernels read.

One forward over a whole text, every position at once. Needs numpy alone (and gguf for a GGUF file), so it can judge on
a machine that has no ONNX Runtime. Source of the architecture: the Gemma 3 report (arXiv:2503.19786).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from benchmarks.gemma.session import DecodeShape

F32 = NDArray[np.float32]
HEAD_DIM = 256


class Weights(Protocol):
    """Tensors by their GGUF names: matrices (outputs, inputs), norms with the 1 already added."""

    def values(self, name: str) -> F32: ...


class KernelFolder:
    """What benchmarks/gemma/weights.py wrote, taken apart again into GGUF's tensors (gate and up, q, k and v)."""

    def __init__(self, folder: Path) -> None:
        said = json.loads((folder / "kernels.json").read_text(encoding="utf-8"))
        self.shape = DecodeShape(**said["shape"])
        self.format: str = said["format"]
        self._sections: dict[str, list[int]] = said["sections"]
        self._file = np.memmap(folder / "weights.bin", np.uint8, "r")

    def values(self, name: str) -> F32:
        if name == "token_embd.weight":
            return self._matrix("embedding", self.shape.hidden)
        if name == "output_norm.weight":
            return self._floats("final_norm")
        _, layer, part, _ = name.split(".")
        return self._of_layer(f"blk.{layer}.", part)

    def _of_layer(self, blk: str, part: str) -> F32:
        s = self.shape
        norms = ("attn_norm", "post_attention_norm", "ffn_norm", "post_ffw_norm")
        if part in norms:
            return np.asarray(self._floats(blk + "norms").reshape(4, s.hidden)[norms.index(part)])
        if part in ("attn_q_norm", "attn_k_norm"):
            return np.asarray(self._floats(blk + "qk_norms").reshape(2, HEAD_DIM)[int(part == "attn_k_norm")])
        if part in ("ffn_gate", "ffn_up"):
            return self._matrix(blk + "gate_up", s.hidden)[int(part == "ffn_up") :: 2]
        if part in ("attn_output", "ffn_down"):
            name, columns = ("o", s.attention_width) if part == "attn_output" else ("down", s.ffn)
            return self._matrix(blk + name, columns)
        at = np.cumsum([s.attention_width, s.kv_heads * HEAD_DIM])
        return np.split(self._matrix(blk + "qkv", s.hidden), at)[("attn_q", "attn_k", "attn_v").index(part)]

    def _bytes(self, name: str) -> NDArray[np.uint8]:
        offset, size = self._sections[name]
        return self._file[offset : offset + size]

    def _floats(self, name: str) -> F32:
        return self._bytes(name).view(np.float32)

    def _matrix(self, name: str, columns: int) -> F32:
        raw = self._bytes(name).view(np.uint16).reshape(-1, columns)
        if self.format == "bf16":
            return (raw.astype(np.uint32) << 16).view(np.float32)
        return raw.view(np.float16).astype(np.float32)


class GemmaReference:
    """The model. Matrices are read once and kept. kv: type that keys and values are rounded to, as a cache would."""

    def __init__(self, weights: Weights, shape: DecodeShape, kv: type[np.floating] = np.float32) -> None:
        self.shape = shape
        self.kv = kv
        self.kv_peak = 0.0
        self._weights = weights
        self._kept: dict[str, F32] = {}

    def logits(self, tokens: Sequence[int], last: int) -> F32:
        """Logits (last, vocab) after each of the last `last` tokens of the text."""
        s = self.shape
        x = self._get("token_embd.weight")[np.asarray(tokens)] * np.float32(s.hidden**0.5)
        for layer in range(s.layers):
            x = x + self._norm(self._attention(x, layer), f"blk.{layer}.post_attention_norm.weight")
            x = x + self._norm(self._feed_forward(x, layer), f"blk.{layer}.post_ffw_norm.weight")
        out: F32 = self._norm(x[-last:], "output_norm.weight") @ self._get("token_embd.weight").T
        return out

    def greedy(self, prompt: Sequence[int], count: int) -> list[int]:
        """The `count` best tokens, one after the other; the whole text is computed anew for each."""
        tokens = list(prompt)
        for _ in range(count):
            tokens.append(int(self.logits(tokens, 1)[0].argmax()))
        return tokens[len(prompt) :]

    def _get(self, name: str) -> F32:
        if name not in self._kept:
            self._kept[name] = self._weights.values(name)
        return self._kept[name]

    def _norm(self, x: F32, name: str) -> F32:
        mean = np.square(x).mean(axis=-1, keepdims=True)
        return np.asarray(x / np.sqrt(mean + np.float32(self.shape.eps)) * self._get(name), np.float32)

    def _attention(self, x: F32, layer: int) -> F32:
        s, blk, count = self.shape, f"blk.{layer}.", len(x)
        h = self._norm(x, blk + "attn_norm.weight")
        q, k, v = ((h @ self._get(f"{blk}attn_{part}.weight").T).reshape(count, -1, HEAD_DIM) for part in "qkv")
        cos, sin = rope(s, s.is_global(layer), count)
        q = rotate(self._norm(q, blk + "attn_q_norm.weight"), cos, sin)
        k = rotate(self._norm(k, blk + "attn_k_norm.weight"), cos, sin)
        self.kv_peak = max(self.kv_peak, float(np.abs(k).max()), float(np.abs(v).max()))
        k, v = k.astype(self.kv).astype(np.float32), v.astype(self.kv).astype(np.float32)
        behind = np.arange(count)[:, None] - np.arange(count)
        hidden = (behind < 0) if s.is_global(layer) else (behind < 0) | (behind >= s.window)
        group = s.q_heads // s.kv_heads
        mixed = np.empty((count, s.q_heads, HEAD_DIM), np.float32)
        for head in range(s.q_heads):
            scores = q[:, head] @ k[:, head // group].T / np.float32(HEAD_DIM**0.5)
            scores[hidden] = -np.inf
            share = np.exp(scores - scores.max(axis=-1, keepdims=True))
            mixed[:, head] = share / share.sum(axis=-1, keepdims=True) @ v[:, head // group]
        out: F32 = mixed.reshape(count, -1) @ self._get(f"{blk}attn_output.weight").T
        return out

    def _feed_forward(self, x: F32, layer: int) -> F32:
        blk = f"blk.{layer}."
        h = self._norm(x, blk + "ffn_norm.weight")
        gate, up = (h @ self._get(f"{blk}ffn_{part}.weight").T for part in ("gate", "up"))
        cubed = np.float32(0.7978845608) * (gate + np.float32(0.044715) * gate**3)
        act = np.float32(0.5) * gate * (1 + np.tanh(cubed)) * up
        out: F32 = act @ self._get(f"{blk}ffn_down.weight").T
        return out


def rope(shape: DecodeShape, is_global: bool, count: int) -> tuple[F32, F32]:
    """Cosine and sine (count, 1, 128) of positions 0 .. count."""
    theta = shape.theta_global if is_global else shape.theta_local
    scale = shape.rope_scale_global if is_global else 1.0
    angle = np.arange(count)[:, None] * theta ** (-np.arange(0, HEAD_DIM, 2) / HEAD_DIM) / scale
    return np.cos(angle)[:, None].astype(np.float32), np.sin(angle)[:, None].astype(np.float32)


def rotate(x: F32, cos: F32, sin: F32) -> F32:
    """x: (count, heads, 256), halves rotated against each other."""
    a, b = x[..., : HEAD_DIM // 2], x[..., HEAD_DIM // 2 :]
    return np.concatenate([a * cos - b * sin, b * cos + a * sin], axis=-1)
