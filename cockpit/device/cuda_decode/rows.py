"""Decode of one token for up to eight texts at once with the project's own kernels (kernels/decode_rows.cu).

A `RowsDecoder` is one lane's decoder of one model. Weights, caches and the rows it writes are device addresses that it
neither owns nor copies: those that ONNX Runtime's graphs of the same model use. One captured graph per number of texts
computes one token of each; what the host writes before is 16 bytes a text (token, position, slot).
"""

from __future__ import annotations

import struct
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from functools import partial
from typing import Any

from cockpit.device.cuda.driver import BoundDriver, compile_cubin
from cockpit.device.cuda.gate import DeviceGate
from cockpit.device.cuda.kernel_store import KernelSource
from models.errors import DeviceUnavailable

TEXTS = 8
"""Most texts in one run, and the rows of every buffer between two kernels."""
SIZES = (1, 2, 4, 8)
"""Numbers of texts whose run is captured; a run of fewer has empty rows."""
_WARPS = 8
_BLOCK = 32 * _WARPS
_ATTENTION_BLOCK = 128
_SPLITS = 16
_SHARED_LIMIT_BYTES = 112 * 1024
"""Shared memory of a block, so that two fit on a multiprocessor of 227 KiB."""
_HELD_REGISTERS = 64
"""Of a thread, for the weights of one strip: the rest of 128 is for what it computes."""
NAMES = ("first_qkv", "qkv", "attention", "o_proj", "gate_up", "down", "lm_head")


@dataclass(frozen=True, slots=True)
class RowsShape:
    """Sizes of the model. qkv_bias: whether queries, keys and values have one."""

    hidden: int
    layers: int
    q_heads: int
    kv_heads: int
    head_dim: int
    ffn: int
    vocab: int
    qkv_bias: bool
    eps: float

    @property
    def attention_width(self) -> int:
        return self.q_heads * self.head_dim

    @property
    def qkv_width(self) -> int:
        return (self.q_heads + 2 * self.kv_heads) * self.head_dim

    @property
    def weight_bytes(self) -> int:
        """Bytes of fp16 matrices that a token reads: every layer's and the LM head's."""
        layer = self.hidden * (self.qkv_width + self.attention_width + 3 * self.ffn)
        return 2 * (self.layers * layer + self.vocab * self.hidden)

    def kv_bytes(self, position: int) -> int:
        """Bytes of keys and values that a text's token at `position` reads."""
        return 4 * self.layers * self.kv_heads * self.head_dim * (position + 1)


@dataclass(frozen=True, slots=True)
class RowsTuning:
    """Columns that a thread loads at once in each matrix (2, 4 or 8); whether gate's strip waits in registers, where
    they hold it; blocks that share one strip of `down`; pieces of the residual stream, and of attention's splits, that
    a warp requests together; positions below which no further block joins a text's attention; 16-byte loads that a
    thread of the LM head has in flight at most; whether kernels start before their predecessor ends."""

    qkv: int = 4
    o: int = 2
    gate: int = 4
    gate_held: bool = True
    down: int = 2
    down_parts: int = 4
    norm_together: int = 2
    merge_together: int = 2
    split_least: int = 256
    head_loads: int = 7
    early: bool = True


@dataclass(frozen=True, slots=True)
class RowsLayer:
    """Addresses of one layer's weights, fp16: matrices (k, n) in row-major order. qkv_bias: 0 where there is none."""

    attention_norm: int
    qkv: int
    qkv_bias: int
    o: int
    ffn_norm: int
    gate_up: int
    down: int


@dataclass(frozen=True, slots=True)
class RowsWeights:
    """Addresses of one model's weights, fp16. embedding, table: (vocab, hidden), the same where they are tied.
    cosine, sine: (positions, head_dim / 2)."""

    shape: RowsShape
    layers: tuple[RowsLayer, ...]
    embedding: int
    table: int
    final_norm: int
    cosine: int
    sine: int
    positions: int


@dataclass(frozen=True, slots=True)
class KvPlaces:
    """Where the caches lie: slot 0's keys of layer 0 at `address`, (kv_heads, capacity, head_dim) fp16; from there on,
    how many bytes further the next layer's keys, the same layer's values and the next slot's keys are."""

    address: int
    layer_bytes: int
    value_bytes: int
    slot_bytes: int
    capacity: int


