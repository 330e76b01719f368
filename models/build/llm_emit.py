"""A small writer of ONNX graphs whose weights go straight to one file beside the graph, page-aligned for mapping."""

from __future__ import annotations

import json
from pathlib import Path
from types import TracebackType
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.build.llm_quant import Packed

WEIGHT_INDEX = "weights.json"
"""Where each tensor lies in the file: run time reads it without the `onnx` package (models/engines/placement.py)."""
ALIGN_BYTES = 4096
INLINE_BYTES = 1024
"""Tensors below this stay in the graph file: constant folding needs their values."""
MS = "com.microsoft"
OPSET = 21
ACCURACY_INT8 = 4
"""MatMulNBits accuracy level: activations rounded to int8 per block, sums in int32 (VNNI)."""


class WeightFile:
    """The external data file and its index. A context manager; `add` appends one tensor, once per name, and describes
    it."""

    def __init__(self, path: Path) -> None:
        self.path = path
        self._file: Any = None
        self._written: dict[str, TensorProto] = {}
        self._index: dict[str, dict[str, object]] = {}

    def __enter__(self) -> WeightFile:
        self._file = self.path.open("wb")
        return self

    def __exit__(
        self, kind: type[BaseException] | None, value: BaseException | None, trace: TracebackType | None
    ) -> None:
        self._file.close()
        index = {"file": self.path.name, "tensors": self._index}
        (self.path.parent / WEIGHT_INDEX).write_text(json.dumps(index) + "\n", encoding="utf-8")

    def add(self, name: str, values: NDArray[Any]) -> TensorProto:
        if name in self._written:
            return self._written[name]
        values = np.ascontiguousarray(values)
        if values.nbytes < INLINE_BYTES:
            return onnx.numpy_helper.from_array(values, name)
        self._file.write(b"\0" * (-self._file.tell() % ALIGN_BYTES))
        start = self._file.tell()
        self._file.write(values.data)
        tensor = TensorProto(name=name, data_type=helper.np_dtype_to_tensor_dtype(values.dtype), dims=values.shape)
        tensor.data_location = TensorProto.EXTERNAL
        for key, value in (("location", self.path.name), ("offset", start), ("length", values.nbytes)):
            tensor.external_data.add(key=key, value=str(value))
        self._written[name] = tensor
        self._index[name] = {"dtype": values.dtype.name, "shape": list(values.shape), "offset": start}
        return tensor


class Emitter:
    """Collects the nodes and initializers of one graph (or one If branch, which shares its parent's initializers)."""

    def __init__(self, weights: WeightFile, parent: Emitter | None = None, prefix: str = "") -> None:
        self.weights = weights
        self.nodes: list[onnx.NodeProto] = []
        self.initializers: list[TensorProto] = parent.initializers if parent else []
        self._known: set[str] = parent._known if parent else set()
        self._prefix = prefix
        self._count = 0

    def branch(self, prefix: str) -> Emitter:
        """An emitter for a subgraph; names start with `prefix`."""
        return Emitter(self.weights, self, prefix)

    def weight(self, name: str, values: NDArray[Any]) -> str:
        """Store `values` once under `name` and return the name."""
        if name not in self._known:
            self._known.add(name)
            self.initializers.append(self.weights.add(name, values))
        return name

    def ints(self, *values: int) -> str:
        """A 1-D int64 constant."""
        return self.weight("i_" + "_".join(str(v) for v in values), np.array(values, np.int64))

    def op(self, kind: str, *inputs: str, domain: str = "", outputs: int = 1, name: str = "", **attributes: Any) -> Any:
        """Add one node; returns its output name, or a list of them when `outputs` > 1."""
        self._count += 1
        label = name or f"{self._prefix}{kind.lower()}_{self._count}"
        names = [label if i == 0 else f"{label}.{i}" for i in range(outputs)]
        self.nodes.append(helper.make_node(kind, inputs, names, name=label, domain=domain, **attributes))
        return names[0] if outputs == 1 else names

    def packed_matmul(self, x: str, packed: Packed, name: str, bias: str = "") -> str:
        """x (..., k) times a packed matrix (n, k) -> (..., n), plus `bias` (n,) when given."""
        n, k = packed.shape
        inputs = [x, self.weight(name + ".codes", packed.codes), self.weight(name + ".scales", packed.scales)]
        if bias:
            inputs += ["", "", bias]
        out: str = self.op(
            "MatMulNBits",
            *inputs,
            domain=MS,
            K=k,
            N=n,
            bits=packed.bits,
            block_size=packed.block,
            accuracy_level=ACCURACY_INT8,
        )
        if packed.offsets is None:
            return out
        offset = self.op("MatMul", self._block_sums(x, packed.block), self.weight(name + ".offsets", packed.offsets.T))
        added: str = self.op("Add", out, offset)
        return added

    def _block_sums(self, x: str, block: int) -> str:
        """Sums of x (1, T, k) over each block: (1, T, blocks)."""
        blocks = self.op("Reshape", x, self.ints(0, 0, -1, block))
        sums: str = self.op("ReduceSum", blocks, self.ints(3), keepdims=0)
        return sums

    def model(
        self, name: str, inputs: list[onnx.ValueInfoProto], outputs: list[onnx.ValueInfoProto]
    ) -> onnx.ModelProto:
        """What was emitted so far as one model."""
        graph = helper.make_graph(self.nodes, name, inputs, outputs, self.initializers)
        opsets = [helper.make_opsetid("", OPSET), helper.make_opsetid(MS, 1)]
        return helper.make_model(graph, opset_imports=opsets, ir_version=10, producer_name="cockpit")
