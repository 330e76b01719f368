"""A Piper (VITS) checkpoint, cut in two at the latent: an encoder for whole clauses, and a vocoder for chunks.

encoder.onnx   phoneme ids (1, n), their count (1,), scales (3,) -> latent (1, 192, frames).
vocoder.onnx   latent, start (1,), stop (1,) -> the samples of latent frames [start, stop): float32 (1, 1, 1, n). The
               cut is part of the graph, so that the latent never leaves the device where the encoder made it.
"""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onnx import GraphProto, ModelProto, TensorProto, helper, load, save
from onnx.utils import Extractor

from models.build.convolutions import unroll_convolutions
from models.errors import ConfigError

_INPUTS = ["input", "input_lengths", "scales"]
_FIRST_VOCODER_NODE = "/dec/conv_pre/Conv"
LATENT = "latent"


def build_piper(onnx: Path, config_json: Path, out: Path, *, any_length: bool = False) -> None:
    """Write `encoder.onnx`, `vocoder.onnx` and `voice.json` to `out`.

    onnx, config_json: a single-speaker Piper voice as published. The weights stay float32. any_length: write the
    encoder's convolutions as matrix products, for a GPU (see models/build/convolutions.py). Raises ConfigError.
    """
    config = json.loads(config_json.read_text(encoding="utf-8"))
    if config.get("num_speakers", 1) != 1 or config.get("phoneme_type", "espeak") != "espeak":
        raise ConfigError(f"{config_json}: only single-speaker Piper voices with espeak phonemes can be built")
    model = load(onnx)
    first = next((node for node in model.graph.node if node.name == _FIRST_VOCODER_NODE), None)
    if first is None or [value.name for value in model.graph.input] != _INPUTS:
        raise ConfigError(f"{onnx}: not a Piper VITS graph (no node {_FIRST_VOCODER_NODE}); export it with Piper")
    boundary = first.input[0]
    out.mkdir(parents=True, exist_ok=True)
    extractor = Extractor(model)
    for name, inputs, outputs in (("encoder", _INPUTS, [boundary]), ("vocoder", [boundary], ["output"])):
        part = extractor.extract_model(inputs, outputs)
        _rename(part, boundary, LATENT)
        if name == "vocoder":
            _cut_latent(part)
        elif any_length:
            unroll_convolutions(part.graph)
        save(part, out / f"{name}.onnx")
    (out / "voice.json").write_text(json.dumps(_kept(config), ensure_ascii=False, indent=1) + "\n", encoding="utf-8")


def _rename(model: ModelProto, old: str, new: str) -> None:
    graph = model.graph
    for node in graph.node:
        node.input[:] = [new if name == old else name for name in node.input]
        node.output[:] = [new if name == old else name for name in node.output]
    for value in [*graph.input, *graph.output]:
        if value.name == old:
            value.name = new


def _cut_latent(vocoder: ModelProto) -> None:
    """Let the graph take [start, stop) of the latent's frames itself."""
    graph = vocoder.graph
    part = f"{LATENT}_part"
    for node in graph.node:
        node.input[:] = [part if name == LATENT else name for name in node.input]
    graph.initializer.append(helper.make_tensor("frames_axis", TensorProto.INT64, [1], [2]))
    graph.node.insert(0, helper.make_node("Slice", [LATENT, "start", "stop", "frames_axis"], [part], part))
    channels = next(item for item in graph.initializer if item.name == _first_weight(graph)).dims[1]
    del graph.input[:]
    graph.input.append(helper.make_tensor_value_info(LATENT, TensorProto.FLOAT, [1, channels, "frames"]))
    graph.input.extend(helper.make_tensor_value_info(name, TensorProto.INT64, [1]) for name in ("start", "stop"))


def _first_weight(graph: GraphProto) -> str:
    """The initializer of the vocoder's first convolution."""
    return str(next(node for node in graph.node if node.name == _FIRST_VOCODER_NODE).input[1])


def _kept(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "sample_rate_hz": config["audio"]["sample_rate"],
        "espeak_voice": config["espeak"]["voice"],
        "noise_scale": config["inference"]["noise_scale"],
        "length_scale": config["inference"]["length_scale"],
        "noise_w": config["inference"]["noise_w"],
        "phoneme_ids": config["phoneme_id_map"],
    }