@dataclass(frozen=True, slots=True)
class RowsOutput:
    """Where a run leaves what it computed. hidden: (slots, hidden) fp16, each text's row at its slot; in the order of
    the run, logits: (8, vocab) fp32, and best: (8,) int64."""

    hidden: int
    logits: int
    best: int


@dataclass(frozen=True, slots=True)
class RowsKernels:
    """The compiled kernels of one model shape and tuning."""

    shape: RowsShape
    tuning: RowsTuning
    functions: dict[str, Any]


def rows_unserved(shape: RowsShape, tuning: RowsTuning | None = None) -> str:
    """Why the kernels do not serve this shape; empty when they do."""
    t = tuning or RowsTuning()
    reasons = (
        (shape.head_dim in (64, 128), f"head_dim {shape.head_dim} is neither 64 nor 128"),
        (shape.q_heads % shape.kv_heads == 0, f"{shape.q_heads} query heads over {shape.kv_heads} KV heads"),
        (shape.q_heads <= 8 * shape.kv_heads, f"{shape.q_heads // shape.kv_heads} query heads share a KV head, not 8"),
        (shape.hidden % 32 == 0, f"hidden {shape.hidden} is no multiple of 32"),
        (shape.hidden % (8 * max(t.o, t.down)) == 0, f"hidden {shape.hidden} is cut into no whole strips"),
        (shape.qkv_width % (8 * t.qkv) == 0, f"{shape.qkv_width} columns are cut into no whole strips"),
        (shape.ffn % (8 * t.gate) == 0, f"ffn {shape.ffn} is cut into no whole strips"),
        (shape.ffn % (16 * t.down_parts) == 0, f"ffn {shape.ffn} is cut into no whole parts"),
        (shape.vocab % 8 == 0, f"vocabulary {shape.vocab} is no multiple of 8"),
        (
            max(_shared_bytes(shape, t, name, TEXTS) for name in NAMES) <= _SHARED_LIMIT_BYTES,
            f"hidden {shape.hidden} or ffn {shape.ffn} do not fit in shared memory",
        ),
    )
    return "; ".join(said for fits, said in reasons if not fits)


def rows_source(shape: RowsShape, tuning: RowsTuning | None = None) -> KernelSource:
    """What is compiled for one model shape. Raises DeviceUnavailable for a shape the kernels do not serve."""
    t = tuning or RowsTuning()
    if said := rows_unserved(shape, t):
        raise DeviceUnavailable(f"the decode kernels do not serve this model: {said}; ONNX Runtime does")
    loads = shape.hidden // 32
    defines = {
        "HIDDEN": shape.hidden,
        "FFN": shape.ffn,
        "VOCAB": shape.vocab,
        "Q_HEADS": shape.q_heads,
        "KV_HEADS": shape.kv_heads,
        "HEAD_DIM": shape.head_dim,
        "QKV_BIAS": int(shape.qkv_bias),
        "QKV_C": t.qkv,
        "O_C": t.o,
        "GATE_C": t.gate,
        "GATE_HELD": int(_gate_held(shape, t)),
        "NORM_TOGETHER": t.norm_together,
        "MERGE_TOGETHER": t.merge_together,
        "DOWN_C": t.down,
        "DOWN_PARTS": t.down_parts,
        "SPLIT_LEAST": t.split_least,
        "HEAD_LOADS": next(count for count in range(t.head_loads, 0, -1) if loads % count == 0),
    }
    return KernelSource("decode_rows.cu", tuple(f"{name}={value}" for name, value in defines.items()))


def load_rows_kernels(driver: BoundDriver, image: bytes, shape: RowsShape, tuning: RowsTuning) -> RowsKernels:
    """Load the cubin that `rows_source` of the same shape and tuning was compiled to."""
    library = driver.library(image)
    functions = {name: driver.kernel(library, name) for name in NAMES}
    for name, function in functions.items():
        driver.allow_shared(function, _shared_bytes(shape, tuning, name, TEXTS))
    return RowsKernels(shape, tuning, functions)


