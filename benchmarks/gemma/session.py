"""Batch-1 decode of a Gemma-3-shaped model with the project's own kernels, as CUDA graphs that can yield inside.

A `DecodeSession` is one task's decoder: its own KV cache, activations and graph, in its own lane. Weights are device
addresses that any number of sessions share. One graph is one token: the position and the chosen token live on the
device, so a replay needs nothing from the host. Source of the architecture: the Gemma 3 report (arXiv:2503.19786).
"""

from __future__ import annotations

import struct
from collections.abc import Sequence
from dataclasses import dataclass, field, replace
from pathlib import Path
from typing import Any, Literal

from cockpit.device.cuda.driver import BoundDriver, compile_cubin
from cockpit.device.cuda.gate import DeviceGate
from models.errors import DeviceUnavailable

SOURCE = Path(__file__).with_name("decode.cu")
Format = Literal["fp16", "int8", "int4", "bf16"]
_FORMAT_NUMBER = {"fp16": 0, "int8": 1, "int4": 2, "bf16": 3}
_HEAD_DIM = 256
_ATTENTION_BLOCK = 256
_SM_REGISTERS = 65536
_SPARE_REGISTERS = 4096
_SHARED_LIMIT_BYTES = 96 * 1024
"""Dynamic shared memory that `down` may have: the activations of the widest FFN served, in fp32, and partial sums."""
_MOST_GROUPED = 5
"""Query heads that may share a KV head: their accumulators lie in 48 KiB of static shared memory."""
_TILE_COLUMNS = 2560
"""Widest tile of `down`, unless the model's hidden size is wider: 10 loads of 16 bytes a lane in 16-bit formats."""


@dataclass(frozen=True, slots=True)
class DecodeShape:
    """Sizes of the model; the defaults are Gemma 3 4B's text decoder."""

    hidden: int = 2560
    layers: int = 34
    q_heads: int = 8
    kv_heads: int = 4
    ffn: int = 10240
    vocab: int = 262144
    window: int = 1024
    global_every: int = 6
    theta_local: float = 10_000.0
    theta_global: float = 1_000_000.0
    rope_scale_global: float = 8.0
    eps: float = 1e-6

    @property
    def attention_width(self) -> int:
        return self.q_heads * _HEAD_DIM

    @property
    def qkv_rows(self) -> int:
        return (self.q_heads + 2 * self.kv_heads) * _HEAD_DIM

    def is_global(self, layer: int) -> bool:
        return (layer + 1) % self.global_every == 0

    @property
    def down_columns(self) -> int:
        """Columns of a tile of `down`: a row is cut into ffn / down_columns tiles. 0: the kernels have no such cut."""
        widest = max(self.hidden, _TILE_COLUMNS)
        fitting = [columns for columns in range(512, widest + 1, 512) if self.ffn % columns == 0]
        return max(fitting, default=0)

    @property
    def layer_weights(self) -> int:
        """Weights of one layer's matrices."""
        return self.hidden * (self.qkv_rows + self.attention_width + 3 * self.ffn)

    @property
    def weights(self) -> int:
        """Weights read per token: every layer and the tied embedding as LM head."""
        return self.layers * self.layer_weights + self.vocab * self.hidden

    def weight_bytes(self, format: Format) -> int:
        """Bytes read per token for weights, scales included."""
        rows = self.layers * (self.qkv_rows + 2 * self.hidden + 2 * self.ffn) + self.vocab
        if format == "int8":
            return self.weights + 4 * rows
        return self.weights * 9 // 16 if format == "int4" else self.weights * 2

    def kv_bytes(self, position: int) -> int:
        """Bytes of K and V read for the token at `position`, the sliding window of local layers respected."""
        per_position = 2 * self.kv_heads * _HEAD_DIM * 2
        lengths = [position + 1 if self.is_global(i) else min(position + 1, self.window) for i in range(self.layers)]
        return per_position * sum(lengths)


@dataclass(frozen=True, slots=True)
class MatrixAddress:
    """One matrix on the device in the tile order of decode.cu. scales: 0 where the format has none."""

    weights: int
    scales: int
    size_bytes: int


