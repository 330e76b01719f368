"""One-dimensional convolutions written as matrix products.

On CUDA, ONNX Runtime plans a Conv anew whenever its input is longer or shorter than the last time, which costs more
than the convolution itself; matrix products take any length. The results differ by rounding only.
"""

from __future__ import annotations

from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import GraphProto, NodeProto, helper, numpy_helper

_END = np.iinfo(np.int64).max


def unroll_convolutions(graph: GraphProto) -> None:
    """Replace every Conv of stride 1 and equal padding at both ends, whose weights and bias are initializers.

    Dense ones become one MatMul over the shifted inputs, depthwise ones a sum of scaled shifted inputs. Others stay.
    """
    weights = {item.name: item for item in graph.initializer}
    nodes: list[NodeProto] = []
    for node in graph.node:
        nodes += _unrolled(graph, node, weights) if _fits(node, weights) else [node]
    del graph.node[:]
    graph.node.extend(nodes)
    used = {name for node in graph.node for name in node.input}
    kept = [item for item in graph.initializer if item.name in used]
    del graph.initializer[:]
    graph.initializer.extend(kept)


def _attributes(node: NodeProto) -> dict[str, Any]:
    return {item.name: helper.get_attribute_value(item) for item in node.attribute}


def _fits(node: NodeProto, weights: dict[str, Any]) -> bool:
    if node.op_type != "Conv" or len(node.input) != 3 or any(name not in weights for name in node.input[1:]):
        return False
    said, shape = _attributes(node), list(weights[node.input[1]].dims)
    pads, group = said.get("pads", [0, 0]), said.get("group", 1)
    depthwise = group == shape[0] and shape[1] == 1
    return len(shape) == 3 and said.get("strides", [1]) == [1] and pads[0] == pads[-1] and (group == 1 or depthwise)


def _unrolled(graph: GraphProto, node: NodeProto, weights: dict[str, Any]) -> list[NodeProto]:
    said = _attributes(node)
    at, (x, weight_name, bias_name) = node.name or node.output[0], node.input
    weight, bias = (numpy_helper.to_array(weights[name]) for name in (weight_name, bias_name))
    taps, step, pad = weight.shape[2], said.get("dilations", [1])[0], said.get("pads", [0, 0])[0]
    made: list[NodeProto] = []

    def constant(name: str, values: NDArray[Any]) -> str:
        graph.initializer.append(numpy_helper.from_array(np.ascontiguousarray(values), f"{at}/{name}"))
        return f"{at}/{name}"

    def op(kind: str, inputs: list[str], name: str, **attributes: Any) -> str:
        out = node.output[0] if name == "out" else f"{at}/{name}_out"
        made.append(helper.make_node(kind, inputs, [out], f"{at}/{name}", **attributes))
        return out

    if pad:
        x = op("Pad", [x, constant("pads", np.array([0, 0, pad, 0, 0, pad], np.int64))], "pad")
    axis = constant("axis", np.array([2], np.int64)) if taps > 1 else ""
    shifted = [x] if taps == 1 else []
    for tap in range(taps if taps > 1 else 0):
        behind = (taps - 1 - tap) * step
        start = constant(f"start{tap}", np.array([tap * step], np.int64))
        stop = constant(f"stop{tap}", np.array([-behind if behind else _END], np.int64))
        shifted.append(op("Slice", [x, start, stop, axis], f"shift{tap}"))
    if said.get("group", 1) == 1:
        rows = shifted[0] if taps == 1 else op("Concat", shifted, "rows", axis=1)
        matrix = np.moveaxis(weight, 2, 1).reshape(weight.shape[0], -1)  # (out, taps * in)
        total = op("MatMul", [constant("matrix", matrix), rows], "product")
    else:
        total = ""
        for i, part in enumerate(shifted):
            scaled = op("Mul", [part, constant(f"tap{i}", weight[:, :, i])], f"scaled{i}")
            total = op("Add", [total, scaled], f"sum{i}") if total else scaled
    op("Add", [total, constant("bias", bias[:, None])], "out")
    return made
