"""GGUF checkpoint -> model folder.

model.onnx (body), head.onnx, model.bin (the weights of both), tokenizer.json, tokenizer_check.json,
chat_template.jinja, config.json; folders for devices hold choose.onnx and score.onnx too (llm_device.py).
"""

from __future__ import annotations

import json
from collections.abc import Callable
from dataclasses import replace
from pathlib import Path
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.build.llm_device import DeviceHead, choose, score
from models.build.llm_emit import Emitter, WeightFile
from models.build.llm_gguf import Checkpoint, DecoderShape
from models.build.llm_graph import DecoderGraph, Table, save
from models.build.llm_head import HeadGraph
from models.build.llm_quant import EXACT_BLOCK, Packed, offset_pack, ordered, pack4, pack8, stack, stored_scales
from models.build.llm_tokenizer import write_chat_template, write_check, write_tokenizer
from models.errors import InputError

Quant = Literal["f32", "served", "f16", "f32-device"]
Progress = Callable[[str, float], None]

DEVICE_TYPES: dict[str, type[np.floating[Any]]] = {"f16": np.float16, "f32-device": np.float32}
"""The element type of the device graphs of each such `quant`."""
WIDE_BLOCK = 128
"""Weights per scale where the width allows it and exactness is not worth its time: a third fewer instructions per
weight than blocks of 32. The quick head's candidates are decided by exact rows; among Qwen's, the best one was always
in the first five."""
NARROW_BLOCK = 64


class FullWeights:
    """Everything dequantised to `dtype`; in float32 the reference that served builds are measured against."""

    def __init__(self, checkpoint: Checkpoint, shape: DecoderShape, dtype: type[np.floating[Any]] = np.float32) -> None:
        self.checkpoint = checkpoint
        self.shape = shape
        self.dtype = dtype

    def matrix(self, names: list[str]) -> NDArray[Any]:
        values = np.concatenate([ordered(self.checkpoint, name, self.shape) for name in names])
        return values.astype(self.dtype, copy=False)

    def embedding(self) -> Table:
        return self._table("token_embd.weight")

    def head(self) -> tuple[None, Table]:
        return None, self._table("token_embd.weight" if self.shape.tied else "output.weight")

    def _table(self, name: str) -> Table:
        return Table(self.checkpoint.values(name).astype(self.dtype, copy=False), None)


class ServedWeights:
    """4 bits where the file has 4, exactly; else 8: attention inputs exactly, on its own scales, others in wide blocks.

    The head: 4 bits, then exact rows. Not fewer bits than the file's: rounding Qwen's gate and up to 4 bits (GPTQ,
    calibrated, blocks of 32) in 3 of 24 layers alone cost 0.003 nats, twice llama.cpp's whole divergence. Attention
    inputs in wide blocks cost nearly as much as all other matrices together, and are 7 % of the weights.
    """

    def __init__(self, checkpoint: Checkpoint, shape: DecoderShape) -> None:
        self.checkpoint = checkpoint
        self.shape = shape
        self._tables: dict[str, Table] = {}

    def matrix(self, names: list[str]) -> Packed:
        four = [offset_pack(self.checkpoint, name) for name in names]
        if all(part is not None for part in four):
            return stack(
                [self._ordered(part, name) for part, name in zip(four, names, strict=True) if part is not None]
            )
        if names[0].endswith("attn_q.weight"):
            return stack([self._exact(name) for name in names])
        values = np.concatenate([ordered(self.checkpoint, name, self.shape) for name in names])
        if values.shape[1] % WIDE_BLOCK:
            return stack([self._exact(name) for name in names])
        return pack8(values, WIDE_BLOCK)

    def _ordered(self, packed: Packed, name: str) -> Packed:
        order = self.checkpoint.row_order(name, self.shape)
        if order is None or packed.offsets is None:
            return packed
        return replace(packed, codes=packed.codes[order], scales=packed.scales[order], offsets=packed.offsets[order])

    def _exact(self, name: str) -> Packed:
        scales = stored_scales(self.checkpoint, name)
        order = self.checkpoint.row_order(name, self.shape)
        if scales is not None and order is not None:
            scales = scales[order]
        return pack8(ordered(self.checkpoint, name, self.shape), EXACT_BLOCK, scales)

    def embedding(self) -> Table:
        return self._table("token_embd.weight")

    def head(self) -> tuple[Packed, Table]:
        name = "token_embd.weight" if self.shape.tied else "output.weight"
        values = self.checkpoint.values(name)
        block = NARROW_BLOCK if values.shape[1] % WIDE_BLOCK else WIDE_BLOCK
        parts = [pack4(part, block) for part in np.array_split(values, 16)]
        return stack(parts), self._table(name)

    def _table(self, name: str) -> Table:
        if name not in self._tables:  # the embedding is the head's too where they are tied
            values = self.checkpoint.values(name)
            packed = pack8(values, EXACT_BLOCK, stored_scales(self.checkpoint, name))
            self._tables[name] = Table((packed.codes.astype(np.int16) - 128).astype(np.int8), packed.scales)
        return self._tables[name]


