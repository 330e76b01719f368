"""What both kinds of Whisper graphs are made of: nodes, weights, linear layers in the build's precision."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.build.ct2 import Ct2Model
from models.errors import InputError

BLOCK = 32
OPSETS = (("", 21), ("com.microsoft", 1))
Precision = Literal["int8", "f32", "f16", "f32-device"]


class Graph:
    """Collects nodes and weights of one graph. Every emitting method returns the name of the value it made."""

    def __init__(self, model: Ct2Model, precision: Precision) -> None:
        self.model = model
        self.precision = precision
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}

    @property
    def on_device(self) -> bool:
        """True for the graphs of a GPU lane (and their float32 twins): PCM in, fixed shapes, whole 30 s windows."""
        return self.precision in {"f16", "f32-device"}

    @property
    def real(self) -> type[np.floating[Any]]:
        """The type of the transformer's weights and activations."""
        return np.float16 if self.precision == "f16" else np.float32

    @property
    def onnx_real(self) -> int:
        return int(TensorProto.FLOAT16 if self.precision == "f16" else TensorProto.FLOAT)

    def weight(self, name: str, array: NDArray[Any]) -> str:
        """An initializer of the array's own type, kept once per name."""
        if name not in self.weights:
            self.weights[name] = numpy_helper.from_array(np.array(array, order="C"), name)
        return name

    def reals(self, name: str, array: NDArray[np.float32]) -> str:
        """A weight of the transformer, in its type."""
        return self.weight(name, array.astype(self.real))

    def ints(self, *values: int) -> str:
        return self.weight("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def op(
        self, kind: str, inputs: Sequence[str], out: str | Sequence[str], domain: str = "", **attributes: Any
    ) -> str:
        outputs = [out] if isinstance(out, str) else list(out)
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, outputs[0], domain=domain, **attributes))
        return outputs[0]

    def norm(self, x: str, source: str, out: str) -> str:
        gamma, beta = (self.reals(f"{source}/{part}", self.model.f32(f"{source}/{part}")) for part in ("gamma", "beta"))
        return self.op("LayerNormalization", [x, gamma, beta], out, axis=-1, epsilon=1e-5)

    def linear(self, x: str, name: str, weight: NDArray[np.float32], bias: NDArray[np.float32] | None, out: str) -> str:
        """x @ weight.T + bias with weight (n, k)."""
        extra = [] if bias is None else [self.reals(f"{name}/bias", bias)]
        if self.precision != "int8":
            product = self.op(
                "MatMul", [x, self.reals(f"{name}/weight", weight.T)], out if not extra else f"{out}_product"
            )
            return self.op("Add", [product, *extra], out) if extra else product
        quantised, scales = quantise_blocks(weight, BLOCK)
        inputs = [x, self.weight(f"{name}/q", quantised), self.weight(f"{name}/scale", scales)]
        if extra:
            inputs += ["", "", *extra]
        rows, columns = weight.shape
        return self.op(
            "MatMulNBits", inputs, out, "com.microsoft", K=columns, N=rows, bits=8, block_size=BLOCK, accuracy_level=4
        )

    def layer_linear(self, x: str, source: str, out: str) -> str:
        return self.linear(x, source, self.model.f32(f"{source}/weight"), self.model.f32(f"{source}/bias"), out)

    def feed_forward(self, x: str, source: str, at: str) -> str:
        y = self.norm(x, f"{source}/layer_norm", f"{at}/norm")
        y = self.layer_linear(y, f"{source}/linear_0", f"{at}/up")
        y = self.op("Gelu", [y], f"{at}/gelu", approximate="none")
        y = self.layer_linear(y, f"{source}/linear_1", f"{at}/down")
        return self.op("Add", [x, y], f"{at}/out")

    def save(self, path: Path, inputs: Sequence[Any], outputs: Sequence[Any]) -> None:
        graph = helper.make_graph(self.nodes, path.stem, list(inputs), list(outputs), list(self.weights.values()))
        made = helper.make_model(graph, opset_imports=[helper.make_opsetid(*opset) for opset in OPSETS], ir_version=10)
        onnx.save(made, path)


def quantise_blocks(weight: NDArray[np.float32], block: int) -> tuple[NDArray[np.uint8], NDArray[np.float32]]:
    """Symmetric 8 bits along the last axis.

    weight (n, k) -> uint8 (n, k/block, block) around 128, float32 scales (n * k/block,).
    """
    rows, columns = weight.shape
    if columns % block:
        raise InputError(f"cannot quantise {columns} columns in blocks of {block}")
    blocks = weight.reshape(rows, columns // block, block)
    scales = np.abs(blocks).max(axis=-1) / 127.0
    steps = np.where(scales == 0.0, 1.0, scales)[..., None]
    return (np.rint(blocks / steps) + 128.0).astype(np.uint8), scales.astype(np.float32).reshape(-1)
