"""The decode kernels as a lane's `StepDecoder`: which models they serve, and one token of several texts in a lane."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np

from cockpit.device.base import Lane
from cockpit.device.cuda.driver import BoundDriver, DeviceFacts
from cockpit.device.cuda.kernel_store import KernelSource, KernelStore
from cockpit.device.cuda_decode.rows import (
    SIZES,
    TEXTS,
    KvPlaces,
    RowsDecoder,
    RowsLayer,
    RowsOutput,
    RowsShape,
    RowsTuning,
    RowsWeights,
    load_rows_kernels,
    rows_source,
    rows_unserved,
)
from models.engines.llm.steps import StepModel, StepRow
from models.engines.placement import WEIGHT_INDEX, Buffer, Placement

ARCHITECTURES = ("llama", "qwen2")
"""Norms before each block, RoPE of one theta, SiLU: what kernels/decode_rows.cu computes."""
_LEAST_CAPABILITY = (8, 0)
"""The tensor cores' m16n8k16 and asynchronous copies to shared memory."""
Shapes = Mapping[str, tuple[int, ...]]


@dataclass(frozen=True, slots=True)
class _Names:
    """Names of one layer's initializers, as models/build/llm_graph.py writes them."""

    layer: int

    @property
    def all(self) -> tuple[str, ...]:
        """In the order of RowsLayer, without the bias."""
        blk = f"blk.{self.layer}."
        return (
            blk + "attn_norm.weight",
            "+".join(f"{blk}attn_{part}.weight" for part in "qkv"),
            blk + "attn_output.weight",
            blk + "ffn_norm.weight",
            f"{blk}ffn_gate.weight+{blk}ffn_up.weight",
            blk + "ffn_down.weight",
        )

    @property
    def bias(self) -> str:
        return f"blk.{self.layer}.attn_qkv.bias"


def served_shape(
    architecture: str, eps: float | None, layers: int, kv_heads: int, head_dim: int, shapes: Shapes
) -> RowsShape | str:
    """The model's shape, or why the kernels do not serve it. shapes: of the graphs' initializers, by name."""
    if architecture not in ARCHITECTURES:
        return f"the kernels serve {' and '.join(ARCHITECTURES)} models, and this is {architecture}"
    if eps is None:
        return "the model's folder does not say its norms' epsilon: build it anew"
    table = "same" if "same" in shapes else "embed"
    wanted = [table, "output_norm.weight", *(name for layer in range(layers) for name in _Names(layer).all)]
    missing = [name for name in wanted if name not in shapes]
    waves = [name for name in shapes if name.startswith(("cos_", "sin_"))]
    if missing or len(waves) != 2:
        return f"the kernels need {missing[0] if missing else 'one RoPE table'} beside the graphs"
    _, qkv, _, _, _, down = _Names(0).all
    vocab, hidden = shapes[table]
    width = shapes[qkv][1] // head_dim
    bias = _Names(0).bias in shapes
    shape = RowsShape(
        hidden, layers, width - 2 * kv_heads, kv_heads, head_dim, shapes[down][0], vocab, qkv_bias=bias, eps=eps
    )
    return rows_unserved(shape) or shape


def served_sources(folders: Iterable[Path]) -> list[KernelSource]:
    """What must be compiled to decode the language models in `folders` that the kernels serve."""
    out = []
    for folder in folders:
        config = json.loads((folder / "config.json").read_text(encoding="utf-8"))
        index = json.loads((folder / WEIGHT_INDEX).read_text(encoding="utf-8"))
        shape = served_shape(
            config["architecture"],
            config.get("rms_epsilon"),
            config["layers"],
            config["kv_heads"],
            config["head_dim"],
            {name: tuple(said["shape"]) for name, said in index["tensors"].items()},
        )
        if isinstance(shape, RowsShape) and config["quant"] == "f16":
            out.append(rows_source(shape))
    return out


