"""A run as files: one line of JSON a scenario as it ends, JUnit XML, and one HTML page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jinja2
import numpy as np

from hil.acoustics.noise import Audio, active_level
from hil.rig.bench import Result
from hil.rig.verdict import BAD, OUTCOMES
from models.errors import InputError, StartupError
from pipeline.frames import SAMPLE_RATE_HZ

RESULTS = "results.jsonl"
_STAGE_COLOURS = {"endpoint": "#8c959f", "asr": "#0969da", "llm": "#8250df", "tts_first": "#bf8700"}
_BESIDE = ("asr",)
"""Runs inside the trailing silence: its bar takes no place of its own."""
_WIDTH, _WAVE, _SHARES, _ROW = 720, 60, 120, 16
_MOST_BARS = 20
_ENOUGH = 10
"""So many turns must there be for a distribution to say something."""


def begin(folder: Path, kept: Sequence[Mapping[str, Any]]) -> None:
    """`results.jsonl` with what is kept of an earlier run and nothing else."""
    lines = (json.dumps(row, ensure_ascii=False, default=str) + "\n" for row in kept)
    (folder / RESULTS).write_text("".join(lines), encoding="utf-8")


def append(folder: Path, result: Result, profile: str) -> None:
    """One line at the end of `results.jsonl`. Raises StartupError."""
    line = json.dumps(result.as_json() | {"profile": profile}, ensure_ascii=False, default=str)
    try:
        with (folder / RESULTS).open("a", encoding="utf-8") as file:
            file.write(line + "\n")
    except OSError as error:
        raise StartupError(f"{folder / RESULTS} cannot be written ({error.strerror}): name another --out") from error


def earlier(folder: Path) -> list[dict[str, Any]]:
    """The results that a run left there, a torn last line left out. Raises InputError for a file that is none."""
    path = folder / RESULTS
    if not path.is_file():
        return []
    lines = path.read_text(encoding="utf-8").splitlines()
    found = []
    for number, line in enumerate(lines, 1):
        try:
            row = json.loads(line)
            found.append(row | {"digest": row["digest"], "outcome": row["outcome"], "profile": row["profile"]})
        except (ValueError, KeyError, TypeError) as error:
            if number == len(lines):
                break  # the run was ended while it wrote
            raise InputError(f"{path}:{number}: no result of the rig; name another --out") from error
    return found


def write_junit(path: Path, rows: Sequence[Mapping[str, Any]]) -> None:
    """JUnit XML: what is not PASS or MARGINAL is a failure, ERROR an error."""
    bad = [row for row in rows if row["outcome"] in BAD]
    errors = [row for row in bad if row["outcome"] == "ERROR"]
    suite = ElementTree.Element("testsuite", name="cockpit hil", tests=str(len(rows)))
    suite.set("failures", str(len(bad) - len(errors)))
    suite.set("errors", str(len(errors)))
    suite.set("skipped", str(sum(row["outcome"] == "SKIPPED" for row in rows)))
    suite.set("time", f"{sum(row['seconds'] for row in rows):.2f}")
    for row in rows:
        case = ElementTree.SubElement(
            suite, "testcase", name=row["id"], classname=row["requirement"] or "scenario", time=f"{row['seconds']:.2f}"
        )
        if row["outcome"] == "SKIPPED":
            ElementTree.SubElement(case, "skipped", message=_xml("; ".join(row["reasons"])))
        if row["outcome"] in BAD:
            kind = "error" if row["outcome"] == "ERROR" else "failure"
            told = "; ".join(row["reasons"])
            ElementTree.SubElement(case, kind, message=_xml(told[:200]), type=row["outcome"]).text = _xml(told)
    ElementTree.ElementTree(suite).write(path, encoding="utf-8", xml_declaration=True)


def write_html(
    path: Path, rows: Sequence[Mapping[str, Any]], sounds: Mapping[str, Audio], env: Mapping[str, Any]
) -> None:
    """The page. rows: as `Result.as_json`, with `profile`. sounds: what was heard, by id, of what was run now."""
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(Path(__file__).with_name("report.html.jinja").read_text(encoding="utf-8"))
    counts = {name: sum(row["outcome"] == name for row in rows) for name in OUTCOMES}
    page = template.render(
        counts=", ".join(f"{count} {name}" for name, count in counts.items() if count),
        rows=[_shown(row, sounds.get(row["id"])) for row in rows],
        env={key: ", ".join(value) if isinstance(value, list) else value for key, value in env.items()},
        colours=_STAGE_COLOURS,
        width=_WIDTH,
    )
    path.write_text(page, encoding="utf-8")


def _shown(row: Mapping[str, Any], sound: Audio | None) -> dict[str, Any]:
    """A row of the page: the result, and its pictures as numbers."""
    runs = [run for one in row["repetitions"] for run in (one, one.get("later")) if run is not None]
    turns = [turn for run in runs for turn in run["turns"]]
    times = [turn["ms"]["first_audio"] for turn in turns if turn["ms"]["first_audio"] is not None]
    limit = row["limits_ms"].get("first_audio")
    return {
        **row,
        "first_audio": f"{np.median(times):.0f}" if times else "-",
        "wave": None if sound is None else _wave(sound, times),
        "waterfall": _waterfall(turns, limit),
        "shares": _shares(times, limit),
        "turns": [{**turn, "called": _called(turn)} for turn in turns],
        **_faults(row["repetitions"]),
    }


def _faults(repetitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was done to the device, what it said of it, and its slowest recovery."""
    recovered = [one["recovered_s"] for one in repetitions if one.get("recovered_s") is not None]
    return {
        "proofs": list(dict.fromkeys(proof for one in repetitions for proof in one.get("proofs", ()))),
        "modes": list(dict.fromkeys(mode for one in repetitions for mode in one.get("modes", ()))),
        "recovered_s": round(max(recovered), 1) if recovered else None,
    }


