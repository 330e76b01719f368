"""A Piper (VITS) checkpoint, cut in two at the latent: an encoder for whole clauses, and a vocoder for chunks."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from onnx import ModelProto, load, save
from onnx.utils import Extractor

from models.errors import ConfigError

_INPUTS = ["input", "input_lengths", "scales"]
_FIRST_VOCODER_NODE = "/dec/conv_pre/Conv"
LATENT = "latent"


def build_piper(onnx: Path, config_json: Path, out: Path) -> None:
    """Write `encoder.onnx` (phoneme ids -> latent), `vocoder.onnx` (latent -> audio) and `voice.json` to `out`.

    onnx, config_json: a single-speaker Piper voice as published. The weights stay float32. Raises ConfigError.
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


def _kept(config: dict[str, Any]) -> dict[str, Any]:
    return {
        "sample_rate_hz": config["audio"]["sample_rate"],
        "espeak_voice": config["espeak"]["voice"],
        "noise_scale": config["inference"]["noise_scale"],
        "length_scale": config["inference"]["length_scale"],
        "noise_w": config["inference"]["noise_w"],
        "phoneme_ids": config["phoneme_id_map"],
    }
