"""What the registry declares of a model against what is here: libraries, and what the build says of itself."""

from __future__ import annotations

import importlib.metadata
import json
from collections.abc import Iterator
from pathlib import Path
from typing import Any

from packaging.specifiers import SpecifierSet

from models.store.registry import ModelEntry

CONFIG = "config.json"
TOKENIZER = "tokenizer.json"
_SAME_PACKAGE = {"onnxruntime": ("onnxruntime", "onnxruntime-gpu")}
"""Distributions of which one is as good as the other."""


def missing_libraries(entry: ModelEntry) -> list[str]:
    """Requirements of `entry` that are not met here, each with what is here."""
    lacking = []
    for name, wanted in entry.required_libs.items():
        found = _version(name)
        if found is None or not SpecifierSet(wanted).contains(found, prereleases=True):
            lacking.append(f"{name}{wanted} ({'not installed' if found is None else f'{found} is here'})")
    return lacking


def _version(name: str) -> str | None:
    for distribution in _SAME_PACKAGE.get(name, (name,)):
        try:
            return importlib.metadata.version(distribution)
        except importlib.metadata.PackageNotFoundError:
            continue
    return None


def differences(entry: ModelEntry, folder: Path, *, whole: bool) -> Iterator[tuple[Path, str]]:
    """(file, what it says other than declared) of the build in `folder`. whole: look into the tokenizer, too."""
    if entry.stop_ids or entry.memory_layout is not None:
        config = _read(folder / CONFIG)
        stop_ids = config.get("stop_ids")
        if entry.stop_ids and (not isinstance(stop_ids, list) or sorted(stop_ids) != sorted(entry.stop_ids)):
            yield folder / CONFIG, f"generation stops at {stop_ids}, the registry declares {list(entry.stop_ids)}"
        found = layout_of(config)
        if entry.memory_layout not in (None, found):
            yield folder / CONFIG, f"memory layout {found!r}, the registry declares {entry.memory_layout!r}"
    if whole and entry.special_tokens:
        added = _read(folder / TOKENIZER).get("added_tokens")
        ids = {item.get("content"): item.get("id") for item in added or () if isinstance(item, dict)}
        for text, wanted in entry.special_tokens.items():
            if ids.get(text) != wanted:
                yield folder / TOKENIZER, f"{text} is token {ids.get(text)}, the registry declares {wanted}"


def layout_of(config: dict[str, Any]) -> str:
    """The weights' format of a built language model, and the shape of its keys and values for one token."""
    return "{}, kv 2 x {} x {} x {}".format(*(config.get(key) for key in ("quant", "layers", "kv_heads", "head_dim")))


def _read(path: Path) -> dict[str, Any]:
    """{} for a file that is missing or damaged: the manifest's business."""
    try:
        said = json.loads(path.read_text(encoding="utf-8"))
    except (OSError, ValueError):
        return {}
    return said if isinstance(said, dict) else {}
