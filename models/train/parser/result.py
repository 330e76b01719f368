"""What a training run leaves: the adapter, its card, a report and two plots."""

from __future__ import annotations

import hashlib
import json
from collections.abc import Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np

from models.train.parser.adapter import save_adapter, temperatures_of
from models.train.parser.data import Packed
from models.train.parser.encoder import Lower
from models.train.parser.fit import Examples, FitState, Scores, scores_of
from models.train.parser.net import NetShape, ParserNet
from pipeline.nlu.parser.features import MOST_TOKENS, NUMBER_CLASSES, SHARES, WAYS
from pipeline.nlu.parser.labels import MOST_CALLS, REASONS, Space


@dataclass(frozen=True, slots=True)
class Size:
    """Dimensions of the network that are a choice. read: after which of the encoder's layers its states are taken;
    rank: of what is trained beside each of those layers' products, 0 for nothing.
    """

    read: tuple[int, ...] = (6,)
    rank: int = 16
    width: int = 192
    layers: int = 2
    heads: int = 6
    inner: int = 384


@dataclass(frozen=True, slots=True)
class Labels:
    """What the outputs and the tags of a network stand for."""

    space: Space
    tags: tuple[str, ...]

    def shape(self, size: Size, lower: Lower) -> NetShape:
        """The dimensions of a network on those layers of the encoder."""
        return NetShape(
            states=len(size.read) * lower.word.shape[1],
            shares=SHARES,
            **asdict(size),
            queries=MOST_CALLS,
            most_tokens=MOST_TOKENS,
            sizes=NUMBER_CLASSES,
            tags=len(self.tags),
            tools=len(self.space.tools),
            ways=WAYS,
            reasons=len(REASONS),
            head_widths=self.space.heads,
        )


def written(
    out: Path,
    net: ParserNet,
    state: FitState,
    labels: Labels,
    packed: Packed,
    held_out: Packed,
    begun: Mapping[str, Any],
) -> dict[str, Any]:
    """Calibrate, write all into `out`; the report, of which `begun` says how the run came about."""
    device = next(net.parameters()).device
    scores = scores_of(net, Examples(held_out, str(device)))
    temperatures = temperatures_of(scores, held_out, net.shape.head_widths)
    config = {"format": 1, "labels": labels.space.as_config(), "tags": list(labels.tags), "temperatures": temperatures}
    adapter = out / "parser.safetensors"
    save_adapter(adapter, net, config)
    report = {
        **begun,
        "examples": len(packed),
        "held_out": len(held_out),
        "losses": state.losses,
        "held_out_accuracy": state.held_out,
        "temperatures": temperatures,
        "reliability": _reliability(scores, held_out, temperatures["reason"]),
        "adapter": str(adapter),
        "adapter_bytes": adapter.stat().st_size,
        "adapter_sha256": hashlib.sha256(adapter.read_bytes()).hexdigest(),
    }
    _report(out, report)
    return report


def _reliability(scores: Scores, held_out: Packed, temperature: float) -> dict[str, Any]:
    """How often the reason is right where the model is so sure of it, in ten bins; the expected calibration error."""
    logits = scores.reasons.astype(np.float64) / temperature
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    sure, right = shares.max(1), shares.argmax(1) == held_out.reason
    bins = np.minimum((sure * 10).astype(int), 9)
    rows: list[dict[str, float]] = []
    for inside in (bins == b for b in range(10)):
        if inside.any():
            count = int(inside.sum())
            rows.append({"sure": float(sure[inside].mean()), "right": float(right[inside].mean()), "count": count})
    error = sum(row["count"] * abs(row["sure"] - row["right"]) for row in rows) / len(held_out)
    return {"bins": rows, "expected_calibration_error": float(error)}


