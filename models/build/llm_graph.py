"""The decoder as two ONNX graphs for ONNX Runtime: the body with shared KV buffers, and the head that chooses a token.

Body (model.onnx). Inputs: input_ids int64 (1, T); rows int64 (R,): positions within the chunk to return;
  seqlens_k int32 (1,): tokens in the cache after this run, less one; total_len int32 (1,): the same, not less one;
  past_key.i / past_value.i float32 (1, kv_heads, capacity, head_dim): bind one buffer to them and to present_*.i.
  Output: hidden float32 (R, hidden), normalised. Bodies for devices may be float16 instead: llm_device.py.
Head (head.onnx). Inputs: hidden; mode int64 (1,): a MODE_ constant; allowed int64 (A,): ids, see the modes.
  Outputs: ids int64 (R, K), values float32 (R, K): best first, exact logits, but see MODE_SCORE and MODE_FULL.
"""

from __future__ import annotations

from dataclasses import dataclass
from pathlib import Path
from typing import Any, Protocol

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.build.llm_emit import MS, Emitter
from models.build.llm_gguf import F32, GEMMA_LOCAL_THETA, Checkpoint, DecoderShape
from models.build.llm_quant import Packed


@dataclass(frozen=True, slots=True)
class Table:
    """Vocabulary rows as int8 codes (vocab, blocks, block) with scales (vocab, blocks), or whole as (vocab, hidden)."""

    rows: np.ndarray[tuple[int, ...], np.dtype[np.generic]]
    scales: F32 | None


class Weights(Protocol):
    """Where the graph gets its matrices from: full precision or quantised, see models/build/llm.py."""

    def matrix(self, names: list[str]) -> Packed | NDArray[Any]:
        """The named tensors stacked: packed, or (n, k) in the graph's own type."""
        ...

    def embedding(self) -> Table: ...

    def head(self) -> tuple[Packed | None, Table]:
        """The quick head (None: multiply with the table itself) and the table of exact rows."""
        ...


