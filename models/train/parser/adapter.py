"""A trained parser as an adapter: one safetensors file with weights in float16, the vocabulary and the labels."""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.store.tensor_file import read_tensors, write_tensors
from models.train.parser.data import IGNORED, Example
from models.train.parser.fit import Scores
from models.train.parser.net import ParserNet
from models.train.parser.vocabulary import Vocabulary, joined, quantised

SHIPPED = Path(__file__).resolve().parents[2] / "adapters" / "parser" / "parser.safetensors"
TEMPERATURES = np.geomspace(0.5, 6.0, 60)


def save_adapter(
    path: Path, net: ParserNet, pieces: Sequence[str], table: NDArray[np.float32], config: dict[str, Any]
) -> None:
    """config: labels, tags, temperatures; the shape is added."""
    tensors: dict[str, NDArray[Any]] = {
        name: value.detach().numpy().astype(np.float16)
        for name, value in net.state_dict().items()
        if name != "table.weight"
    }
    tensors["table"], tensors["table.scale"] = quantised(table)
    tensors["vocabulary"] = joined(pieces)
    whole = {**config, "shape": net.shape.as_config()}
    write_tensors(path, tensors, {"parser": json.dumps(whole, ensure_ascii=False)})


def temperatures_of(scores: Scores, examples: Sequence[Example], widths: dict[str, int]) -> dict[str, float]:
    """The temperatures at which held-out labels are likeliest: one for the reason, one for all that calls decide."""
    reasons = np.array([example.reason for example in examples])
    by_reason = [_nll(scores.reasons, reasons, t) for t in TEMPERATURES]
    offsets = np.cumsum([0, *widths.values()])
    rows: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for head in range(len(widths) - 1):
        part = scores.choices[:, :, offsets[head] : offsets[head + 1]].reshape(-1, int(np.diff(offsets)[head]))
        labels = np.stack([example.chosen[:, head] for example in examples]).reshape(-1)
        if (labels != IGNORED).any():
            rows.append((part[labels != IGNORED], labels[labels != IGNORED]))
    by_calls = [sum(_nll(part, labels, t) * len(labels) for part, labels in rows) for t in TEMPERATURES]
    return {
        "reason": float(TEMPERATURES[int(np.argmin(by_reason))]),
        "calls": float(TEMPERATURES[int(np.argmin(by_calls))]),
    }


def _nll(logits: NDArray[Any], labels: NDArray[Any], temperature: float) -> float:
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(1, keepdims=True)
    return float((np.log(np.exp(scaled).sum(1)) - scaled[np.arange(len(labels)), labels]).mean())


def vocabulary_in(adapter: Path) -> Vocabulary:
    """The vocabulary that an adapter holds. Raises InputError for a file that is none."""
    tensors, _ = read_tensors(adapter)
    rows = tensors["table"][1:].astype(np.float32) * tensors["table.scale"][1:, None]
    return Vocabulary(tensors["vocabulary"].tobytes().decode().split("\n"), rows.astype(np.float32), 0.0)