# --- the report ----------------------------------------------------------------------------------------------------
def _report(out: Path, report: Mapping[str, Any]) -> None:
    (out / "report.json").write_text(json.dumps(report, ensure_ascii=False, indent=1) + "\n", encoding="utf-8")
    last = report["held_out_accuracy"][-1]
    made = f", by the generator of commit {report['generator']}" if report["generator"] else ""
    begun = f"| begun with | the adapter sha256 {report['start_sha256']} |\n" if report["start_sha256"] else ""
    layers, rank = " and ".join(map(str, report["size"]["read"])), report["size"]["rank"]
    added = f", with an addition of rank {rank} to each of their products" if rank else ""
    card = f"""# Adapter of the semantic parser

| | |
|---|---|
| made by | `{report["command"]}` |
{begun}| data | {report["lines"]} lines, sha256 {report["data_sha256"]}{made} |
| used | {report["examples"]} to train on, {report["held_out"]} held out |
| seed, epochs | {report["options"]["seed"]}, {report["options"]["epochs"]} |
| held out: reason, calls, both right | {last["reason"]:.4f}, {last["calls"]:.4f}, {last["whole"]:.4f} |
| expected calibration error of the reason | {report["reliability"]["expected_calibration_error"]:.4f} |
| temperatures | reason {report["temperatures"]["reason"]:.2f}, calls {report["temperatures"]["calls"]:.2f} |
| parser.safetensors | {report["adapter_bytes"]} bytes, sha256 {report["adapter_sha256"]} |

Read: the states of multilingual-e5-small (MIT, frozen, not in this file) after layer {layers} of its 12{added}. All
in this file was trained from scratch.
Loss by epoch: `loss.svg`. How sure against how often right: `reliability.svg`.
"""
    (out / "card.md").write_text(card, encoding="utf-8")
    losses = [(float(epoch), loss) for epoch, loss in enumerate(report["losses"], 1)]
    (out / "loss.svg").write_text(plot(losses, "epoch", "loss"), encoding="utf-8")
    points = [(row["sure"], row["right"]) for row in report["reliability"]["bins"]]
    text = plot(points, "how sure", "share right", diagonal=True)
    (out / "reliability.svg").write_text(text, encoding="utf-8")


def plot(points: Sequence[tuple[float, float]], x_name: str, y_name: str, *, diagonal: bool = False) -> str:
    """A line through points as SVG; with `diagonal` over the unit square, where it would lie at best."""
    width, height, edge = 420, 300, 45
    xs, ys = [x for x, _ in points], [y for _, y in points]
    low_x, high_x, low_y, high_y = (0.0, 1.0, 0.0, 1.0) if diagonal else (min(xs), max(xs), 0.0, max(ys))

    def at(x: float, y: float) -> str:
        right = edge + (width - 2 * edge) * (x - low_x) / ((high_x - low_x) or 1.0)
        up = height - edge - (height - 2 * edge) * (y - low_y) / ((high_y - low_y) or 1.0)
        return f"{right:.1f},{up:.1f}"

    axes = f"{at(low_x, high_y)} {at(low_x, low_y)} {at(high_x, low_y)}"
    parts = [f'<polyline points="{axes}" fill="none" stroke="#444"/>']
    if diagonal:
        parts.append(f'<polyline points="{at(0, 0)} {at(1, 1)}" fill="none" stroke="#bbb"/>')
    parts.append(f'<polyline points="{" ".join(at(x, y) for x, y in points)}" fill="none" stroke="#06c"/>')
    for x, y in points:
        cx, cy = at(x, y).split(",")
        parts.append(f'<circle cx="{cx}" cy="{cy}" r="3" fill="#06c"/>')
    for x, y, text in (
        (width / 2, height - 10, f"{x_name} ({low_x:g} to {high_x:g})"),
        (width / 2, 20, f"{y_name} ({low_y:.3g} to {high_y:.3g})"),
    ):
        parts.append(f'<text x="{x}" y="{y}" font-size="12" text-anchor="middle">{text}</text>')
    body = "\n".join(parts)
    return f'<svg xmlns="http://www.w3.org/2000/svg" width="{width}" height="{height}">\n{body}\n</svg>\n'