class DecoderGraph:
    """Emits the body of one decoder. dtype: of everything between the ids and `hidden`, caches included."""

    def __init__(
        self,
        checkpoint: Checkpoint,
        shape: DecoderShape,
        weights: Weights,
        emitter: Emitter,
        dtype: type[np.floating[Any]] = np.float32,
    ) -> None:
        self.checkpoint = checkpoint
        self.shape = shape
        self.weights = weights
        self.e = emitter
        self.dtype = dtype

    def body(self) -> onnx.ModelProto:
        """The model, read top to bottom."""
        s = self.shape
        table = self.weights.embedding()
        hidden = lookup(self.e, table, "input_ids", "same" if s.tied else "embed", lead=[0, 0], width=s.hidden)
        if s.gemma:
            hidden = self.e.op("Mul", hidden, self.e.weight("embed_scale", np.array([s.hidden**0.5], self.dtype)))
        residual = ""
        for layer in range(s.layers):
            normed, residual = self._add_norm(hidden, residual, f"blk.{layer}.attn_norm.weight")
            mixed = self._attention(normed, layer)
            if s.gemma:
                mixed = self._norm(mixed, f"blk.{layer}.post_attention_norm.weight")
            normed, residual = self._add_norm(mixed, residual, f"blk.{layer}.ffn_norm.weight")
            hidden = self._feed_forward(normed, layer)
            if s.gemma:
                hidden = self._norm(hidden, f"blk.{layer}.post_ffw_norm.weight")
        flat = self.e.op("Reshape", self.e.op("Add", hidden, residual), self.e.ints(-1, s.hidden))
        last = self.e.op("Gather", flat, "rows", axis=0)
        self.e.op("Identity", self._norm(last, "output_norm.weight"), name="hidden")
        return self._body_model()

    # --- layers ---------------------------------------------------------------------------------------------------
    def _vector(self, name: str) -> str:
        return self.e.weight(name, self.checkpoint.values(name).astype(self.dtype, copy=False))

    def _norm(self, x: str, name: str) -> str:
        gamma = self._vector(name)
        out: str = self.e.op("SimplifiedLayerNormalization", x, gamma, axis=-1, epsilon=self.shape.rms_epsilon)
        return out

    def _add_norm(self, x: str, residual: str, name: str) -> tuple[str, str]:
        """(norm(x + residual), x + residual); without a residual yet, x itself is it."""
        if not residual:
            return self._norm(x, name), x
        gamma = self._vector(name)
        out = self.e.op(
            "SkipSimplifiedLayerNormalization", x, residual, gamma, domain=MS, outputs=4, epsilon=self.shape.rms_epsilon
        )
        self.e.nodes[-1].output[1] = self.e.nodes[-1].output[2] = ""
        return out[0], out[3]

    def _linear(self, x: str, names: list[str], bias: str = "") -> str:
        matrix = self.weights.matrix(names)
        label = "+".join(names)
        if isinstance(matrix, Packed):
            return self.e.packed_matmul(x, matrix, label, bias)
        out: str = self.e.op("MatMul", x, self.e.weight(label, matrix.T))
        return self.e.op("Add", out, bias) if bias else out

    def _rope(self, layer: int) -> tuple[str, str]:
        s = self.shape
        theta = GEMMA_LOCAL_THETA if s.sliding(layer) else s.rope_theta
        inverse = 1.0 / theta ** (np.arange(0, s.head_dim, 2, dtype=np.float32) / np.float32(s.head_dim))
        if self.checkpoint.has("rope_freqs.weight"):  # Llama 3's longer context
            inverse = inverse / self.checkpoint.values("rope_freqs.weight")
        angles = np.outer(np.arange(s.context, dtype=np.float32), inverse.astype(np.float32))
        kind = f"{theta:.0f}"
        cos, sin = (wave(angles).astype(self.dtype, copy=False) for wave in (np.cos, np.sin))
        return self.e.weight("cos_" + kind, cos), self.e.weight("sin_" + kind, sin)

    def _attention(self, x: str, layer: int) -> str:
        s, blk = self.shape, f"blk.{layer}."
        names = [f"{blk}attn_{p}.weight" for p in "qkv"]
        bias = ""
        if self.checkpoint.has(f"{blk}attn_q.bias"):
            values = np.concatenate([self.checkpoint.values(f"{blk}attn_{p}.bias") for p in "qkv"])
            bias = self.e.weight(f"{blk}attn_qkv.bias", values.astype(self.dtype, copy=False))
        query, key, value = self._linear(x, names, bias), "", ""
        if self.checkpoint.has(f"{blk}attn_q_norm.weight"):  # Gemma 3, Qwen3
            sizes = self.e.ints(s.heads * s.head_dim, s.kv_heads * s.head_dim, s.kv_heads * s.head_dim)
            query, key, value = self.e.op("Split", query, sizes, outputs=3, axis=-1)
            query = self._head_norm(query, s.heads, f"{blk}attn_q_norm.weight")
            key = self._head_norm(key, s.kv_heads, f"{blk}attn_k_norm.weight")
        attention = helper.make_node(
            "GroupQueryAttention",
            [
                query,
                key,
                value,
                f"past_key.{layer}",
                f"past_value.{layer}",
                "seqlens_k",
                "total_len",
                *self._rope(layer),
            ],
            [f"attention.{layer}", f"present_key.{layer}", f"present_value.{layer}"],
            name=f"attention.{layer}",
            domain=MS,
            num_heads=s.heads,
            kv_num_heads=s.kv_heads,
            do_rotary=1,
            local_window_size=s.window if s.sliding(layer) else -1,
        )
        self.e.nodes.append(attention)
        return self._linear(f"attention.{layer}", [f"{blk}attn_output.weight"])

    def _head_norm(self, x: str, heads: int, name: str) -> str:
        width = self.shape.head_dim
        split = self.e.op("Reshape", x, self.e.ints(0, -1, heads, width))
        out: str = self.e.op("Reshape", self._norm(split, name), self.e.ints(0, -1, heads * width))
        return out

    def _feed_forward(self, x: str, layer: int) -> str:
        blk = f"blk.{layer}."
        both = self._linear(x, [f"{blk}ffn_gate.weight", f"{blk}ffn_up.weight"])
        gate, up = self.e.op("Split", both, outputs=2, axis=-1, num_outputs=2)
        if self.shape.gemma:
            gate = self.e.op("Gelu", gate, approximate="tanh")
        else:
            gate = self.e.op("QuickGelu", gate, domain=MS, alpha=1.0)  # x * sigmoid(x), in one kernel
        return self._linear(self.e.op("Mul", gate, up), [f"{blk}ffn_down.weight"])

    # --- the file -------------------------------------------------------------------------------------------------
    def _body_model(self) -> onnx.ModelProto:
        s = self.shape
        cache = ["texts", s.kv_heads, "capacity", s.head_dim]
        info, kind = helper.make_tensor_value_info, helper.np_dtype_to_tensor_dtype(np.dtype(self.dtype))
        inputs = [
            info("input_ids", TensorProto.INT64, ["texts", "tokens"]),
            info("rows", TensorProto.INT64, ["wanted"]),
            info("seqlens_k", TensorProto.INT32, ["texts"]),
            info("total_len", TensorProto.INT32, [1]),
        ]
        outputs = [info("hidden", kind, ["wanted", s.hidden])]
        for layer in range(s.layers):
            for part in ("key", "value"):
                inputs.append(info(f"past_{part}.{layer}", kind, cache))
                outputs.append(info(f"present_{part}.{layer}", kind, cache))
        return self.e.model(s.architecture, inputs, outputs)


def lookup(e: Emitter, table: Table, ids: str, name: str, *, lead: list[int], width: int) -> str:
    """Rows of a vocabulary table as (*lead, width), float32 where the table is packed."""
    rows = e.weight(name, table.rows)
    if table.scales is None:
        out: str = e.op("Gather", rows, ids)
        return out
    codes = e.op("Cast", e.op("Gather", rows, ids), to=TensorProto.FLOAT)
    scales = e.op("Gather", e.weight(name + ".scales", table.scales[..., None]), ids)
    out = e.op("Reshape", e.op("Mul", codes, scales), e.ints(*lead, width))
    return out


def save(model: onnx.ModelProto, path: Path) -> None:
    """Write the graph file; its weights are already beside it."""
    path.write_bytes(model.SerializeToString())
