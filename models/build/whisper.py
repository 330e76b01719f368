"""Whisper checkpoint (CTranslate2 layout) -> two ONNX graphs of our own.

For the CPU (`precision="int8"`; `"f32"` keeps everything in float32):
encoder.onnx   mel (1, bands, 2T), positions (T,): rows of the positional table, log_count (1, 1, 1, T): added to the
               attention's scores -> cross_key_i, cross_value_i (1, heads, T, head_dim) of every decoder layer, made
               once per utterance. Cost follows T, and T follows the speech: one row can stand for many of the 30 s.
decoder.onnx   tokens (1, S) at `positions` (1, S), log_count, the shared self-attention cache, the cross keys and
               values -> the best TOP_K tokens of the last position with logit + bias, the log-sum-exp of all its
               logits and the no-speech logit. The bias is row `bias_row` of bias_table (BIAS_ROWS, V), masks (-inf) and
               boosts, plus `boost_values` at `boost_ids` (1, BOOSTS); the log-sum-exp never sees it.

For a GPU lane (`"f16"`; `"f32-device"` is the same in float32, for tests on the CPU) every shape is fixed, so that runs
can be captured as device graphs:
encoder.onnx   samples (1, 1, n): 30 s at 16 kHz with mirrored edges -> cross_key_i, cross_value_i (1, 1500, width). The
               spectrogram is part of the graph and stays in float32.
decoder.onnx   as above without log_count: all 1500 rows are there.

The vocabulary ends before the timestamps: this runtime never asks for them. Matrices are int8 in blocks (MatMulNBits,
int8 activations) on the CPU; convolutions, norms and attention stay in floating point.
"""

from __future__ import annotations

import json
import shutil
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray
from onnx import TensorProto, helper

from models.build.ct2 import Ct2Model, read_ct2
from models.build.whisper_graph import Graph, Precision
from models.engines.whisper.logmel import HOP_SAMPLES, WINDOW_SAMPLES, hann_window, mel_filters
from models.errors import InputError

TOP_K = 8
BIAS_ROWS = 8
BOOSTS = 128
Progress = Callable[[str, float], None]


def _heads(model: Ct2Model, side: str) -> int:
    return int(model.variables[f"{side}/num_heads"])


def _layers(model: Ct2Model, side: str) -> int:
    return len(
        {name.split("/")[1] for name in model.variables if name.startswith(f"{side}/layer_") and name.count("/") > 2}
    )


def _value(name: str, shape: Sequence[int | str], dtype: int = TensorProto.FLOAT) -> Any:
    return helper.make_tensor_value_info(name, dtype, list(shape))