@dataclass(frozen=True, slots=True)
class LayerAddresses:
    """norms: fp32 (4, hidden): input, post-attention, pre-FFN, post-FFN, each 1 + weight. qk_norms: fp32 (2, 256)."""

    qkv: MatrixAddress
    o: MatrixAddress
    gate_up: MatrixAddress
    down: MatrixAddress
    norms: int
    qk_norms: int


@dataclass(frozen=True, slots=True)
class DecodeWeights:
    """Weights of one model, loaded once and shared by every session. rope_*: fp32 (positions, 128, 2) cos, sin."""

    shape: DecodeShape
    format: Format
    layers: tuple[LayerAddresses, ...]
    embedding: MatrixAddress
    final_norm: int
    rope_local: int
    rope_global: int
    positions: int


@dataclass(frozen=True, slots=True)
class DecodeTuning:
    """How the kernels are built and launched. block: threads of a GEMV block; splits: attention
    blocks per KV head; attention_batch: positions a warp of them has in flight; early: kernels start before their
    predecessor ends."""

    block: int = 512
    blocks_per_sm: int = 1
    splits: int = 16
    attention_batch: int = 4
    early: bool = True

    @property
    def registers(self) -> int:
        """Most registers a GEMV thread may have. A block that took the whole file would be kept off any SM where
        another task is parked with as little as one warp (measured: +25 % on every kernel)."""
        return (_SM_REGISTERS - _SPARE_REGISTERS) // self.block // 8 * 8


TUNED: dict[Format, DecodeTuning] = {
    "fp16": DecodeTuning(),
    "bf16": DecodeTuning(),
    "int8": DecodeTuning(),
    "int4": DecodeTuning(block=640, splits=24, attention_batch=2),
}
"""Best of `benchmarks.llm.gpu_decode --sweep` on an H200, Gemma 3 4B's shape."""


def tuned(shape: DecodeShape, format: Format) -> DecodeTuning:
    """Launch settings for a model: TUNED, with no more positions in flight than its query heads leave registers for."""
    tuning = TUNED[format]
    wide = shape.q_heads // shape.kv_heads > 2  # four heads of accumulators spill beside four positions
    return replace(tuning, attention_batch=min(tuning.attention_batch, 2)) if wide else tuning


@dataclass(frozen=True, slots=True)
class DecodeKernels:
    """The compiled kernels of one model shape, weight format and tuning."""

    shape: DecodeShape
    format: Format
    tuning: DecodeTuning
    functions: dict[str, Any]


def decode_defines(shape: DecodeShape, format: Format, tuning: DecodeTuning) -> tuple[str, ...]:
    """Macros of decode.cu. Raises DeviceUnavailable for a shape the kernels do not serve."""
    granule = 512 if format in ("int8", "int4") else 32  # integer rows fill whole rounds of 16-byte loads
    fits = shape.hidden % granule == 0 and shape.attention_width % granule == 0 and shape.down_columns
    heads = shape.q_heads % shape.kv_heads == 0 and shape.q_heads // shape.kv_heads <= _MOST_GROUPED
    if not fits or not heads or tuning.block * 8 < max(shape.hidden, shape.attention_width):
        raise DeviceUnavailable(
            f"decode kernels do not serve {format} with hidden {shape.hidden}, ffn {shape.ffn}, "
            f"{shape.q_heads}/{shape.kv_heads} heads, block {tuning.block}: use the ONNX Runtime engine for this model"
        )
    return (
        f"FORMAT={_FORMAT_NUMBER[format]}",
        f"BLOCK={tuning.block}",
        f"REGISTERS={tuning.registers}",
        f"ATT_BATCH={tuning.attention_batch}",
        f"HIDDEN={shape.hidden}",
        f"FFN={shape.ffn}",
        f"VOCAB={shape.vocab}",
        f"Q_HEADS={shape.q_heads}",
        f"KV_HEADS={shape.kv_heads}",
        f"DOWN_K={shape.down_columns}",
    )


def load_decode_kernels(
    driver: BoundDriver, image: bytes, shape: DecodeShape, format: Format, tuning: DecodeTuning
) -> DecodeKernels:
    """Load the cubin that decode.cu was compiled to with `decode_defines` of the same shape, format and tuning."""
    library = driver.library(image)
    names = ("qkv", "attention", "o_proj", "gate_up", "down", "lm_head")
    functions = {name: driver.kernel(library, name) for name in names}
    for name, function in functions.items():
        driver.allow_shared(function, _SHARED_LIMIT_BYTES if name == "down" else 0)
    return DecodeKernels(shape, format, tuning, functions)


