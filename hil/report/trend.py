"""What every run came to, in one SQLite file: the trend over runs."""

from __future__ import annotations

import json
import sqlite3
from collections.abc import Mapping, Sequence
from contextlib import closing
from pathlib import Path
from typing import Any

import numpy as np

from models.errors import StartupError

FILE = "trend.sqlite"
_NEWEST = 30
_TABLE = """CREATE TABLE IF NOT EXISTS results (
  run TEXT NOT NULL, id TEXT NOT NULL, profile TEXT NOT NULL, outcome TEXT NOT NULL, turns INTEGER NOT NULL,
  first_audio_p50_ms REAL, first_audio_p99_ms REAL, digest TEXT NOT NULL, environment TEXT NOT NULL,
  PRIMARY KEY (run, id))"""


def note(file: Path, rows: Sequence[Mapping[str, Any]], env: Mapping[str, Any]) -> None:
    """Add a run; `env["date"]` names it. Raises StartupError for a file that cannot be written or is none of ours."""
    values = [(env["date"], *_values(row), json.dumps(env, default=str)) for row in rows]
    try:
        with closing(sqlite3.connect(file)) as base, base:
            base.execute(_TABLE)
            base.executemany("INSERT OR REPLACE INTO results VALUES (?, ?, ?, ?, ?, ?, ?, ?, ?)", values)
    except sqlite3.Error as error:
        raise StartupError(f"{file} cannot hold the trend ({error}): name another --trend") from error


def runs(file: Path) -> list[dict[str, Any]]:
    """The newest runs, oldest first: `run`, `passed` and `results`, and the median of their P50 in ms."""
    with closing(sqlite3.connect(file)) as base:
        rows = base.execute("SELECT run, outcome, first_audio_p50_ms FROM results ORDER BY run").fetchall()
    told: dict[str, list[tuple[str, float | None]]] = {}
    for run, outcome, p50 in rows:
        told.setdefault(run, []).append((outcome, p50))
    return [_run(run, results) for run, results in list(told.items())[-_NEWEST:]]


def _run(run: str, results: Sequence[tuple[str, float | None]]) -> dict[str, Any]:
    times = [p50 for _, p50 in results if p50 is not None]
    passed = sum(outcome in ("PASS", "MARGINAL", "DEGRADED-AS-EXPECTED") for outcome, _ in results)
    p50 = round(float(np.median(times))) if times else None
    return {"run": run, "passed": passed, "results": len(results), "first_audio_p50_ms": p50}


def _values(row: Mapping[str, Any]) -> tuple[Any, ...]:
    turns = [turn for repetition in row["repetitions"] for turn in repetition["turns"]]
    times = [turn["ms"]["first_audio"] for turn in turns if turn["ms"]["first_audio"] is not None]
    p50, p99 = np.percentile(times, (50, 99)).tolist() if times else (None, None)
    return row["id"], row["profile"], row["outcome"], len(turns), p50, p99, row["digest"]