def _wave(sound: Audio, times: Sequence[float]) -> dict[str, Any]:
    """What was heard, with the end of speech and the first sound of the first reply."""
    peaks = np.array([np.abs(part).max(initial=0.0) for part in np.array_split(sound, _WIDTH)])
    heights = peaks / (peaks.max() or 1.0) * _WAVE / 2
    bars = (f"M{x} {_WAVE / 2 - height:.1f}v{2 * height:.1f}" for x, height in enumerate(heights))
    end = _speech_end(sound)
    marks = [(end, "end of speech")]
    if times:
        marks.append((end + times[0] / 1e3, f"first audio after {times[0]:.0f} ms"))
    scale = _WIDTH / (len(sound) / SAMPLE_RATE_HZ)
    placed = [{"x": round(min(at * scale, _WIDTH)), "text": text} for at, text in marks]
    return {"height": _WAVE, "path": "".join(bars), "marks": placed}


def _speech_end(sound: Audio) -> float:
    """Seconds to the end of the last 10 ms block that is within 25 dB of the active level."""
    size = SAMPLE_RATE_HZ // 100
    blocks = sound[: len(sound) - len(sound) % size].reshape(-1, size)
    loud = np.flatnonzero(np.sqrt(np.mean(blocks**2, axis=1)) > active_level(sound) * 10 ** (-25 / 20))
    return 0.0 if not len(loud) else float(loud[-1] + 1) / 100


def _waterfall(turns: Sequence[Mapping[str, Any]], limit: float | None) -> dict[str, Any] | None:
    """Stages of each turn, one row below the other, from the end of speech to the first sound."""
    shown = [turn["ms"] for turn in turns if turn["ms"]["first_audio"] is not None][:_MOST_BARS]
    if not shown:
        return None
    longest = max([ms["first_audio"] for ms in shown] + [limit or 0.0])
    scale, bars = _WIDTH / longest, []
    for number, ms in enumerate(shown):
        x = 0.0
        for stage, colour in _STAGE_COLOURS.items():
            width = (ms[stage] or 0.0) * scale
            bar = {"x": round(x, 1), "y": number * _ROW + 2, "width": round(width, 1), "colour": colour}
            bars.append(bar | {"text": f"{stage} {ms[stage]} ms"})
            x += 0.0 if stage in _BESIDE else width
        end = {"x": round(ms["first_audio"] * scale, 1), "y": number * _ROW + 2, "width": 2, "colour": "#1a7f37"}
        bars.append(end | {"text": f"first audio {ms['first_audio']} ms"})
    drawn = None if limit is None else round(limit * scale, 1)
    return {"height": len(shown) * _ROW, "bars": bars, "limit": drawn, "longest": round(longest)}


def _shares(times: Sequence[float], limit: float | None) -> dict[str, Any] | None:
    """Share of turns whose first sound came within so many ms."""
    if len(times) < _ENOUGH:
        return None
    values = sorted(times)
    scale = _WIDTH / max(values[-1], limit or 0.0)
    steps = [
        f"{value * scale:.1f},{_SHARES * (1 - number / len(values)):.1f}" for number, value in enumerate(values, 1)
    ]
    p50, p99 = np.percentile(values, (50, 99))
    drawn = None if limit is None else round(limit * scale, 1)
    points = f"0,{_SHARES} {' '.join(steps)}"
    told = {"p50": round(p50), "p99": round(p99), "turns": len(values)}
    return {"height": _SHARES, "points": points, "limit": drawn, **told}


def _called(turn: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}" for call in turn["tool_calls"]
    )


def _xml(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(sign for sign in text if sign >= " " or sign in "\n\t")