def build_decode_kernels(
    driver: BoundDriver, capability: tuple[int, int], shape: DecodeShape, format: Format, tuning: DecodeTuning
) -> DecodeKernels:
    """Compile here and now, and load. Raises DeviceUnavailable for a shape the kernels do not serve."""
    image = compile_cubin(SOURCE.read_text(encoding="utf-8"), capability, decode_defines(shape, format, tuning))
    return load_decode_kernels(driver, image, shape, format, tuning)


@dataclass(slots=True)
class DecodeSession:
    """One task's decoder in one lane. Not thread-safe; its graph belongs to the lane's stream.

    capacity: positions the KV cache holds. boundary_layers: a gate before every so many layers (0: none inside).
    """

    driver: BoundDriver
    kernels: DecodeKernels
    weights: DecodeWeights
    stream: int
    sms: int
    capacity: int
    gate: DeviceGate | None = None
    boundary_layers: int = 0
    buffers: dict[str, int] = field(default_factory=dict)
    graph: Any = None

    # --- life ------------------------------------------------------------------------------------------------------
    def open(self, want_logits: bool = False) -> DecodeSession:
        """Allocate, clear, capture. Call while nothing urgent runs. Raises ValueError: more positions than RoPE has."""
        shape, splits = self.weights.shape, self.kernels.tuning.splits
        if self.capacity > self.weights.positions:
            raise ValueError(f"a cache of {self.capacity} needs weights loaded for as many positions")
        kv = shape.layers * shape.kv_heads * self.capacity * _HEAD_DIM * 2
        sizes = {
            "k": kv,
            "v": kv,
            "x_a": 4 * shape.hidden,
            "x_b": 4 * shape.hidden,
            "qkv": 4 * shape.qkv_rows,
            "delta": 4 * shape.hidden,
            "act": 4 * shape.ffn,
            "partial": 4 * shape.q_heads * splits * _HEAD_DIM,
            "partial_ml": 8 * shape.q_heads * splits,
            "best": 16,
            "state": 8,
            "history": 4 * self.capacity,
        }
        if want_logits:
            sizes["logits"] = 4 * shape.vocab
        for name, size in sizes.items():
            self.buffers[name] = self.driver.allocate(size)
            self.driver.zero(self.buffers[name], size, self.stream)
        self.graph = self.driver.capture(self.stream, self.launch_token)
        return self

    def close(self) -> None:
        """Free what `open` allocated; weights stay."""
        for address in self.buffers.values():
            self.driver.free(address)
        self.buffers.clear()

    # --- use -------------------------------------------------------------------------------------------------------
    def seek(self, token: int, position: int) -> None:
        """The next replay takes `token` at `position`; K and V of every earlier position must be in the cache."""
        if not 0 <= position < self.capacity:
            raise ValueError(f"position {position} is outside the cache of {self.capacity}")
        self.driver.write(self.buffers["state"], struct.pack("ii", token, position), self.stream)

    def prefill(self, tokens: Sequence[int], position: int = 0) -> None:
        """Queue `tokens` one after the other from `position` on; the next replay takes what the last one chose."""
        for offset, token in enumerate(tokens):
            self.seek(token, position + offset)
            self.replay()

    def replay(self) -> None:
        """Queue one token."""
        self.driver.replay(self.graph, self.stream)

    def tokens(self, first: int, count: int) -> Sequence[int]:
        """Tokens chosen at positions first .. first + count (waits for the lane)."""
        raw = self.driver.read(self.buffers["history"] + 4 * first, 4 * count, self.stream)
        return struct.unpack(f"{count}i", raw)

    # --- what a token is -------------------------------------------------------------------------------------------
    def launch_token(self) -> None:
        """Launch one token's kernels on the lane's stream (captured by `open`)."""
        after_gate = True
        for layer in range(self.weights.shape.layers):
            if self.gate and self.boundary_layers and layer % self.boundary_layers == 0:
                self.gate.launch(self.stream)
                after_gate = True
            self._layer(layer, first_early=not after_gate)
            after_gate = False
        self._lm_head()

    def _layer(self, index: int, first_early: bool) -> None:
        layer, shape, b = self.weights.layers[index], self.weights.shape, self.buffers
        before = self._residual("x_b", index - 1, 3, layer.norms, "x_a") if index else self._embedded(layer.norms)
        self._gemv("qkv", first_early, layer.qkv, before, struct.pack("Q", b["qkv"]))
        self._attention(index)
        partial = struct.pack("QQi4x", b["partial"], b["partial_ml"], self.kernels.tuning.splits)
        self._gemv("o_proj", True, layer.o, partial, struct.pack("Q", b["delta"]))
        between = self._residual("x_a", index, 1, layer.norms + 8 * shape.hidden, "x_b")
        self._gemv("gate_up", True, layer.gate_up, between, struct.pack("Q", b["act"]))
        pointers = struct.pack("Q", b["act"]), struct.pack("Q", b["delta"])
        self._gemv("down", True, layer.down, *pointers, shared_bytes=self._down_shared())

    def _lm_head(self) -> None:
        shape, b = self.weights.shape, self.buffers
        residual = self._residual("x_b", shape.layers - 1, 3, self.weights.final_norm, "x_a")
        choice = struct.pack(
            "6Q", b["best"], b["best"] + 8, b["state"], b["state"] + 4, b["history"], b.get("logits", 0)
        )
        self._gemv("lm_head", True, self.weights.embedding, residual, choice)

    def _gemv(self, name: str, early: bool, matrix: MatrixAddress, *arguments: bytes, shared_bytes: int = 0) -> None:
        tuning = self.kernels.tuning
        self.driver.launch(
            self.kernels.functions[name],
            (self.sms * tuning.blocks_per_sm, 1, 1),
            tuning.block,
            self.stream,
            struct.pack("QQ", matrix.weights, matrix.scales),
            *arguments,
            shared_bytes=shared_bytes,
            early=early and tuning.early,
        )

    def _residual(self, source: str, post_layer: int, post_norm: int, pre_norm: int, target: str) -> bytes:
        shape, b = self.weights.shape, self.buffers
        post = self.weights.layers[post_layer].norms + 4 * shape.hidden * post_norm
        return self._pack_residual(b[source], b["delta"], post, pre_norm, b[target])

    def _embedded(self, pre_norm: int) -> bytes:
        return self._pack_residual(0, 0, 0, pre_norm, self.buffers["x_a"])

    def _pack_residual(self, source: int, delta: int, post: int, pre: int, target: int) -> bytes:
        shape, embedding = self.weights.shape, self.weights.embedding
        return struct.pack(
            "8Qff",
            source,
            delta,
            post,
            pre,
            target,
            embedding.weights,
            embedding.scales,
            self.buffers["state"],
            shape.hidden**0.5,
            shape.eps,
        )

    def _attention(self, index: int) -> None:
        layer, shape, tuning, b = self.weights.layers[index], self.weights.shape, self.kernels.tuning, self.buffers
        per_layer = shape.kv_heads * self.capacity * _HEAD_DIM * 2
        rope = self.weights.rope_global if shape.is_global(index) else self.weights.rope_local
        arguments = struct.pack(
            "9Qiif4x",
            b["qkv"],
            layer.qk_norms,
            layer.qk_norms + 4 * _HEAD_DIM,
            rope,
            b["k"] + index * per_layer,
            b["v"] + index * per_layer,
            b["partial"],
            b["partial_ml"],
            b["state"] + 4,
            self.capacity,
            0 if shape.is_global(index) else shape.window,
            shape.eps,
        )
        grid = (tuning.splits, shape.kv_heads, 1)
        function = self.kernels.functions["attention"]
        self.driver.launch(function, grid, _ATTENTION_BLOCK, self.stream, arguments, early=tuning.early)

    def _down_shared(self) -> int:
        """Dynamic shared memory of `down`: activations as decode.cu lays them out, then partial sums."""
        shape, tuning = self.weights.shape, self.kernels.tuning
        quantised = self.kernels.format in ("int8", "int4")
        rows = 2 if quantised else 1
        plain = shape.ffn + shape.ffn // 32 * 8 if quantised else shape.ffn * 4
        activations = -(-(plain + 2 * tuning.block // 32 * 4) // 16) * 16
        groups = -(-(shape.hidden // rows) // (self.sms * tuning.blocks_per_sm))
        return activations + groups * (shape.ffn // shape.down_columns) * rows * 4
