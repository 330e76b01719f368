"""A Qwen2.5-0.5B shape with random weights, built for devices: speed where there are no real weights."""

from __future__ import annotations

import json
import shutil
import tempfile
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.build.llm import FullWeights
from models.build.llm_device import DeviceHead, choose, score
from models.build.llm_emit import Emitter, WeightFile
from models.build.llm_gguf import Checkpoint, DecoderShape
from models.build.llm_graph import DecoderGraph, save
from models.engines.llm.tokens import guard as tokenizer_guard

SHAPE = DecoderShape("qwen2", 24, 896, 14, 2, 64, 151_936, 32_768, 1e-6, 1e6, 0, True)
FFN = 4864


class RandomCheckpoint(Checkpoint):
    """Tensors by name and shape, small random numbers; norms are ones."""

    def __init__(self) -> None:
        super().__init__(Path("random"), _Empty())
        self._random = np.random.default_rng(1)

    def has(self, name: str) -> bool:
        return not name.startswith(("output.", "rope_freqs.")) and not name.endswith(("q_norm.weight", "k_norm.weight"))

    def values(self, name: str) -> NDArray[np.float32]:
        s, kv = SHAPE, SHAPE.kv_heads * SHAPE.head_dim
        if name.endswith("norm.weight"):
            return np.ones(s.hidden, np.float32)
        rows = {"attn_q": s.hidden, "attn_k": kv, "attn_v": kv, "ffn_gate": FFN, "ffn_up": FFN}
        part = name.split(".")[2] if name.startswith("blk.") else ""
        if name.endswith(".bias"):
            return np.zeros(rows[part], np.float32)
        shape = (s.vocab if name == "token_embd.weight" else rows.get(part, s.hidden), s.hidden)
        if part == "ffn_down":
            shape = (s.hidden, FFN)
        return self._random.normal(0, 0.02, shape).astype(np.float32)

    def row_order(self, name: str, shape: DecoderShape) -> None:
        return None


class _Empty:
    tensors: tuple[Any, ...] = ()


def build_random(tokenizer: Path) -> Path:
    """A folder as models.build.llm writes it, in the temporary directory. tokenizer: a built model's folder."""
    out = Path(tempfile.gettempdir()) / "cockpit-random" / "random-f16"
    out.mkdir(parents=True, exist_ok=True)
    for name in ("tokenizer.json", tokenizer_guard.FILE_NAME):
        shutil.copy(tokenizer / name, out / name)
    checkpoint = RandomCheckpoint()
    with WeightFile(out / "model.bin") as file:
        weights = FullWeights(checkpoint, SHAPE, np.float16)
        save(DecoderGraph(checkpoint, SHAPE, weights, Emitter(file), np.float16).body(), out / "model.onnx")
        _, table = weights.head()
        save(DeviceHead(SHAPE, table, Emitter(file)).emit(), out / "head.onnx")
        save(choose(SHAPE, Emitter(file)), out / "choose.onnx")
        save(score(SHAPE, Emitter(file)), out / "score.onnx")
    config = {
        "architecture": "qwen2",
        "quant": "f16",
        "layers": SHAPE.layers,
        "kv_heads": SHAPE.kv_heads,
        "head_dim": SHAPE.head_dim,
        "hidden": SHAPE.hidden,
        "vocab": SHAPE.vocab,
        "context_tokens": SHAPE.context,
        "stop_ids": [],
        "bos_id": None,
        "bos_token": "",
        "eos_token": "",
        "add_bos": False,
        "chat_template": False,
    }
    (out / "config.json").write_text(json.dumps(config), encoding="utf-8")
    return out
