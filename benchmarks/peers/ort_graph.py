"""A Gemma-3-shaped decoder as an ONNX graph with GroupQueryAttention: what ONNX Runtime's own tools would emit.

One token at a time, batch 1: `decode_graph`, whose outputs feed its inputs on the device, so that a captured graph
needs nothing from the host. Prompt and tokens: `genai_graph`, with the inputs that onnxruntime-genai binds. Weights
have names only (`weight_shapes`); who opens the graph hands them in.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, field
from typing import Any

import numpy as np
import onnx
from onnx import TensorProto, helper, numpy_helper

from benchmarks.gemma.session import DecodeShape

HEAD_DIM = 256
NOWHERE = "given-by-the-session.bin"
"""Location of weights that are never read from a file."""
_KIND = {"fp16": TensorProto.FLOAT16, "fp32": TensorProto.FLOAT}
_NUMPY: dict[str, type[np.generic]] = {"fp16": np.float16, "fp32": np.float32}


@dataclass(frozen=True, slots=True)
class GraphPlan:
    """How the graph is written.

    rows: matrices are (N, K) for Gemm with transB, else (K, N) for MatMul. fused_norms: the attention node norms q and
    k itself. as_inputs: weights are graph inputs instead of initializers. choose: the token is chosen in the graph.
    """

    rows: bool = True
    fused_norms: bool = True
    as_inputs: bool = False
    choose: bool = True
    kind: str = "fp16"

    @property
    def name(self) -> str:
        parts = [
            "Gemm transB" if self.rows else "MatMul",
            "norms of q and k in the attention" if self.fused_norms else "norms of q and k apart",
            "token chosen in the graph" if self.choose else "logits only",
        ]
        return ", ".join(parts + (["weights as inputs"] if self.as_inputs else []))


def weight_shapes(shape: DecodeShape, plan: GraphPlan, capacity: int) -> dict[str, tuple[int, ...]]:
    """Every weight by name. Norms are (hidden,) and (256,), cosines and sines (capacity, 128)."""
    out: dict[str, tuple[int, ...]] = {}
    for index in range(shape.layers):
        for name, rows, columns in (
            ("qkv", shape.qkv_rows, shape.hidden),
            ("o", shape.hidden, shape.attention_width),
            ("gate", shape.ffn, shape.hidden),
            ("up", shape.ffn, shape.hidden),
            ("down", shape.hidden, shape.ffn),
        ):
            out[f"layers.{index}.{name}"] = (rows, columns) if plan.rows else (columns, rows)
        for name in ("norm_in", "norm_attention", "norm_ffn", "norm_out"):
            out[f"layers.{index}.{name}"] = (shape.hidden,)
        for name in ("norm_q", "norm_k"):
            out[f"layers.{index}.{name}"] = (HEAD_DIM,)
    out["embedding"] = (shape.vocab, shape.hidden)
    if not plan.rows:
        out["head"] = (shape.hidden, shape.vocab)
    out["norm_final"] = (shape.hidden,)
    for scope in ("local", "global"):
        out[f"cos_{scope}"] = out[f"sin_{scope}"] = (capacity, HEAD_DIM // 2)
    return out


@dataclass
class _Writer:
    """Nodes and constants of one graph."""

    shape: DecodeShape
    plan: GraphPlan
    nodes: list[onnx.NodeProto] = field(default_factory=list)
    constants: dict[str, onnx.TensorProto] = field(default_factory=dict)

    def op(
        self, kind: str, inputs: Sequence[str], outputs: int | Sequence[str] = 1, domain: str = "", **more: Any
    ) -> Any:
        names = (
            [f"{kind.lower()}_{len(self.nodes)}_{i}" for i in range(outputs)]
            if isinstance(outputs, int)
            else list(outputs)
        )
        self.nodes.append(helper.make_node(kind, list(inputs), names, f"n{len(self.nodes)}", domain=domain, **more))
        return names[0] if len(names) == 1 else names

    def constant(self, values: Any, kind: Any) -> str:
        array = np.asarray(values, kind)
        name = f"const_{array.dtype}_{'_'.join(map(str, array.reshape(-1)))}_{array.ndim}".replace("-", "m")
        self.constants[name] = numpy_helper.from_array(array, name)
        return name

    def reshape(self, x: str, *sizes: int) -> str:
        return str(self.op("Reshape", [x, self.constant(sizes, np.int64)]))

    def times(self, x: str, weight: str) -> str:
        if self.plan.rows:
            return str(self.op("Gemm", [x, weight], transB=1))
        return str(self.op("MatMul", [x, weight]))

    def norm(self, x: str, weight: str) -> str:
        return str(self.op("SimplifiedLayerNormalization", [x, weight], axis=-1, epsilon=self.shape.eps, stash_type=1))

    def add_and_norm(self, x: str, residual: str, weight: str) -> tuple[str, str]:
        """(norm(x + residual), x + residual) in one kernel."""
        names = [f"normed_{len(self.nodes)}", "", "", f"sum_{len(self.nodes)}"]
        self.op(
            "SkipSimplifiedLayerNormalization",
            [x, residual, weight],
            names,
            "com.microsoft",
            epsilon=self.shape.eps,
        )
        return names[0], names[3]

    def attention(self, index: int, qkv: str, lengths: tuple[str, str], names: tuple[str, str]) -> str:
        """qkv: (tokens, width). names: of past and present, with {} for the layer."""
        s = self.shape
        q_width, kv_width = s.q_heads * HEAD_DIM, s.kv_heads * HEAD_DIM
        scope = "global" if s.is_global(index) else "local"
        layer = f"layers.{index}."
        norms: list[str] = []
        more: dict[str, Any] = {}
        if self.plan.fused_norms:
            q, k, v = self.reshape(qkv, 1, -1, s.qkv_rows), "", ""
            norms = ["", "", "", "", "", layer + "norm_q", layer + "norm_k"]
            more["qk_norm_epsilon"] = s.eps
        else:
            sizes = self.constant([q_width, kv_width, kv_width], np.int64)
            q, k, v = self.op("Split", [qkv, sizes], 3, axis=-1)
            q = self.norm(self.reshape(q, -1, HEAD_DIM), layer + "norm_q")
            k = self.norm(self.reshape(k, -1, HEAD_DIM), layer + "norm_k")
            q, k = self.reshape(q, 1, -1, q_width), self.reshape(k, 1, -1, kv_width)
            v = self.reshape(v, 1, -1, kv_width)
        past, present = names
        caches = [past.format(index, "key"), past.format(index, "value")]
        outputs = [f"attention_{index}", present.format(index, "key"), present.format(index, "value")]
        if not s.is_global(index):
            more["local_window_size"] = s.window
        self.op(
            "GroupQueryAttention",
            [q, k, v, *caches, *lengths, f"cos_{scope}", f"sin_{scope}", *norms],
            outputs,
            "com.microsoft",
            num_heads=s.q_heads,
            kv_num_heads=s.kv_heads,
            do_rotary=1,
            **more,
        )
        return self.reshape(outputs[0], -1, q_width)

    def layers(self, ids: str, lengths: tuple[str, str], names: tuple[str, str]) -> str:
        """Hidden states (tokens, hidden) after the last norm."""
        s = self.shape
        rows = self.reshape(self.op("Gather", ["embedding", ids]), -1, s.hidden)
        x = self.op("Mul", [rows, self.constant(s.hidden**0.5, _NUMPY[self.plan.kind])])
        h = self.norm(x, "layers.0.norm_in")
        for index in range(s.layers):
            layer = f"layers.{index}."
            attended = self.attention(index, self.times(h, layer + "qkv"), lengths, names)
            out = self.norm(self.times(attended, layer + "o"), layer + "norm_attention")
            h, x = self.add_and_norm(out, x, layer + "norm_ffn")
            gate = self.op("FastGelu", [self.times(h, layer + "gate")], domain="com.microsoft")
            act = self.op("Mul", [gate, self.times(h, layer + "up")])
            out = self.norm(self.times(act, layer + "down"), layer + "norm_out")
            following = f"layers.{index + 1}.norm_in" if index + 1 < s.layers else "norm_final"
            h, x = self.add_and_norm(out, x, following)
        return h

    def model(self, inputs: list[Any], outputs: list[Any], weights: dict[str, tuple[int, ...]]) -> onnx.ModelProto:
        kind = _KIND[self.plan.kind]
        stored = list(self.constants.values())
        if self.plan.as_inputs:
            inputs = [
                *inputs,
                *(helper.make_tensor_value_info(name, kind, sizes) for name, sizes in weights.items()),
            ]
        else:
            stored += [external(name, sizes, self.plan.kind, NOWHERE, 0) for name, sizes in weights.items()]
        graph = helper.make_graph(self.nodes, "decoder", inputs, outputs, stored)
        sets = [helper.make_opsetid("", 21), helper.make_opsetid("com.microsoft", 1)]
        return helper.make_model(graph, opset_imports=sets, ir_version=10)


def external(name: str, sizes: Sequence[int], kind: str, location: str, offset: int) -> onnx.TensorProto:
    """A weight that lies at `offset` in file `location`. Several may lie at one place."""
    tensor = TensorProto(name=name, data_type=_KIND[kind], dims=sizes, data_location=TensorProto.EXTERNAL)
    size = int(np.prod(sizes)) * np.dtype(_NUMPY[kind]).itemsize
    for key, value in (("location", location), ("offset", str(offset)), ("length", str(size))):
        tensor.external_data.add(key=key, value=value)
    return tensor


def caches(shape: DecodeShape, kind: str, length: int | str, name: str) -> list[Any]:
    """Value infos of every layer's keys and values (1, kv_heads, length, 256). name: {} for layer and part."""
    sizes = [1, shape.kv_heads, length, HEAD_DIM]
    names = [name.format(index, part) for index in range(shape.layers) for part in ("key", "value")]
    return [helper.make_tensor_value_info(each, _KIND[kind], sizes) for each in names]


