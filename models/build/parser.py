"""The parser's adapter (`cockpit adapt parser`) on the sentence encoder -> its folder: parser.onnx, its weights and
config, and the encoder's tokenizer.

The graph takes one sentence (see pipeline/nlu/parser/features.py) and gives every logit. The encoder's layers below
keep the 4 bits of its file; what was trained, also what is added to their products, is float32.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.build.e5_file import E5File
from models.build.llm_emit import Emitter, WeightFile
from models.build.sentence_encoder import embedded, encoded, kept_pieces, write_tokenizer
from models.errors import InputError
from models.store.tensor_file import read_tensors

_END = np.iinfo(np.int64).max


class _Graph(Emitter):
    """An emitter that finds its weights in the adapter by their names in torch."""

    def __init__(self, weights: WeightFile, tensors: dict[str, NDArray[Any]]) -> None:
        super().__init__(weights)
        self.tensors = tensors

    def stored(self, name: str, *, turned: bool = False) -> str:
        """An adapter's tensor as float32, turned for a product from the right."""
        if name not in self.tensors:
            raise InputError(f"the adapter holds no {name}: it was made for another version of the parser")
        values = np.asarray(self.tensors[name], np.float32)
        return self.weight(name, values.T if turned else values)

    def linear(self, x: str, source: str) -> str:
        product = self.op("MatMul", x, self.stored(f"{source}.weight", turned=True))
        return str(self.op("Add", product, self.stored(f"{source}.bias")))

    def norm(self, x: str, source: str) -> str:
        scale, bias = self.stored(f"{source}.weight"), self.stored(f"{source}.bias")
        return str(self.op("LayerNormalization", x, scale, bias, axis=-1))

    def looked_up(self, source: str, ids: str) -> str:
        return str(self.op("Gather", self.stored(source), ids))

    def cut(self, x: str, start: int, end: int) -> str:
        return str(self.op("Slice", x, self.ints(start), self.ints(end), self.ints(0)))


def build_parser(adapter: Path, weights: Path, out: Path) -> None:
    """Build `out` from an adapter and the encoder's file. Raises InputError for a file that is no such thing."""
    tensors, metadata = read_tensors(adapter)
    if "parser" not in metadata:
        raise InputError(f"{adapter} is no adapter of the parser")
    config = json.loads(metadata["parser"])
    shape = config["shape"]
    if "rank" not in shape:
        raise InputError(f"{adapter} was made for another version of the parser; train it again: cockpit adapt parser")
    encoder = E5File.open(weights)
    out.mkdir(parents=True, exist_ok=True)
    with WeightFile(out / "parser.weights") as file:
        graph = _Graph(file, tensors)
        outputs = _network(graph, shape, _below(graph, encoder, shape))
        onnx.save(_model(graph, outputs), out / "parser.onnx")
    write_tokenizer(encoder, kept_pieces(encoder), out)
    (out / "parser.json").write_text(json.dumps(config, ensure_ascii=False, indent=1), encoding="utf-8")


def _below(graph: _Graph, encoder: E5File, shape: dict[str, Any]) -> str:
    """(S, width of all): the states after each of the layers `read`, counted from 1, side by side."""
    read, found = shape["read"], []
    x = embedded(graph, encoder, kept_pieces(encoder), "ids")
    for layer in range(max(read)):

        def also(name: str, source: str, product: str, layer: int = layer) -> str:
            if not shape["rank"]:
                return product
            added = f"lower.layers.{layer}.{name}"
            down = graph.op("MatMul", source, graph.stored(f"{added}.down", turned=True))
            return str(graph.op("Add", product, graph.op("MatMul", down, graph.stored(f"{added}.up", turned=True))))

        x = encoded(graph, encoder, layer, x, also)
        if layer + 1 in read:
            found.append(x)
    return found[0] if len(found) == 1 else str(graph.op("Concat", *found, axis=1))