def build_rows_kernels(
    driver: BoundDriver, capability: tuple[int, int], shape: RowsShape, tuning: RowsTuning
) -> RowsKernels:
    """Compile here and now, and load: for benchmarks. Serving loads what `cockpit kernels build` compiled."""
    source = rows_source(shape, tuning)
    return load_rows_kernels(driver, compile_cubin(source.text, capability, source.defines), shape, tuning)


def _pitch(columns: int) -> int:
    return -(-columns // 32) * 32 + 16


def _gate_held(shape: RowsShape, tuning: RowsTuning) -> bool:
    steps = -(-shape.hidden // (16 * _WARPS))
    return tuning.gate_held and steps * 2 * tuning.gate <= _HELD_REGISTERS


def _shared_bytes(shape: RowsShape, tuning: RowsTuning, name: str, texts: int) -> int:
    """Dynamic shared memory as kernels/decode_rows.cu lays it out: strips of weights, activations, sums."""
    if name == "attention":
        return 0
    gate_strips = shape.hidden * 16 * tuning.gate * (1 if _gate_held(shape, tuning) else 2)
    width, columns, strips = {
        "first_qkv": (shape.hidden, 8 * tuning.qkv, 0),
        "qkv": (shape.hidden, 8 * tuning.qkv, 0),
        "o_proj": (shape.attention_width, 8 * tuning.o, 0),
        "gate_up": (shape.hidden, 16 * tuning.gate, gate_strips),
        "down": (shape.ffn // tuning.down_parts, 8 * tuning.down, shape.ffn // tuning.down_parts * 16 * tuning.down),
        "lm_head": (shape.hidden, 0, 0),
    }[name]
    return strips + 4 * texts * (_pitch(width) + _WARPS * columns)


@dataclass(slots=True)
class RowsDecoder:
    """One lane's decoder. Not thread-safe; its graphs belong to the lane's stream.

    boundary_layers: a gate before every so many layers (0: none inside). early: kernels start before their predecessor
    ends.
    """

    driver: BoundDriver
    kernels: RowsKernels
    weights: RowsWeights
    kv: KvPlaces
    output: RowsOutput
    stream: int
    sms: int
    gate: DeviceGate | None = None
    boundary_layers: int = 0
    buffers: dict[str, int] = field(default_factory=dict)
    graphs: dict[int, Any] = field(default_factory=dict)

    # --- life ------------------------------------------------------------------------------------------------------
    @staticmethod
    def scratch_bytes(shape: RowsShape, tuning: RowsTuning) -> dict[str, int]:
        """Buffers between the kernels, a few hundred KiB."""
        return {
            "state": 16 * TEXTS,
            "x_a": 4 * TEXTS * shape.hidden,
            "x_b": 4 * TEXTS * shape.hidden,
            "qkv": 4 * TEXTS * shape.qkv_width,
            "delta": 4 * TEXTS * shape.hidden * tuning.down_parts,
            "act": 4 * TEXTS * shape.ffn,
            "partial": 4 * TEXTS * shape.q_heads * _SPLITS * shape.head_dim,
            "partial_ml": 8 * TEXTS * shape.q_heads * _SPLITS,
            "best": 8 * TEXTS + 16,
        }

    def open(self, sizes: Sequence[int] = SIZES, *, allocate: Callable[[int], int] | None = None) -> RowsDecoder:
        """Allocate and capture. Call while nothing urgent runs. Raises ValueError: more positions than RoPE has.

        allocate: where the buffers come from when somebody else frees them; by default `close` does.
        """
        if self.kv.capacity > self.weights.positions:
            raise ValueError(f"a cache of {self.kv.capacity} needs weights loaded for as many positions")
        for name, size in self.scratch_bytes(self.weights.shape, self.kernels.tuning).items():
            self.buffers[name] = (allocate or self.driver.allocate)(size)
            self.driver.zero(self.buffers[name], size, self.stream)
        for texts in sizes:
            self.graphs[texts] = self.driver.capture(self.stream, partial(self.launch, texts))
        return self

    def close(self) -> None:
        """Free what `open` allocated."""
        for address in self.buffers.values():
            self.driver.free(address)
        self.buffers.clear()
        self.graphs.clear()

    # --- use -------------------------------------------------------------------------------------------------------
    def seek(self, rows: Sequence[tuple[int, int, int]]) -> None:
        """(token, position, slot) of every text of the next replay; a position below 0 is an empty row."""
        data = b"".join(struct.pack("iiii", *row, 0) for row in rows)
        self.driver.write(self.buffers["state"], data, self.stream)

    def replay(self, texts: int) -> None:
        """Queue one token of each of `texts` rows, a captured size. The lane's stream must be idle of other writers."""
        self.driver.replay(self.graphs[texts], self.stream)

    # --- what a token is -------------------------------------------------------------------------------------------
    def launch(self, texts: int) -> None:
        """Launch one token's kernels on the lane's stream (captured by `open`)."""
        after_gate = True
        for layer in range(self.weights.shape.layers):
            if self.gate and self.boundary_layers and layer % self.boundary_layers == 0:
                self.gate.launch(self.stream)
                after_gate = True
            self._layer(layer, texts, first_early=not after_gate)
            after_gate = False
        self._lm_head(texts)

    def _layer(self, index: int, texts: int, first_early: bool) -> None:
        layer, shape, tuning, b = self.weights.layers[index], self.weights.shape, self.kernels.tuning, self.buffers
        before = self._residual("x_b", layer.attention_norm, "x_a", texts)
        grid = (shape.qkv_width // (8 * tuning.qkv), 1, 1)
        name = "qkv" if index else "first_qkv"
        self._launch(name, grid, first_early, texts, _pack(layer.qkv), _pack(layer.qkv_bias), before, _pack(b["qkv"]))
        self._attention(index, texts)
        partial = struct.pack("QQ", b["partial"], b["partial_ml"])
        grid = (shape.hidden // (8 * tuning.o), 1, 1)
        rows = struct.pack("i", texts)
        self._launch("o_proj", grid, True, texts, _pack(layer.o), partial, _pack(b["state"]), rows, _pack(b["delta"]))
        between = self._residual("x_a", layer.ffn_norm, "x_b", texts)
        grid = (shape.ffn // (8 * tuning.gate), 1, 1)
        self._launch("gate_up", grid, True, texts, _pack(layer.gate_up), between, _pack(b["act"]))
        grid = (shape.hidden // (8 * tuning.down), tuning.down_parts, 1)
        self._launch("down", grid, True, texts, _pack(layer.down), _pack(b["act"]), rows, _pack(b["delta"]))

    def _lm_head(self, texts: int) -> None:
        b, out = self.buffers, self.output
        residual = self._residual("x_b", self.weights.final_norm, "", texts)
        choice = struct.pack("5Q", b["best"], b["best"] + 8 * TEXTS, out.best, out.logits, out.hidden)
        self._launch("lm_head", (2 * self.sms, 1, 1), True, texts, _pack(self.weights.table), residual, choice)

    def _attention(self, index: int, texts: int) -> None:
        shape, kv, b = self.weights.shape, self.kv, self.buffers
        keys = kv.address + index * kv.layer_bytes
        arguments = struct.pack(
            "3Q2Q1Q2Q1Qif",
            b["qkv"],
            self.weights.cosine,
            self.weights.sine,
            keys,
            keys + kv.value_bytes,
            kv.slot_bytes,
            b["partial"],
            b["partial_ml"],
            b["state"],
            kv.capacity,
            shape.head_dim**-0.5 * 1.4426950408889634,
        )
        grid = (_SPLITS, shape.kv_heads, texts)
        function = self.kernels.functions["attention"]
        early = self.kernels.tuning.early
        self.driver.launch(function, grid, _ATTENTION_BLOCK, self.stream, arguments, early=early)

    def _residual(self, source: str, norm: int, target: str, texts: int) -> bytes:
        b = self.buffers
        return struct.pack(
            "6Qif",
            b[source],
            b["delta"],
            b[target] if target else 0,
            norm,
            self.weights.embedding,
            b["state"],
            texts,
            self.weights.shape.eps,
        )

    def _launch(self, name: str, grid: tuple[int, int, int], early: bool, texts: int, *arguments: bytes) -> None:
        self.driver.launch(
            self.kernels.functions[name],
            grid,
            _BLOCK,
            self.stream,
            *arguments,
            shared_bytes=_shared_bytes(self.weights.shape, self.kernels.tuning, name, texts),
            early=early and self.kernels.tuning.early,
        )


def _pack(address: int) -> bytes:
    return struct.pack("Q", address)
