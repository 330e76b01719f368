"""A trained parser as an adapter: one safetensors file with weights in float16 and the labels."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.store.tensor_file import write_tensors
from models.train.parser.data import IGNORED, Packed
from models.train.parser.fit import Scores
from models.train.parser.net import ParserNet

TEMPERATURES = np.geomspace(0.5, 6.0, 60)


def save_adapter(path: Path, net: ParserNet, config: dict[str, Any]) -> None:
    """What was trained, and no more. config: labels, tags, temperatures; the shape is added."""
    tensors: dict[str, NDArray[Any]] = {
        name: value.detach().cpu().numpy().astype(np.float16) for name, value in net.state_dict().items()
    }
    whole = {**config, "shape": net.shape.as_config()}
    write_tensors(path, tensors, {"parser": json.dumps(whole, ensure_ascii=False)})


def temperatures_of(scores: Scores, labels: Packed, widths: dict[str, int]) -> dict[str, float]:
    """The temperatures at which held-out labels are likeliest: one for the reason, one for all that calls decide."""
    by_reason = [_nll(scores.reasons, labels.reason, t) for t in TEMPERATURES]
    offsets = np.cumsum([0, *widths.values()])
    rows: list[tuple[NDArray[Any], NDArray[Any]]] = []
    for head in range(len(widths) - 1):
        part = scores.choices[:, :, offsets[head] : offsets[head + 1]].reshape(-1, int(np.diff(offsets)[head]))
        chosen = labels.chosen[:, :, head].reshape(-1)
        if (chosen != IGNORED).any():
            rows.append((part[chosen != IGNORED], chosen[chosen != IGNORED]))
    by_calls = [sum(_nll(part, chosen, t) * len(chosen) for part, chosen in rows) for t in TEMPERATURES]
    return {
        "reason": float(TEMPERATURES[int(np.argmin(by_reason))]),
        "calls": float(TEMPERATURES[int(np.argmin(by_calls))]),
    }


def _nll(logits: NDArray[Any], labels: NDArray[Any], temperature: float) -> float:
    scaled = logits.astype(np.float64) / temperature
    scaled -= scaled.max(1, keepdims=True)
    return float((np.log(np.exp(scaled).sum(1)) - scaled[np.arange(len(labels)), labels]).mean())