def decode_graph(shape: DecodeShape, plan: GraphPlan, capacity: int) -> onnx.ModelProto:
    """input_ids int64 (1, 1), seqlens_k int32 (1,): tokens in the cache before this one -> logits (1, vocab).

    With `plan.choose` also next_ids (1, 1) and next_seqlens (1,), to be bound to the memory of the inputs.
    """
    w = _Writer(shape, plan)
    # The total is a CPU input: the captured graph keeps the capacity, the device reads the real length.
    lengths = ("seqlens_k", w.constant(capacity, np.int32))
    h = w.layers("input_ids", lengths, ("past.{}.{}", "present.{}.{}"))
    logits = (
        w.op("Gemm", [h, "embedding"], ["logits"], transB=1) if plan.rows else w.op("MatMul", [h, "head"], ["logits"])
    )
    info, kind = helper.make_tensor_value_info, _KIND[plan.kind]
    outputs = [info("logits", kind, [1, shape.vocab])]
    if plan.choose:
        chosen = w.op("ArgMax", [logits], ["next_ids"], axis=-1, keepdims=1)
        # Depends on the chosen token, so that no attention of this step can see the length of the next.
        zero = w.op("Mul", [w.op("Cast", [w.reshape(chosen, 1)], to=TensorProto.INT32), w.constant([0], np.int32)])
        one = w.op("Add", [zero, w.constant([1], np.int32)])
        w.op("Add", ["seqlens_k", one], ["next_seqlens"])
        outputs += [info("next_ids", TensorProto.INT64, [1, 1]), info("next_seqlens", TensorProto.INT32, [1])]
    inputs = [info("input_ids", TensorProto.INT64, [1, 1]), info("seqlens_k", TensorProto.INT32, [1])]
    inputs += caches(shape, plan.kind, capacity, "past.{}.{}")
    outputs += caches(shape, plan.kind, capacity, "present.{}.{}")
    return w.model(inputs, outputs, weight_shapes(shape, plan, capacity))


