"""`cockpit adapt parser`: data to examples, training, calibration, the adapter and its report. On the bench only.

Into the folder `out` go `parser.safetensors` (what the registry pins and `models build` reads), `report.json`,
`card.md` and two plots; `checkpoint.pt` stays there until the run is complete, so that the same command goes on.
"""

from __future__ import annotations

import hashlib
import json
import time
from collections.abc import Callable, Iterable, Mapping, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import TYPE_CHECKING, Any

import numpy as np

from models.errors import InputError, StartupError
from models.train.parser.data import Example
from models.train.parser.examples import constants_in, examples_of
from pipeline.nlu.lexicon import build_lexicon
from pipeline.nlu.parser.features import MOST_TOKENS, NUMBER_CLASSES, UNKNOWN, WAYS, FeatureReader, tag_names
from pipeline.nlu.parser.labels import MOST_CALLS, REASONS, Space
from pipeline.vehicle.places import load_places

if TYPE_CHECKING:
    from models.train.parser.fit import FitOptions, Scores
    from models.train.parser.net import ParserNet
    from models.train.parser.vocabulary import Vocabulary

Line = Mapping[str, Any]
Say = Callable[[str], None]
EMBEDDING = 96
HELD_OUT = 25
"""Without a dev file one line of so many is held out, chosen by the hash of its text."""


@dataclass(frozen=True, slots=True)
class Size:
    """Dimensions of the network that are a choice."""

    width: int = 96
    layers: int = 2
    heads: int = 4
    inner: int = 192


def read_lines(path: Path) -> list[Line]:
    """Lines of a JSON-lines file, or of every `*.jsonl` in a folder but `dev.jsonl`. Raises InputError."""
    files = [path] if path.is_file() else sorted(p for p in path.glob("*.jsonl") if p.name != "dev.jsonl")
    if not files:
        raise InputError(f"{path}: no such file, and no folder with .jsonl files")
    found: list[Line] = []
    for file in files:
        for number, text in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            try:
                line = json.loads(text)
                if not isinstance(line["text"], str) or not isinstance(line["calls"], list):
                    raise TypeError("text must be a string and calls a list")
            except (ValueError, KeyError, TypeError) as error:
                raise InputError(f"{file}:{number}: no line of training data: {error!r}") from error
            found.append(line)
    return found


def digest_of(lines: Iterable[Line]) -> str:
    """sha256 of the data: the same lines in the same order give the same."""
    digest = hashlib.sha256()
    for line in lines:
        digest.update(json.dumps(line, ensure_ascii=False, sort_keys=True).encode() + b"\n")
    return digest.hexdigest()


def held_out_of(lines: Sequence[Line]) -> tuple[list[Line], list[Line]]:
    """(for training, held out), by the hash of each text, so that it depends on no order."""
    train: list[Line] = []
    dev: list[Line] = []
    for line in lines:
        number = int.from_bytes(hashlib.sha256(line["text"].encode()).digest()[:4], "big")
        (dev if number % HELD_OUT == 0 else train).append(line)
    return train, dev