def _entered(graph: _Graph, states: str) -> str:
    """(T, width): what each position is, at its place."""
    own = graph.linear(graph.op("MatMul", "cover", states), "enter")
    tags = graph.op("ReduceSum", graph.looked_up("tag.weight", "tags"), graph.ints(1), keepdims=0)
    sizes = graph.looked_up("size.weight", "sizes")
    hints = graph.op("Add", graph.op("Add", graph.looked_up("share.weight", "shares"), sizes), tags)
    length = graph.op("Shape", "shares")
    places = graph.op("Slice", graph.stored("place.weight"), graph.ints(0), length, graph.ints(0))
    return str(graph.op("Add", graph.op("Add", own, hints), places))


def _block(graph: _Graph, x: str, source: str, shape: dict[str, Any]) -> str:
    heads, width = shape["heads"], shape["width"]
    qkv = graph.linear(graph.norm(x, f"{source}.norm1"), f"{source}.qkv")
    split = graph.op("Transpose", graph.op("Reshape", qkv, graph.ints(-1, 3, heads, width // heads)), perm=[1, 2, 0, 3])
    q, k, v = graph.op("Split", split, outputs=3, num_outputs=3, axis=0)
    scores = graph.op("MatMul", q, graph.op("Transpose", k, perm=[0, 1, 3, 2]))
    scale = graph.weight("own_head_scale", np.array((width // heads) ** -0.5, np.float32))
    shares = graph.op("Softmax", graph.op("Mul", scores, scale), axis=-1)
    mixed = graph.op("Transpose", graph.op("MatMul", shares, v), perm=[0, 2, 1, 3])
    mixed = graph.op("Reshape", mixed, graph.ints(-1, width))
    x = graph.op("Add", x, graph.linear(mixed, f"{source}.out"))
    y = graph.op("Gelu", graph.linear(graph.norm(x, f"{source}.norm2"), f"{source}.up"), approximate="tanh")
    return str(graph.op("Add", x, graph.linear(y, f"{source}.down")))


def _network(graph: _Graph, shape: dict[str, Any], states: str) -> dict[str, list[int | str]]:
    """All nodes; the outputs' shapes by name."""
    queries, width = shape["queries"], shape["width"]
    entered = _entered(graph, states)
    tool, way = graph.cut("last", 0, 1), graph.cut("last", 1, 2)
    last = graph.op("Add", graph.looked_up("last.weight", tool), graph.looked_up("way.weight", way))
    x = graph.op("Concat", graph.stored("queries"), last, entered, axis=0)
    for layer in range(shape["layers"]):
        x = _block(graph, x, f"blocks.{layer}", shape)
    x = graph.norm(x, "norm")
    sentence, asked, tokens = graph.cut(x, 0, 1), graph.cut(x, 1, 1 + queries), graph.cut(x, 2 + queries, _END)
    turned = graph.op("Transpose", tokens, perm=[1, 0])
    scale = graph.weight("point_scale", np.array(width**-0.5, np.float32))
    graph.op("Identity", graph.linear(sentence, "reason"), name="reasons")
    graph.op("Identity", graph.linear(asked, "choose"), name="choices")
    for source, at, rows, out in (
        ("point", asked, (queries, 3, width), "points"),
        ("what", sentence, (2, width), "what"),
    ):
        asking = graph.op("Reshape", graph.linear(at, source), graph.ints(*rows))
        graph.op("Mul", graph.op("MatMul", asking, turned), scale, name=out)
    return {
        "reasons": [1, shape["reasons"]],
        "choices": [queries, sum(shape["head_widths"].values())],
        "points": [queries, 3, "T"],
        "what": [2, "T"],
    }


def _model(graph: _Graph, outputs: dict[str, list[int | str]]) -> onnx.ModelProto:
    inputs = {"ids": ["S"], "shares": ["T"], "sizes": ["T"], "tags": ["T", "N"], "last": [2]}
    taken = [helper.make_tensor_value_info(name, TensorProto.INT64, dims) for name, dims in inputs.items()]
    taken.append(helper.make_tensor_value_info("cover", TensorProto.FLOAT, ["T", "S"]))
    given = [helper.make_tensor_value_info(name, TensorProto.FLOAT, dims) for name, dims in outputs.items()]
    return graph.model("parser", taken, given)