def genai_graph(shape: DecodeShape, plan: GraphPlan, capacity: int) -> onnx.ModelProto:
    """The same layers with onnxruntime-genai's inputs: input_ids and attention_mask (1, n); logits (1, 1, vocab)."""
    w = _Writer(shape, plan)
    summed = w.op("ReduceSum", ["attention_mask", w.constant([1], np.int64)], keepdims=0)
    last = w.op("Cast", [w.op("Sub", [summed, w.constant([1], np.int64)])], to=TensorProto.INT32)
    sizes = w.op("Gather", [w.op("Shape", ["attention_mask"]), w.constant(1, np.int64)], axis=0)
    total = w.op("Cast", [sizes], to=TensorProto.INT32)
    h = w.layers("input_ids", (last, total), ("past_key_values.{}.{}", "present.{}.{}"))
    h = w.op("Gather", [h, w.constant([-1], np.int64)], axis=0)
    logits = w.op("Gemm", [h, "embedding"], transB=1) if plan.rows else w.op("MatMul", [h, "head"])
    w.op("Reshape", [logits, w.constant([1, 1, shape.vocab], np.int64)], ["logits"])
    info, kind = helper.make_tensor_value_info, _KIND[plan.kind]
    inputs = [
        info("input_ids", TensorProto.INT64, ["batch", "tokens"]),
        info("attention_mask", TensorProto.INT64, ["batch", "total"]),
        *caches(shape, plan.kind, "past", "past_key_values.{}.{}"),
    ]
    outputs = [info("logits", kind, [1, 1, shape.vocab]), *caches(shape, plan.kind, "all", "present.{}.{}")]
    return w.model(inputs, outputs, weight_shapes(shape, plan, capacity))