def build_llm(gguf: Path, out: Path, *, quant: Quant, progress: Progress | None = None) -> None:
    """Build the model folder `out` from the GGUF file `gguf`.

    quant: "f32" keeps every dequantised weight; "served" is what runs in the car on a CPU; "f16" is what runs on a
    GPU; "f32-device" are the GPU's graphs in float32, for tests on a CPU. `progress` gets (step, share 0..1).
    Raises InputError when the file cannot be read, its architecture is not known or does not bear float16, and
    TokenizerMismatch when the tokenizer made of it gives other ids than its vocabulary does.
    """
    report = progress or (lambda step, share: None)
    checkpoint = Checkpoint.open(gguf)
    shape = checkpoint.shape()
    if quant == "f16" and shape.gemma:
        raise InputError(
            f"{gguf.name}: activations of {shape.architecture} exceed float16; build it as served and run it on the CPU"
        )
    out.mkdir(parents=True, exist_ok=True)
    report("tokenizer", 0.0)
    write_tokenizer(checkpoint, out)
    write_check(checkpoint, out)
    has_template = write_chat_template(checkpoint, out)
    report("weights", 0.1)
    with WeightFile(out / "model.bin") as file:
        if quant in DEVICE_TYPES:
            _device_graphs(checkpoint, shape, DEVICE_TYPES[quant], file, out, report)
        else:
            weights = FullWeights(checkpoint, shape) if quant == "f32" else ServedWeights(checkpoint, shape)
            save(DecoderGraph(checkpoint, shape, weights, Emitter(file)).body(), out / "model.onnx")
            report("head", 0.7)
            quick, table = weights.head()
            save(HeadGraph(shape, quick, table, Emitter(file)).emit(), out / "head.onnx")
    config = model_config(checkpoint, shape, quant, has_template)
    (out / "config.json").write_text(json.dumps(config, indent=2) + "\n", encoding="utf-8")
    report("done", 1.0)


def _device_graphs(
    checkpoint: Checkpoint,
    shape: DecoderShape,
    dtype: type[np.floating[Any]],
    file: WeightFile,
    out: Path,
    report: Progress,
) -> None:
    """Body, head and the two graphs over logits, all in `dtype` and fit for capture as device graphs."""
    weights = FullWeights(checkpoint, shape, dtype)
    save(DecoderGraph(checkpoint, shape, weights, Emitter(file), dtype).body(), out / "model.onnx")
    report("head", 0.7)
    _, table = weights.head()
    save(DeviceHead(shape, table, Emitter(file)).emit(), out / "head.onnx")
    save(choose(shape, Emitter(file)), out / "choose.onnx")
    save(score(shape, Emitter(file)), out / "score.onnx")


def model_config(checkpoint: Checkpoint, shape: DecoderShape, quant: Quant, has_template: bool) -> dict[str, object]:
    """What the engine must know beside the graphs; read by models/engines/llm/causal_lm.py."""
    tokens = checkpoint.field("tokenizer.ggml.tokens")
    bos, eos = (checkpoint.field(f"tokenizer.ggml.{key}_token_id") for key in ("bos", "eos"))
    return shape_config(shape, quant) | {
        "stop_ids": checkpoint.stop_ids(),
        "bos_id": bos,
        "bos_token": "" if bos is None else tokens[bos],
        "eos_token": "" if eos is None else tokens[eos],
        "add_bos": bool(checkpoint.field("tokenizer.ggml.add_bos_token", False)),
        "chat_template": has_template,
    }


def shape_config(shape: DecoderShape, quant: str) -> dict[str, object]:
    """What of it follows from the shape, whatever the checkpoint's form."""
    return {
        "architecture": shape.architecture,
        "quant": quant,
        "layers": shape.layers,
        "kv_heads": shape.kv_heads,
        "head_dim": shape.head_dim,
        "hidden": shape.hidden,
        "vocab": shape.vocab,
        "context_tokens": shape.context,
        "rms_epsilon": shape.rms_epsilon,
    }
