"""Texts from outside that try to give orders: place names, titles, messages, tool results."""

from __future__ import annotations

import json
from dataclasses import dataclass

from benchmarks.harness.paths import INJECTIONS


@dataclass(frozen=True, slots=True)
class Injection:
    """kind: order, system, mark, json, disguise, odd or long."""

    kind: str
    text: str


def injections() -> list[Injection]:
    """The 200 committed texts, English and Mandarin."""
    rows = map(json.loads, INJECTIONS.read_text(encoding="utf-8").splitlines())
    return [Injection(row["kind"], row["text"] * row.get("repeat", 1)) for row in rows]
