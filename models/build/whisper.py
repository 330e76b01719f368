"""Whisper checkpoint (CTranslate2 layout) -> two ONNX graphs of our own.

encoder.onnx   mel (1, bands, 2T), positions (T,): rows of the positional table, log_count (1, 1, 1, T): added to the
               attention's scores -> cross_key_i, cross_value_i (1, heads, T, head_dim) of every decoder layer, made
               once per utterance. Cost follows T, and T follows the speech: one row can stand for many of the 30 s.
decoder.onnx   tokens (1, S) at `positions` (1, S), log_count, the shared self-attention cache, the cross keys and
               values -> the best TOP_K tokens of the last position with logit + bias, the log-sum-exp of all its
               logits and the no-speech logit. `bias` (V,) holds masks (-inf) and boosts; the log-sum-exp never sees it.

The vocabulary ends before the timestamps: this runtime never asks for them. Matrices are int8 in blocks (MatMulNBits,
int8 activations); convolutions, norms and attention stay float32. `precision="f32"` keeps everything in float32.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any, Literal

import numpy as np
import onnx
from numpy.typing import NDArray
from onnx import TensorProto, helper, numpy_helper

from models.build.ct2 import Ct2Model, read_ct2
from models.errors import InputError

TOP_K = 8
BLOCK = 32
OPSETS = (("", 21), ("com.microsoft", 1))
Precision = Literal["int8", "f32"]
Progress = Callable[[str, float], None]


class _Graph:
    """Collects nodes and weights of one graph. Every method returns the name of the value it made."""

    def __init__(self, model: Ct2Model, precision: Precision) -> None:
        self.model = model
        self.precision = precision
        self.nodes: list[onnx.NodeProto] = []
        self.weights: dict[str, onnx.TensorProto] = {}

    def weight(self, name: str, array: NDArray[Any]) -> str:
        if name not in self.weights:
            self.weights[name] = numpy_helper.from_array(np.array(array, order="C"), name)
        return name

    def ints(self, *values: int) -> str:
        return self.weight("ints_" + "_".join(map(str, values)), np.array(values, np.int64))

    def op(
        self, kind: str, inputs: Sequence[str], out: str | Sequence[str], domain: str = "", **attributes: Any
    ) -> str:
        outputs = [out] if isinstance(out, str) else list(out)
        self.nodes.append(helper.make_node(kind, list(inputs), outputs, outputs[0], domain=domain, **attributes))
        return outputs[0]

    def norm(self, x: str, source: str, out: str) -> str:
        gamma = self.weight(f"{source}/gamma", self.model.f32(f"{source}/gamma"))
        beta = self.weight(f"{source}/beta", self.model.f32(f"{source}/beta"))
        return self.op("LayerNormalization", [x, gamma, beta], out, axis=-1, epsilon=1e-5)

    def linear(self, x: str, name: str, weight: NDArray[np.float32], bias: NDArray[np.float32] | None, out: str) -> str:
        """x @ weight.T + bias with weight (n, k)."""
        extra = [] if bias is None else [self.weight(f"{name}/bias", bias)]
        if self.precision == "f32":
            product = self.op(
                "MatMul", [x, self.weight(f"{name}/weight", weight.T)], out if not extra else f"{out}_product"
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


def _heads(model: Ct2Model, side: str) -> int:
    return int(model.variables[f"{side}/num_heads"])


def _layers(model: Ct2Model, side: str) -> int:
    return len(
        {name.split("/")[1] for name in model.variables if name.startswith(f"{side}/layer_") and name.count("/") > 2}
    )


def _value(name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def _build_encoder(model: Ct2Model, path: Path, precision: Precision) -> None:
    g = _Graph(model, precision)
    heads, positions = _heads(model, "encoder"), model.f32("encoder/position_encodings/encodings")
    x = "mel"
    for index, stride in ((1, 1), (2, 2)):
        source = f"encoder/conv{index}"
        weights = [g.weight(f"{source}/{part}", model.f32(f"{source}/{part}")) for part in ("weight", "bias")]
        y = g.op("Conv", [x, *weights], f"conv{index}", kernel_shape=[3], pads=[1, 1], strides=[stride])
        x = g.op("Gelu", [y], f"conv{index}_gelu", approximate="none")
    x = g.op("Transpose", [x], "conv_rows", perm=[0, 2, 1])
    table = g.op("Gather", [g.weight("position_table", positions), "positions"], "position_rows", axis=0)
    x = g.op("Add", [x, table], "embedded")
    length = g.op("Shape", [x], "length", start=1, end=2)
    square = g.op("Concat", [g.ints(1, 1), length, length], "square", axis=0)
    mass = g.op("Expand", ["log_count", square], "mass")
    for i in range(_layers(model, "encoder")):
        source, at = f"encoder/layer_{i}", f"e{i}"
        y = g.norm(x, f"{source}/self_attention/layer_norm", f"{at}/norm")
        y = g.layer_linear(y, f"{source}/self_attention/linear_0", f"{at}/qkv")
        parts = [f"{at}/{part}" for part in "qkv"]
        g.op("Split", [y], [f"{p}_part" for p in parts], axis=-1, num_outputs=3)
        operands = [*(f"{p}_part" for p in parts), "", "", mass]
        y = g.op("MultiHeadAttention", operands, f"{at}/mha", "com.microsoft", num_heads=heads)
        y = g.layer_linear(y, f"{source}/self_attention/linear_1", f"{at}/proj")
        x = g.op("Add", [x, y], f"{at}/attended")
        x = g.feed_forward(x, f"{source}/ffn", f"{at}/ffn")
    x = g.norm(x, "encoder/layer_norm", "encoded")
    outputs = []
    for i in range(_layers(model, "decoder")):
        y = g.layer_linear(x, f"decoder/layer_{i}/attention/linear_1", f"c{i}/kv")
        g.op("Split", [y], [f"c{i}/key", f"c{i}/value"], axis=-1, num_outputs=2)
        for part in ("key", "value"):
            rows = g.op("Reshape", [f"c{i}/{part}", g.ints(0, 0, heads, -1)], f"c{i}/{part}_rows")
            g.op("Transpose", [rows], f"cross_{part}_{i}", perm=[0, 2, 1, 3])
            outputs.append(_value(f"cross_{part}_{i}", (1, heads, "T", positions.shape[1] // heads)))
    mel = _value("mel", (1, model.variables["encoder/conv1/weight"].shape[1], "frames"))
    rows = _value("positions", ("T",), TensorProto.INT64)
    g.save(path, [mel, rows, _value("log_count", (1, 1, 1, "T"))], outputs)


def _build_decoder(model: Ct2Model, path: Path, precision: Precision, vocabulary: int, no_speech: int) -> None:
    g = _Graph(model, precision)
    heads, positions = _heads(model, "decoder"), model.f32("decoder/position_encodings/encodings")
    table = model.f32("decoder/embeddings/weight")[:vocabulary]
    width = table.shape[1]
    cache = (1, heads, "cache", width // heads)
    inputs = [
        _value("tokens", (1, "S"), TensorProto.INT64),
        _value("positions", (1, "S"), TensorProto.INT64),
        _value("last_index", (1,), TensorProto.INT32),
        _value("total", (), TensorProto.INT32),
        _value("bias", (vocabulary,)),
        _value("log_count", (1, 1, 1, "T")),
    ]
    outputs = [_value("values", (1, TOP_K)), _value("ids", (1, TOP_K), TensorProto.INT64)]
    outputs += [_value("log_sum_exp", (1, 1)), _value("no_speech_logit", (1, 1))]
    x = g.op("Gather", [g.weight("token_table", table.astype(np.float16)), "tokens"], "token_rows16")
    x = g.op("Cast", [x], "token_rows", to=TensorProto.FLOAT)
    x = g.op(
        "Add", [x, g.op("Gather", [g.weight("position_table", positions), "positions"], "position_rows")], "embedded"
    )
    count, length = g.op("Shape", ["tokens"], "count", start=1), g.op("Shape", ["log_count"], "length", start=3)
    mass = g.op("Expand", ["log_count", g.op("Concat", [g.ints(1, 1), count, length], "square", axis=0)], "mass")
    for i in range(_layers(model, "decoder")):
        source, at = f"decoder/layer_{i}", f"d{i}"
        for part in ("key", "value"):
            inputs += [_value(f"past_{part}_{i}", cache), _value(f"cross_{part}_{i}", (1, heads, "T", width // heads))]
            outputs.append(_value(f"present_{part}_{i}", cache))
        y = g.norm(x, f"{source}/self_attention/layer_norm", f"{at}/norm")
        y = g.layer_linear(y, f"{source}/self_attention/linear_0", f"{at}/qkv")
        y = g.op(
            "GroupQueryAttention",
            [y, "", "", f"past_key_{i}", f"past_value_{i}", "last_index", "total"],
            [f"{at}/self", f"present_key_{i}", f"present_value_{i}"],
            "com.microsoft",
            num_heads=heads,
            kv_num_heads=heads,
        )
        x = g.op("Add", [x, g.layer_linear(y, f"{source}/self_attention/linear_1", f"{at}/proj")], f"{at}/attended")
        y = g.norm(x, f"{source}/attention/layer_norm", f"{at}/cross_norm")
        y = g.layer_linear(y, f"{source}/attention/linear_0", f"{at}/cross_q")
        cross = [y, f"cross_key_{i}", f"cross_value_{i}", "", "", mass]
        y = g.op("MultiHeadAttention", cross, f"{at}/cross", "com.microsoft", num_heads=heads)
        x = g.op("Add", [x, g.layer_linear(y, f"{source}/attention/linear_2", f"{at}/cross_proj")], f"{at}/crossed")
        x = g.feed_forward(x, f"{source}/ffn", f"{at}/ffn")
    x = g.op("Gather", [x, g.weight("last", np.array(-1, np.int64))], "last_row", axis=1)
    x = g.norm(x, "decoder/layer_norm", "final")
    logits = g.linear(x, "head", table, None, "logits")
    g.op("ReduceLogSumExp", [logits, g.ints(1)], "log_sum_exp", keepdims=1)
    g.op("Gather", [logits, g.ints(no_speech)], "no_speech_logit", axis=1)
    g.op("TopK", [g.op("Add", [logits, "bias"], "biased"), g.ints(TOP_K)], ["values", "ids"], axis=-1)
    g.save(path, inputs, outputs)


def _describe(model: Ct2Model, ct2_config: dict[str, Any], tokenizer: dict[str, Any]) -> dict[str, Any]:
    """The engine's config.json: dimensions and the special tokens, all read from the checkpoint's own files."""
    special = {token["content"]: int(token["id"]) for token in tokenizer["added_tokens"]}
    names = {
        "end": "<|endoftext|>",
        "start": "<|startoftranscript|>",
        "transcribe": "<|transcribe|>",
        "previous": "<|startofprev|>",
        "no_speech": "<|nospeech|>" if "<|nospeech|>" in special else "<|nocaptions|>",
        "no_timestamps": "<|notimestamps|>",
    }
    language_ids = set(ct2_config["lang_ids"])
    return {
        "family": "whisper",
        "mel_bands": int(model.variables["encoder/conv1/weight"].shape[1]),
        "encoder_positions": int(model.variables["encoder/position_encodings/encodings"].shape[0]),
        "decoder_positions": int(model.variables["decoder/position_encodings/encodings"].shape[0]),
        "width": int(model.variables["decoder/embeddings/weight"].shape[1]),
        "decoder_layers": _layers(model, "decoder"),
        "decoder_heads": _heads(model, "decoder"),
        "vocabulary": special[names["no_timestamps"]] + 1,
        "tokens": {key: special[name] for key, name in names.items()},
        "languages": {name.strip("<|>"): id_ for name, id_ in special.items() if id_ in language_ids},
        "suppress": list(ct2_config["suppress_ids"]),
        "suppress_at_begin": list(ct2_config["suppress_ids_begin"]),
    }


def build_whisper(
    model_bin: Path,
    config_json: Path,
    tokenizer_json: Path,
    out: Path,
    *,
    precision: Precision = "int8",
    progress: Progress | None = None,
) -> None:
    """Write encoder.onnx, decoder.onnx, config.json and tokenizer.json into `out` (made if missing).

    `progress(what, share)` is told the step and the share done in [0, 1]. Raises InputError for a checkpoint it cannot
    read.
    """
    tell = progress or (lambda what, share: None)
    tell("reading the checkpoint", 0.0)
    model = read_ct2(model_bin)
    if model.spec != "WhisperSpec":
        raise InputError(f"{model_bin} holds {model.spec!r}, not 'WhisperSpec'")
    tokenizer = json.loads(tokenizer_json.read_text(encoding="utf-8"))
    config = _describe(model, json.loads(config_json.read_text(encoding="utf-8")), tokenizer)
    config["precision"] = precision
    out.mkdir(parents=True, exist_ok=True)
    tell("building the encoder", 0.1)
    _build_encoder(model, out / "encoder.onnx", precision)
    tell("building the decoder", 0.5)
    _build_decoder(model, out / "decoder.onnx", precision, config["vocabulary"], config["tokens"]["no_speech"])
    shutil.copyfile(tokenizer_json, out / "tokenizer.json")
    (out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    tell("done", 1.0)