class LaneDecoder:
    """See models.engines.llm.steps.StepDecoder."""

    texts = TEXTS

    def __init__(self, placement: Placement, decoder: RowsDecoder, owner: object) -> None:
        state = decoder.buffers["state"]
        self._placement = placement
        self._decoder = decoder
        self._states = {
            size: Buffer(state, (size, 4), np.dtype(np.int32), placement.device, owner) for size in decoder.graphs
        }

    def step(self, rows: Sequence[StepRow]) -> None:
        size = next(size for size in sorted(self._states) if size >= len(rows))
        state = np.full((size, 4), -1, np.int32)
        state[: len(rows), :3] = rows
        self._placement.write(self._states[size], state)
        with self._decoder.driver.current():
            self._decoder.replay(size)


@dataclass(frozen=True, slots=True)
class StepDecoders:
    """Makes the decoders of one device's lanes, at start."""

    driver: BoundDriver
    facts: DeviceFacts
    store: KernelStore

    def open(
        self, model: StepModel, placement: Placement, lane: Lane, allocate: Callable[[int], int], owner: object
    ) -> LaneDecoder | str:
        """The decoder of `model` in `lane`, or why there is none. allocate: device memory that lives as `owner` does.

        Raises ModelMissing and FingerprintMismatch where its kernels are not compiled.
        """
        if self.facts.capability < _LEAST_CAPABILITY:
            return "the kernels need compute capability {}.{}, and this is {}.{}".format(
                *_LEAST_CAPABILITY, *self.facts.capability
            )
        if model.hidden.dtype != np.float16:
            return f"the kernels serve float16, and this is {model.hidden.dtype}"
        sizes = model.sizes
        shapes = {name: tuple(value.shape()) for name, value in model.weights.items()}
        epsilon = model.rms_epsilon
        shape = served_shape(model.architecture, epsilon, sizes.layers, sizes.kv_heads, sizes.head_dim, shapes)
        if isinstance(shape, str):
            return shape
        image = self.store.load(rows_source(shape), self.facts)
        with self.driver.current():
            kernels = load_rows_kernels(self.driver, image, shape, RowsTuning())
            output = RowsOutput(model.hidden.address, model.logits.address, model.best.address)
            weights = weight_addresses(shape, model.weights)
            decoder = RowsDecoder(
                self.driver, kernels, weights, kv_places(model.caches), output, lane.stream, lane.units
            )
            decoder.open(SIZES, allocate=allocate)
        return LaneDecoder(placement, decoder, owner)


def weight_addresses(shape: RowsShape, weights: Mapping[str, Any]) -> RowsWeights:
    """Addresses of what ONNX Runtime reads too."""

    def at(name: str) -> int:
        return int(weights[name].data_ptr())

    layers = []
    for layer in range(shape.layers):
        names = _Names(layer)
        norm, qkv, o, ffn_norm, gate_up, down = map(at, names.all)
        bias = at(names.bias) if shape.qkv_bias else 0
        layers.append(RowsLayer(norm, qkv, bias, o, ffn_norm, gate_up, down))
    tied = "same" in weights
    embedding, table = at("same" if tied else "embed"), at("same" if tied else "head")
    (cosine,) = (name for name in weights if name.startswith("cos_"))
    (sine,) = (name for name in weights if name.startswith("sin_"))
    positions = int(weights[cosine].shape()[0])
    final = at("output_norm.weight")
    return RowsWeights(shape, tuple(layers), embedding, table, final, at(cosine), at(sine), positions)


def kv_places(caches: Mapping[str, Buffer]) -> KvPlaces:
    """The arena of caches in strides; every layer's buffers lie equally far apart."""
    key, value = caches["key.0"], caches["value.0"]
    slots, _, rows, _ = key.shape
    layer_bytes = caches["key.1"].address - key.address if "key.1" in caches else 0
    return KvPlaces(key.address, layer_bytes, value.address - key.address, key.size_bytes // slots, rows)