def train_parser(
    lines: Sequence[Line],
    dev: Sequence[Line],
    vocabulary: Vocabulary,
    out: Path,
    options: FitOptions,
    *,
    command: str,
    size: Size | None = None,
    told: Callable[[int, int, float], None] = lambda _done, _all, _loss: None,
    say: Say = lambda _line: None,
) -> dict[str, Any]:
    """Train on `lines`, calibrate on `dev` (empty: a part of `lines`), write the adapter; returns the report.

    Raises InputError where a checkpoint of another run is in the way or too few lines can be used.
    """
    try:
        from models.train.parser.fit import fit, scores_of
        from models.train.parser.net import NetShape
    except ModuleNotFoundError as error:
        raise StartupError('training needs torch; run: pip install "cockpit-voice[build]"') from error
    from models.train.parser.vocabulary import rounded

    began = time.monotonic()
    used, held = (lines, dev) if dev else held_out_of(lines)
    space = Space.of(constants_in(lines))
    tags = tag_names()
    reader = FeatureReader(vocabulary.pieces, tags, space.tools[1:], build_lexicon(load_places(), by_sound=False))
    faults: dict[str, int] = {}
    examples = list(examples_of(used, reader, space, faults))
    calibration = list(examples_of(held, reader, space, {}))
    say(f"{len(examples)} examples to train on, {len(calibration)} held out, {sum(faults.values())} unusable {faults}")
    if len(examples) < options.batch or not calibration:
        raise InputError(f"{len(examples)} usable lines and {len(calibration)} held out are too few to train on")
    chosen = size or Size()
    shape = NetShape(
        vocabulary=len(vocabulary.pieces),
        embedding=vocabulary.table.shape[1],
        **asdict(chosen),
        queries=MOST_CALLS,
        most_tokens=MOST_TOKENS,
        sizes=NUMBER_CLASSES,
        tags=len(tags),
        tools=len(space.tools),
        ways=WAYS,
        reasons=len(REASONS),
        head_widths=space.heads,
    )
    out.mkdir(parents=True, exist_ok=True)
    checkpoint = out / "checkpoint.pt"
    unknown = vocabulary.pieces.index(UNKNOWN) + 1
    table = rounded(vocabulary.table)
    try:
        net, state = fit(shape, table, examples, calibration, options, checkpoint, unknown=unknown, told=told)
    except ValueError as error:
        raise InputError(str(error)) from error
    scores = scores_of(net, calibration)
    report = {
        "command": command,
        "data_sha256": digest_of(lines),
        "lines": len(lines),
        "examples": len(examples),
        "held_out": len(calibration),
        "unusable": faults,
        "options": asdict(options),
        "losses": state.losses,
        "held_out_accuracy": state.held_out,
        "seconds": round(time.monotonic() - began),
    }
    report |= _written(out, net, vocabulary, space, tags, scores, calibration)
    _report(out, report)
    checkpoint.unlink()
    return report


def _written(
    out: Path,
    net: ParserNet,
    vocabulary: Vocabulary,
    space: Space,
    tags: Sequence[str],
    scores: Scores,
    held_out: Sequence[Example],
) -> dict[str, Any]:
    """Write the adapter; what the report says of it."""
    from models.train.parser.adapter import save_adapter, temperatures_of

    temperatures = temperatures_of(scores, held_out, net.shape.head_widths)
    config = {"format": 1, "labels": space.as_config(), "tags": list(tags), "temperatures": temperatures}
    adapter = out / "parser.safetensors"
    save_adapter(adapter, net, vocabulary.pieces, vocabulary.table, config)
    return {
        "temperatures": temperatures,
        "reliability": _reliability(scores, held_out, temperatures["reason"]),
        "adapter": str(adapter),
        "adapter_bytes": adapter.stat().st_size,
        "adapter_sha256": hashlib.sha256(adapter.read_bytes()).hexdigest(),
    }


def _reliability(scores: Scores, held_out: Sequence[Example], temperature: float) -> dict[str, Any]:
    """How often the reason is right where the model is so sure of it, in ten bins; the expected calibration error."""
    logits = scores.reasons.astype(np.float64) / temperature
    shares = np.exp(logits - logits.max(1, keepdims=True))
    shares /= shares.sum(1, keepdims=True)
    sure, right = shares.max(1), shares.argmax(1) == np.array([example.reason for example in held_out])
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
    card = f"""# Adapter of the semantic parser

| | |
|---|---|
| made by | `{report["command"]}` |
| data | {report["lines"]} lines, sha256 {report["data_sha256"]} |
| used | {report["examples"]} to train on, {report["held_out"]} held out |
| seed, epochs | {report["options"]["seed"]}, {report["options"]["epochs"]} |
| held out: reason, calls, both right | {last["reason"]:.4f}, {last["calls"]:.4f}, {last["whole"]:.4f} |
| expected calibration error of the reason | {report["reliability"]["expected_calibration_error"]:.4f} |
| temperatures | reason {report["temperatures"]["reason"]:.2f}, calls {report["temperatures"]["calls"]:.2f} |
| parser.safetensors | {report["adapter_bytes"]} bytes, sha256 {report["adapter_sha256"]} |

Vocabulary rows: projected from Qwen2.5-Coder-0.5B-Instruct (Apache-2.0). The rest was trained from scratch.
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
