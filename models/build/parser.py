"""The parser's adapter (`cockpit adapt parser`) -> its folder: parser.onnx, parser.json and vocabulary.txt.

The graph takes one sentence (see pipeline/nlu/parser/features.py) and gives every logit. The vocabulary's rows stay in
8 bits and are gathered; all else is float32, which one thread runs in a few milliseconds.
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.errors import InputError
from models.store.tensor_file import read_tensors

MASKED = -1e4
OPSET = 21


class _Graph:
    """Nodes and weights of the graph; every method returns the name of the value it makes."""

    def __init__(self, tensors: dict[str, NDArray[Any]]) -> None:
        self.tensors = tensors
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}

    def weight(self, name: str, values: NDArray[Any]) -> str:
        if name not in self.weights:
            self.weights[name] = numpy_helper.from_array(np.array(values, order="C"), name)
        return name

    def stored(self, name: str) -> NDArray[np.float32]:
        if name not in self.tensors:
            raise InputError(f"the adapter holds no {name}: it was made for another version of the parser")
        return np.asarray(self.tensors[name], np.float32)

    def ints(self, *values: int) -> str:
        return self.weight("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def op(self, kind: str, inputs: Sequence[str], out: str, **attributes: Any) -> str:
        self.nodes.append(helper.make_node(kind, list(inputs), [out], out, **attributes))
        return out

    def linear(self, x: str, source: str, out: str) -> str:
        product = self.op("MatMul", [x, self.weight(f"{source}/w", self.stored(f"{source}.weight").T)], f"{out}_mm")
        return self.op("Add", [product, self.weight(f"{source}/b", self.stored(f"{source}.bias"))], out)

    def norm(self, x: str, source: str, out: str) -> str:
        scale = self.weight(f"{source}/g", self.stored(f"{source}.weight"))
        return self.op(
            "LayerNormalization", [x, scale, self.weight(f"{source}/b", self.stored(f"{source}.bias"))], out, axis=-1
        )

    def cut(self, x: str, start: int, end: int, axis: int, out: str) -> str:
        return self.op("Slice", [x, self.ints(start), self.ints(end), self.ints(axis)], out)


def build_parser(adapter: Path, out: Path) -> None:
    """Build `out` from an adapter. Raises InputError for a file that is no adapter of this parser."""
    tensors, metadata = read_tensors(adapter)
    if "parser" not in metadata:
        raise InputError(f"{adapter} is no adapter of the parser")
    config = json.loads(metadata["parser"])
    graph = _Graph(tensors)
    outputs = _network(graph, config["shape"])
    out.mkdir(parents=True, exist_ok=True)
    onnx.save(_model(graph, outputs, config["shape"]), out / "parser.onnx")
    (out / "parser.json").write_text(json.dumps(config, ensure_ascii=False, indent=1), encoding="utf-8")
    (out / "vocabulary.txt").write_bytes(tensors["vocabulary"].tobytes())


def _entered(graph: _Graph, shape: dict[str, Any]) -> str:
    """(T, width): what each position is, with its neighbours, at its place."""
    rows = graph.weight("table", graph.tensors["table"])
    scales = graph.weight("table/scale", graph.stored("table.scale")[:, None])

    def looked_up(ids: str, at: str) -> str:
        row = graph.op("Cast", [graph.op("Gather", [rows, ids], f"{at}/rows")], f"{at}/reals", to=TensorProto.FLOAT)
        return graph.op("Mul", [row, graph.op("Gather", [scales, ids], f"{at}/scales")], f"{at}/values")

    pieces = graph.op("ReduceSum", [looked_up("pieces", "pieces"), graph.ints(1)], "pieces/sum", keepdims=0)
    there = graph.op("Greater", ["pieces", graph.ints(0)], "pieces/there")
    there = graph.op("Cast", [there], "pieces/ones", to=TensorProto.FLOAT)
    count = graph.op("ReduceSum", [there, graph.ints(1)], "pieces/count", keepdims=1)
    one = graph.weight("one", np.array([1.0], np.float32))
    own = graph.op("Div", [pieces, graph.op("Max", [count, one], "pieces/least")], "own")
    size = graph.op("Gather", [graph.weight("size", graph.stored("size.weight")), "sizes"], "sizes/values")
    tag = graph.op("Gather", [graph.weight("tag", graph.stored("tag.weight")), "tags"], "tags/values")
    tag = graph.op("ReduceSum", [tag, graph.ints(1)], "tags/sum", keepdims=0)
    hints = graph.op("Add", [size, tag], "hints")
    features = graph.op("Concat", [own, looked_up("words", "words"), hints], "features", axis=1)
    beside = graph.op("Pad", [features, graph.ints(1, 0, 1, 0)], "beside")
    before = graph.cut(beside, 0, -2, 0, "before")
    after = graph.cut(beside, 2, np.iinfo(np.int64).max, 0, "after")
    around = graph.op("Concat", [before, features, after], "around", axis=1)
    length = graph.op("Shape", ["words"], "length")
    places = graph.op(
        "Slice",
        [graph.weight("place", graph.stored("place.weight")), graph.ints(0), length, graph.ints(0)],
        "places",
    )
    return graph.op("Add", [graph.linear(around, "enter", "enter"), places], "entered")


def _block(graph: _Graph, x: str, source: str, shape: dict[str, Any]) -> str:
    heads, width = shape["heads"], shape["width"]
    qkv = graph.linear(graph.norm(x, f"{source}.norm1", f"{source}/n1"), f"{source}.qkv", f"{source}/qkv")
    qkv = graph.op("Reshape", [qkv, graph.ints(-1, 3, heads, width // heads)], f"{source}/split")
    parts = []
    for index, name in enumerate("qkv"):
        part = graph.op("Gather", [qkv, graph.weight(f"index{index}", np.array(index, np.int64))], f"{source}/{name}",
                        axis=1)  # fmt: skip
        order = [1, 2, 0] if name == "k" else [1, 0, 2]
        parts.append(graph.op("Transpose", [part], f"{source}/{name}_heads", perm=order))
    scores = graph.op("MatMul", parts[:2], f"{source}/scores")
    scale = graph.weight("head_scale", np.array((width // heads) ** -0.5, np.float32))
    shares = graph.op("Softmax", [graph.op("Mul", [scores, scale], f"{source}/scaled")], f"{source}/shares", axis=-1)
    mixed = graph.op("MatMul", [shares, parts[2]], f"{source}/mixed")
    mixed = graph.op("Transpose", [mixed], f"{source}/joined", perm=[1, 0, 2])
    mixed = graph.op("Reshape", [mixed, graph.ints(-1, width)], f"{source}/flat")
    x = graph.op("Add", [x, graph.linear(mixed, f"{source}.out", f"{source}/out")], f"{source}/attended")
    y = graph.linear(graph.norm(x, f"{source}.norm2", f"{source}/n2"), f"{source}.up", f"{source}/up")
    y = graph.op("Gelu", [y], f"{source}/gelu", approximate="tanh")
    return graph.op("Add", [x, graph.linear(y, f"{source}.down", f"{source}/down")], f"{source}/x")


def _network(graph: _Graph, shape: dict[str, Any]) -> dict[str, list[int | str]]:
    """All nodes; the outputs' shapes by name."""
    queries, width = shape["queries"], shape["width"]
    entered = _entered(graph, shape)
    tool, way = graph.cut("last", 0, 1, 0, "last/tool"), graph.cut("last", 1, 2, 0, "last/way")
    tool = graph.op("Gather", [graph.weight("last_call", graph.stored("last.weight")), tool], "last/tools")
    way = graph.op("Gather", [graph.weight("last_way", graph.stored("way.weight")), way], "last/ways")
    last = graph.op("Add", [tool, way], "last/values")
    x = graph.op("Concat", [graph.weight("queries", graph.stored("queries")), last, entered], "x", axis=0)
    for layer in range(shape["layers"]):
        x = _block(graph, x, f"blocks.{layer}", shape)
    x = graph.norm(x, "norm", "read")
    sentence = graph.cut(x, 0, 1, 0, "sentence")
    asked = graph.cut(x, 1, 1 + queries, 0, "asked")
    tokens = graph.cut(x, 2 + queries, np.iinfo(np.int64).max, 0, "tokens")
    turned = graph.op("Transpose", [tokens], "turned", perm=[1, 0])
    scale = graph.weight("point_scale", np.array(width**-0.5, np.float32))
    graph.linear(sentence, "reason", "reasons")
    graph.linear(asked, "choose", "choices")
    for source, at, rows, out in (
        ("point", asked, (queries, 3, width), "points"),
        ("what", sentence, (2, width), "what"),
    ):
        asking = graph.op("Reshape", [graph.linear(at, source, f"{source}/all"), graph.ints(*rows)], f"{source}/rows")
        graph.op("Mul", [graph.op("MatMul", [asking, turned], f"{source}/product"), scale], out)
    return {
        "reasons": [1, shape["reasons"]],
        "choices": [queries, sum(shape["head_widths"].values())],
        "points": [queries, 3, "T"],
        "what": [2, "T"],
    }


def _model(graph: _Graph, outputs: dict[str, list[int | str]], shape: dict[str, Any]) -> onnx.ModelProto:
    inputs = {"pieces": ["T", "P"], "words": ["T"], "sizes": ["T"], "tags": ["T", "N"], "last": [2]}
    made = helper.make_graph(
        graph.nodes,
        "parser",
        [helper.make_tensor_value_info(name, TensorProto.INT64, dims) for name, dims in inputs.items()],
        [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()],
        list(graph.weights.values()),
    )
    return helper.make_model(made, opset_imports=[helper.make_opsetid("", OPSET)], ir_version=10)
