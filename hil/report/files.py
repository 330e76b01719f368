"""A run as files: one line of JSON a scenario as it ends, JUnit XML, and one HTML page that needs no network."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import jinja2
import numpy as np

from hil.acoustics.noise import Audio
from hil.report.compare import Difference
from hil.report.pictures import STAGE_COLOURS, WIDTH, shares, waterfall, wave
from hil.rig.bench import Result
from hil.rig.verdict import BAD, OUTCOMES
from models.errors import InputError, StartupError

RESULTS = "results.jsonl"


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
    path: Path,
    rows: Sequence[Mapping[str, Any]],
    sounds: Mapping[str, Audio],
    env: Mapping[str, Any],
    differences: Sequence[Difference] = (),
    trend: Sequence[Mapping[str, Any]] = (),
) -> None:
    """The page. rows: as `Result.as_json`, with `profile`. sounds: what was heard, by id, of what was run now.

    differences: to a baseline. trend: earlier runs, oldest first, as `hil.report.trend.runs` gives them.
    """
    environment = jinja2.Environment(autoescape=True, trim_blocks=True, lstrip_blocks=True)
    template = environment.from_string(Path(__file__).with_name("page.html.jinja").read_text(encoding="utf-8"))
    counts = {name: sum(row["outcome"] == name for row in rows) for name in OUTCOMES}
    page = template.render(
        counts=", ".join(f"{count} {name}" for name, count in counts.items() if count),
        rows=[_shown(row, sounds.get(row["id"])) for row in rows],
        env={key: ", ".join(value) if isinstance(value, list) else value for key, value in env.items()},
        colours=STAGE_COLOURS,
        differences=differences,
        trend=trend,
        width=WIDTH,
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
        "wave": None if sound is None else wave(sound, times),
        "waterfall": waterfall(turns, limit),
        "distributions": _distributions(turns, row["limits_ms"]),
        "turns": [{**turn, "called": _called(turn)} for turn in turns],
        **_faults(row["repetitions"]),
    }


def _distributions(turns: Sequence[Mapping[str, Any]], limits: Mapping[str, float]) -> list[dict[str, Any]]:
    """Of first audio and of every stage with a limit, where there are turns enough."""
    found = []
    for stage in dict.fromkeys(("first_audio", *limits)):
        times = [turn["ms"][stage] for turn in turns if turn["ms"].get(stage) is not None]
        drawn = shares(times, limits.get(stage))
        if drawn is not None:
            found.append({"stage": stage, **drawn})
    return found


def _faults(repetitions: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was done to the device, what it said of it, and its slowest recovery."""
    recovered = [one["recovered_s"] for one in repetitions if one.get("recovered_s") is not None]
    return {
        "proofs": list(dict.fromkeys(proof for one in repetitions for proof in one.get("proofs", ()))),
        "modes": list(dict.fromkeys(mode for one in repetitions for mode in one.get("modes", ()))),
        "recovered_s": round(max(recovered), 1) if recovered else None,
    }


def _called(turn: Mapping[str, Any]) -> str:
    return "; ".join(
        f"{call['name']} {json.dumps(call['arguments'], ensure_ascii=False)}" for call in turn["tool_calls"]
    )


def _xml(text: str) -> str:
    """Without the control characters that XML cannot hold."""
    return "".join(sign for sign in text if sign >= " " or sign in "\n\t")
