"""Random weights and caches of a Qwen2- or Llama-shaped decoder on the GPU, and its arithmetic in float64.

Bench only: torch makes the numbers and checks the answers; what is measured does not use it.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from types import SimpleNamespace
from typing import Any

import numpy as np
import torch

from cockpit.device.cuda_decode.rows import (
    TEXTS,
    KvPlaces,
    RowsDecoder,
    RowsLayer,
    RowsOutput,
    RowsShape,
    RowsWeights,
)
from models.engines.llm.memory import Sizes
from models.engines.llm.steps import StepModel
from models.engines.placement import Buffer

QWEN = RowsShape(
    hidden=896, layers=24, q_heads=14, kv_heads=2, head_dim=64, ffn=4864, vocab=151936, qkv_bias=True, eps=1e-6
)
"""Qwen2.5-Coder 0.5B."""
Layer = dict[str, torch.Tensor]


@dataclass
class RowsModel:
    """One model with random weights, the caches of `slots` texts and a place for outputs."""

    shape: RowsShape
    layers: list[Layer]
    embedding: torch.Tensor
    final_norm: torch.Tensor
    cosine: torch.Tensor
    sine: torch.Tensor
    caches: torch.Tensor
    hidden: torch.Tensor
    logits: torch.Tensor
    best: torch.Tensor

    @property
    def weights(self) -> RowsWeights:
        names = ("attention_norm", "qkv", "qkv_bias", "o", "ffn_norm", "gate_up", "down")
        return RowsWeights(
            self.shape,
            tuple(RowsLayer(*(layer[name].data_ptr() for name in names)) for layer in self.layers),
            self.embedding.data_ptr(),
            self.embedding.data_ptr(),
            self.final_norm.data_ptr(),
            self.cosine.data_ptr(),
            self.sine.data_ptr(),
            self.cosine.shape[0],
        )

    @property
    def kv(self) -> KvPlaces:
        """caches: (layers, 2, slots, kv_heads, capacity, head_dim)."""
        steps = [2 * step for step in self.caches.stride()]
        return KvPlaces(self.caches.data_ptr(), steps[0], steps[1], steps[2], self.caches.shape[4])

    @property
    def output(self) -> RowsOutput:
        return RowsOutput(self.hidden.data_ptr(), self.logits.data_ptr(), self.best.data_ptr())


def random_rows_model(shape: RowsShape, capacity: int, slots: int, seed: int, device: str = "cuda") -> RowsModel:
    make = torch.Generator(device).manual_seed(seed)

    def normal(*size: int, scale: float, mean: float = 0.0) -> torch.Tensor:
        return (torch.randn(size, generator=make, device=device) * scale + mean).half()

    h, f, width = shape.hidden, shape.ffn, shape.attention_width
    layers = [
        {
            "attention_norm": normal(h, scale=0.2, mean=1),
            "qkv": normal(h, shape.qkv_width, scale=h**-0.5),
            "qkv_bias": normal(shape.qkv_width, scale=0.3),
            "o": normal(width, h, scale=width**-0.5),
            "ffn_norm": normal(h, scale=0.2, mean=1),
            "gate_up": normal(h, 2 * f, scale=h**-0.5),
            "down": normal(f, h, scale=f**-0.5),
        }
        for _ in range(shape.layers)
    ]
    inverse = 1e6 ** (-torch.arange(0, shape.head_dim, 2, device=device, dtype=torch.float64) / shape.head_dim)
    angle = torch.arange(capacity, device=device, dtype=torch.float64)[:, None] * inverse
    caches = normal(shape.layers, 2, slots, shape.kv_heads, capacity, shape.head_dim, scale=1)
    outputs = (
        torch.zeros(slots, h, dtype=torch.float16, device=device),
        torch.zeros(TEXTS, shape.vocab, dtype=torch.float32, device=device),
        torch.zeros(TEXTS, dtype=torch.int64, device=device),
    )
    embedding, norm = normal(shape.vocab, h, scale=1), normal(h, scale=0.2, mean=1)
    return RowsModel(shape, layers, embedding, norm, angle.cos().half(), angle.sin().half(), caches, *outputs)


def reference(
    model: RowsModel, caches: torch.Tensor, token: int, position: int, slot: int
) -> tuple[torch.Tensor, torch.Tensor]:
    """(hidden, logits) of one token in float64; the new keys and values are written to `caches`, rounded as there."""
    shape, x = model.shape, model.embedding[token].double()

    def norm(x: torch.Tensor, weight: torch.Tensor) -> torch.Tensor:
        return x * torch.rsqrt(x.square().mean() + shape.eps) * weight.double()

    cosine, sine = model.cosine[position].double(), model.sine[position].double()
    for index, layer in enumerate(model.layers):
        w = {name: values.double() for name, values in layer.items()}
        qkv = (norm(x, layer["attention_norm"]) @ w["qkv"] + w["qkv_bias"] * shape.qkv_bias).view(-1, shape.head_dim)
        first, second = qkv.chunk(2, dim=1)
        turned = torch.cat([first * cosine - second * sine, second * cosine + first * sine], dim=1)
        keys, values = caches[index, 0, slot], caches[index, 1, slot]
        end = shape.q_heads + shape.kv_heads
        keys[:, position] = turned[shape.q_heads : end].half()
        values[:, position] = qkv[end:].half()
        group = shape.q_heads // shape.kv_heads
        k = keys[:, : position + 1].double().repeat_interleave(group, dim=0)
        v = values[:, : position + 1].double().repeat_interleave(group, dim=0)
        scores = (k @ turned[: shape.q_heads, :, None])[..., 0] * shape.head_dim**-0.5
        x = x + (scores.softmax(-1)[:, None] @ v).reshape(-1) @ w["o"]
        gate, up = (norm(x, layer["ffn_norm"]) @ w["gate_up"]).chunk(2)
        x = x + (gate * torch.sigmoid(gate) * up) @ w["down"]
    hidden = norm(x, model.final_norm)
    return hidden, hidden @ model.embedding.double().T


def compare_rows(decoder: RowsDecoder, model: RowsModel, rows: Sequence[tuple[int, int, int]]) -> dict[str, Any]:
    """One step of `rows` (a captured number; position below 0: empty) against float64, then each row alone.

    rel_error: of the logits, worst row. hidden, cache: largest difference of what was rounded to fp16, relative to the
    largest value. others: cache rows that changed beside the new ones. alone: rows whose logits are bit for bit
    those of a run of their own.
    """
    before = model.caches.clone()
    decoder.seek(rows)
    decoder.replay(len(rows))
    decoder.driver.synchronise(decoder.stream)
    logits, hidden, best = model.logits.clone(), model.hidden.clone(), model.best.clone()
    after, wanted = model.caches.clone(), before.clone()
    out: dict[str, Any] = {"rel_error": 0.0, "hidden": 0.0, "argmax": 0, "alone": 0, "rows": 0}
    live = [(index, row) for index, row in enumerate(rows) if row[1] >= 0]
    for index, row in live:
        true_hidden, true_logits = reference(model, wanted, *row)
        out["rows"] += 1
        error = float((logits[index].double() - true_logits).abs().max() / true_logits.abs().max())
        out["rel_error"] = max(out["rel_error"], error)
        off = float((hidden[row[2]].double() - true_hidden).abs().max() / true_hidden.abs().max())
        out["hidden"] = max(out["hidden"], off)
        out["argmax"] += int(best[index]) == int(true_logits.argmax())
        model.caches.copy_(before)
        torch.cuda.synchronize()
        decoder.seek([row])
        decoder.replay(1)
        decoder.driver.synchronise(decoder.stream)
        out["alone"] += bool((model.logits[0] == logits[index]).all()) and int(model.best[0]) == int(best[index])
    new = torch.zeros_like(after, dtype=torch.bool)
    for _, (_, position, slot) in live:
        new[:, :, slot, :, position] = True
    out["cache"] = float((after.double() - wanted.double()).abs().max() / wanted.double().abs().max())
    out["others"] = int(((after != before) & ~new).sum())
    return out


def step_model(model: RowsModel, capacity: int, owner: object) -> StepModel:
    """The model as an engine hands it to a placement, under the names of the graphs' initializers."""
    shape, weights = model.shape, {"same": model.embedding, "output_norm.weight": model.final_norm}
    weights |= {"cos_1000000": model.cosine, "sin_1000000": model.sine}
    for index, layer in enumerate(model.layers):
        blk = f"blk.{index}."
        names = [
            "attn_norm.weight",
            "attn_q.weight+attn_k.weight+attn_v.weight",
            "attn_qkv.bias",
            "attn_output.weight",
            "ffn_norm.weight",
            "ffn_gate.weight+ffn_up.weight",
            "ffn_down.weight",
        ]
        weights |= {
            "+".join(blk + part for part in name.split("+")): values
            for name, values in zip(names, layer.values(), strict=True)
        }
    values: dict[str, Any] = {
        name: SimpleNamespace(data_ptr=tensor.data_ptr, shape=lambda tensor=tensor: list(tensor.shape))
        for name, tensor in weights.items()
    }

    def buffer(tensor: torch.Tensor, dtype: Any) -> Buffer:
        return Buffer(tensor.data_ptr(), tuple(tensor.shape), np.dtype(dtype), "cuda", owner)

    caches = {
        f"{part}.{layer}": buffer(model.caches[layer, place], np.float16)
        for layer in range(shape.layers)
        for place, part in enumerate(("key", "value"))
    }
    sizes = Sizes(
        shape.layers, shape.kv_heads, shape.head_dim, shape.hidden, shape.vocab, capacity, model.caches.shape[2]
    )
    hidden, logits = buffer(model.hidden, np.float16), buffer(model.logits, np.float32)
    return StepModel("qwen2", shape.eps, sizes, values, caches, hidden, logits, buffer(model.best[:, None], np.int64))