def _log_mel(g: Graph, bands: int) -> str:
    """Mel spectrogram of `samples` (1, 1, n), as models/engines/whisper/logmel.py makes it: (1, bands, frames).

    Framing, window and DFT are one convolution: row k holds the windowed cosine of bin k, row bins + k its sine.
    """
    turns = np.outer(np.arange(WINDOW_SAMPLES // 2 + 1), np.arange(WINDOW_SAMPLES)) / WINDOW_SAMPLES
    waves = np.concatenate([np.cos(2.0 * np.pi * turns), np.sin(2.0 * np.pi * turns)]) * hann_window()
    filters = np.concatenate([mel_filters(bands)] * 2).T

    def constant(name: str, value: float) -> str:
        return g.weight(name, np.array(value, np.float32))

    waves_name = g.weight("waves", waves[:, None, :].astype(np.float32))
    x = g.op("Conv", ["samples", waves_name], "dft", kernel_shape=[WINDOW_SAMPLES], strides=[HOP_SAMPLES])
    x = g.op("Mul", [x, x], "squares")
    x = g.op("MatMul", [g.weight("mel_filters", filters), x], "mel_power")
    x = g.op("Log", [g.op("Max", [x, constant("floor", 1e-10)], "mel_floored")], "mel_nats")
    x = g.op("Mul", [x, constant("decades_per_nat", 1.0 / np.log(10.0))], "mel_decades")
    # TopK, because ONNX Runtime's CUDA provider has no ReduceMax of this opset and would leave the GPU for it
    g.op("TopK", [x, g.ints(1)], ["loudest_of_band", "loudest_frame"], axis=-1)
    bands_row = g.op("Reshape", ["loudest_of_band", g.ints(1, 1, bands)], "bands_row")
    loudest = g.op("TopK", [bands_row, g.ints(1)], ["loudest", "loudest_band"], axis=-1)
    x = g.op("Max", [x, g.op("Sub", [loudest, constant("range", 8.0)], "clamp")], "mel_clamped")
    x = g.op("Mul", [g.op("Add", [x, constant("shift", 4.0)], "mel_shifted"), constant("scale", 0.25)], "mel")
    return x if g.real is np.float32 else g.op("Cast", [x], "mel_real", to=g.onnx_real)


def _stem(g: Graph) -> str:
    """The two convolutions over `mel`: (1, frames / 2, width)."""
    x = "mel"
    for index, stride in ((1, 1), (2, 2)):
        source = f"encoder/conv{index}"
        weights = [g.weight(f"{source}/{part}", g.model.f32(f"{source}/{part}")) for part in ("weight", "bias")]
        y = g.op("Conv", [x, *weights], f"conv{index}", kernel_shape=[3], pads=[1, 1], strides=[stride])
        x = g.op("Gelu", [y], f"conv{index}_gelu", approximate="none")
    return g.op("Transpose", [x], "conv_rows", perm=[0, 2, 1])


def _stem_products(g: Graph, bands: int, rows: int) -> str:
    """The same from `samples`, as matrix products over three shifted inputs side by side.

    cuDNN has no plan for these convolutions in float16: ONNX Runtime says so in red, then finds another way.
    """
    x = g.op("Transpose", [_log_mel(g, bands)], "mel_rows", perm=[0, 2, 1])
    frames = 2 * rows
    for index, stride in ((1, 1), (2, 2)):
        source, at = f"encoder/conv{index}", f"conv{index}"
        weight, bias = (g.model.f32(f"{source}/{part}") for part in ("weight", "bias"))
        edge = g.reals(f"{at}_edge", np.zeros((1, 1, weight.shape[1]), np.float32))
        padded = g.op("Concat", [edge, x, edge], f"{at}_padded", axis=1)
        taps = [
            g.op(
                "Slice",
                [padded, g.ints(tap), g.ints(tap + frames), g.ints(1), g.ints(stride)],
                f"{at}_tap{tap}",
            )
            for tap in range(3)
        ]
        joined = g.op("Concat", taps, f"{at}_taps", axis=-1)
        y = g.linear(joined, source, weight.transpose(0, 2, 1).reshape(weight.shape[0], -1), bias, at)
        x = g.op("Gelu", [y], f"{at}_gelu", approximate="none")
    return x


def _encoder_layer(g: Graph, x: str, i: int, mass: str | None) -> str:
    source, at, heads = f"encoder/layer_{i}", f"e{i}", _heads(g.model, "encoder")
    y = g.norm(x, f"{source}/self_attention/layer_norm", f"{at}/norm")
    y = g.layer_linear(y, f"{source}/self_attention/linear_0", f"{at}/qkv")
    parts = [f"{at}/{part}_part" for part in "qkv"]
    g.op("Split", [y], parts, axis=-1, num_outputs=3)
    operands = parts if mass is None else [*parts, "", "", mass]
    y = g.op("MultiHeadAttention", operands, f"{at}/mha", "com.microsoft", num_heads=heads)
    y = g.layer_linear(y, f"{source}/self_attention/linear_1", f"{at}/proj")
    x = g.op("Add", [x, y], f"{at}/attended")
    return g.feed_forward(x, f"{source}/ffn", f"{at}/ffn")


def _build_encoder(model: Ct2Model, path: Path, precision: Precision) -> None:
    g = Graph(model, precision)
    heads, positions = _heads(model, "encoder"), model.f32("encoder/position_encodings/encodings")
    bands, (rows, width) = model.variables["encoder/conv1/weight"].shape[1], positions.shape
    inputs = [_value("mel", (1, bands, "frames")), _value("positions", ("T",), TensorProto.INT64)]
    inputs.append(_value("log_count", (1, 1, 1, "T")))
    if g.on_device:
        inputs = [_value("samples", (1, 1, 2 * rows * HOP_SAMPLES + WINDOW_SAMPLES - HOP_SAMPLES))]
    x = _stem_products(g, bands, rows) if g.on_device else _stem(g)
    table, mass = g.reals("position_table", positions), None
    if not g.on_device:
        table = g.op("Gather", [table, "positions"], "position_rows", axis=0)
    x = g.op("Add", [x, table], "embedded")
    if not g.on_device:
        length = g.op("Shape", [x], "length", start=1, end=2)
        mass = g.op("Expand", ["log_count", g.op("Concat", [g.ints(1, 1), length, length], "square", axis=0)], "mass")
    for i in range(_layers(model, "encoder")):
        x = _encoder_layer(g, x, i, mass)
    x = g.norm(x, "encoder/layer_norm", "encoded")
    outputs = []
    for i in range(_layers(model, "decoder")):
        y = g.layer_linear(x, f"decoder/layer_{i}/attention/linear_1", f"c{i}/kv")
        names = [f"cross_{part}_{i}" for part in ("key", "value")]
        outputs += [_value(name, _cross_shape(g, rows, width, heads), g.onnx_real) for name in names]
        if g.on_device:
            g.op("Split", [y], names, axis=-1, num_outputs=2)
            continue
        g.op("Split", [y], [f"{name}_flat" for name in names], axis=-1, num_outputs=2)
        for name in names:
            split = g.op("Reshape", [f"{name}_flat", g.ints(0, 0, heads, -1)], f"{name}_rows")
            g.op("Transpose", [split], name, perm=[0, 2, 1, 3])
    g.save(path, inputs, outputs)


def _cross_shape(g: Graph, rows: int, width: int, heads: int) -> tuple[int | str, ...]:
    """Of one layer's cross keys or values. By heads on the CPU, where attention would otherwise turn them every step;
    as they come on a GPU, whose kernels read either."""
    return (1, rows, width) if g.on_device else (1, heads, "T", width // heads)


def _decoder_layer(g: Graph, x: str, i: int, mass: str | None) -> str:
    source, at, heads = f"decoder/layer_{i}", f"d{i}", _heads(g.model, "decoder")
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
    cross = [y, f"cross_key_{i}", f"cross_value_{i}", *(() if mass is None else ("", "", mass))]
    y = g.op("MultiHeadAttention", cross, f"{at}/cross", "com.microsoft", num_heads=heads)
    x = g.op("Add", [x, g.layer_linear(y, f"{source}/attention/linear_2", f"{at}/cross_proj")], f"{at}/crossed")
    return g.feed_forward(x, f"{source}/ffn", f"{at}/ffn")


def _decoder_inputs(g: Graph, vocabulary: int) -> list[Any]:
    inputs = [
        _value("tokens", (1, "S"), TensorProto.INT64),
        _value("positions", (1, "S"), TensorProto.INT64),
        _value("last_index", (1,), TensorProto.INT32),
        _value("total", (), TensorProto.INT32),
        _value("bias_table", (BIAS_ROWS, vocabulary)),
        _value("bias_row", (1,), TensorProto.INT64),
        _value("boost_ids", (1, BOOSTS), TensorProto.INT64),
        _value("boost_values", (1, BOOSTS)),
    ]
    return inputs if g.on_device else [*inputs, _value("log_count", (1, 1, 1, "T"))]


def _embed(g: Graph, table: NDArray[np.float32]) -> str:
    """Token and position rows of `tokens` at `positions`: (1, S, width)."""
    positions = g.reals("position_table", g.model.f32("decoder/position_encodings/encodings"))
    if g.on_device:
        x = g.op("Gather", [g.reals("token_table", table), "tokens"], "token_rows")
    else:
        x = g.op("Gather", [g.weight("token_table", table.astype(np.float16)), "tokens"], "token_rows16")
        x = g.op("Cast", [x], "token_rows", to=TensorProto.FLOAT)
    return g.op("Add", [x, g.op("Gather", [positions, "positions"], "position_rows")], "embedded")


def _head(g: Graph, x: str, table: NDArray[np.float32], no_speech: int) -> list[Any]:
    """Logits of the last row of `x`, what is added to them, the best of them. Returns the graph's outputs."""
    x = g.op("Gather", [x, g.weight("last", np.array(-1, np.int64))], "last_row", axis=1)
    x = g.norm(x, "decoder/layer_norm", "final")
    if g.on_device:  # the table's one copy serves both ends of the decoder
        logits = g.op("Gemm", [x, g.reals("token_table", table)], "logits", transB=1)
    else:
        logits = g.linear(x, "head", table, None, "logits")
    if g.real is not np.float32:
        logits = g.op("Cast", [logits], "logits32", to=TensorProto.FLOAT)
    g.op("ReduceLogSumExp", [logits, g.ints(1)], "log_sum_exp", keepdims=1)
    g.op("Gather", [logits, g.ints(no_speech)], "no_speech_logit", axis=1)
    biased = g.op("Add", [logits, g.op("Gather", ["bias_table", "bias_row"], "bias", axis=0)], "biased")
    boosted = g.op(
        "ScatterElements", [biased, "boost_ids", "boost_values"], "boosted", axis=1, reduction="add"
    )  # unused places add 0 to token 0
    g.op("TopK", [boosted, g.ints(TOP_K)], ["values", "ids"], axis=-1)
    outputs = [_value("values", (1, TOP_K)), _value("ids", (1, TOP_K), TensorProto.INT64)]
    return [*outputs, _value("log_sum_exp", (1, 1)), _value("no_speech_logit", (1, 1))]


def _build_decoder(model: Ct2Model, path: Path, precision: Precision, vocabulary: int, no_speech: int) -> None:
    g = Graph(model, precision)
    heads, rows = _heads(model, "decoder"), model.variables["encoder/position_encodings/encodings"].shape[0]
    table = model.f32("decoder/embeddings/weight")[:vocabulary]
    width = table.shape[1]
    inputs, cached = _decoder_inputs(g, vocabulary), []
    x, mass = _embed(g, table), None
    if not g.on_device:
        count, length = g.op("Shape", ["tokens"], "count", start=1), g.op("Shape", ["log_count"], "length", start=3)
        mass = g.op("Expand", ["log_count", g.op("Concat", [g.ints(1, 1), count, length], "square", axis=0)], "mass")
    slots = model.variables["decoder/position_encodings/encodings"].shape[0] if g.on_device else "cache"
    for i in range(_layers(model, "decoder")):
        for part in ("key", "value"):
            shape = (1, heads, slots, width // heads)
            inputs.append(_value(f"past_{part}_{i}", shape, g.onnx_real))
            inputs.append(_value(f"cross_{part}_{i}", _cross_shape(g, rows, width, heads), g.onnx_real))
            cached.append(_value(f"present_{part}_{i}", shape, g.onnx_real))
        x = _decoder_layer(g, x, i, mass)
    outputs = _head(g, x, table, no_speech)
    g.save(path, inputs, [*outputs, *cached])


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
    config["encoder_input"] = "samples" if precision in {"f16", "f32-device"} else "mel"
    out.mkdir(parents=True, exist_ok=True)
    tell("building the encoder", 0.1)
    _build_encoder(model, out / "encoder.onnx", precision)
    tell("building the decoder", 0.5)
    _build_decoder(model, out / "decoder.onnx", precision, config["vocabulary"], config["tokens"]["no_speech"])
    shutil.copyfile(tokenizer_json, out / "tokenizer.json")
    (out / "config.json").write_text(json.dumps(config, indent=1), encoding="utf-8")
    tell("done", 1.0)
