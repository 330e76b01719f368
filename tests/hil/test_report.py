"""The files of a run."""

from __future__ import annotations

import base64
import re
import struct
import zlib
from pathlib import Path
from typing import Any
from xml.etree import ElementTree

import numpy as np
import pytest

from hil.report import files as report
from hil.report import trend
from hil.report.compare import bootstrap, differences
from hil.report.pictures import spectrogram, speech_end
from hil.rig.bench import Result
from hil.rig.scenario import find
from models.errors import InputError, StartupError


def row(name: str, outcome: str, times: tuple[float, ...] = (), reasons: tuple[str, ...] = ()) -> dict[str, Any]:
    turn = {"transcript": "<b>打开</b> & \x07", "reply": "Done.", "tool_calls": [{"name": "set_fan", "arguments": {}}]}
    parts = {"endpoint": 200.0, "asr": 90.0, "llm": None, "tts_first": 40.0}
    turns = [turn | {"ms": parts | {"first_audio": time}} for time in times]
    return {
        "id": name, "requirement": None, "outcome": outcome, "reasons": list(reasons), "file": "a.yaml", "digest": name,
        "limits_ms": {"first_audio": 800.0}, "seconds": 1.5, "repetitions": [{"turns": turns}], "profile": "cpu",
    }  # fmt: skip


ROWS = [
    row("good", "PASS", tuple(range(300, 312))),
    row("wrong", "FAIL", (900.0,), ("<script>alert(1)</script>\x07",)),
    row("broken", "ERROR", (), ("no recording",)),
]


def test_the_page_holds_everything_and_needs_nothing(tmp_path: Path) -> None:
    sound = (np.sin(np.arange(16_000) / 8) * (np.arange(16_000) < 8_000)).astype(np.float32)
    report.write_html(tmp_path / "report.html", ROWS, {"good": sound}, {"models": ["a", "b"], "date": "today"})
    page = (tmp_path / "report.html").read_text(encoding="utf-8")
    assert "1 PASS, 1 FAIL, 1 ERROR" in page
    assert page.index("<table>") < page.index('<section id="good">')
    assert "<script>" not in page
    assert "&lt;b&gt;打开&lt;/b&gt; &amp; " in page
    assert page.count("waveform") == 1
    assert "P50 306 ms, P99 311 ms, 12 turns" in page
    assert "end of speech" in page
    assert not re.search(r"(?:src|href)=[\"'](?!#|data:image/png;base64,)", page), "nothing is fetched"
    assert speech_end(sound) == pytest.approx(0.5, abs=0.02)


def test_junit_counts_what_is_bad(tmp_path: Path) -> None:
    report.write_junit(tmp_path / "junit.xml", ROWS)
    suite = ElementTree.parse(tmp_path / "junit.xml").getroot()
    assert (suite.get("tests"), suite.get("failures"), suite.get("errors")) == ("3", "1", "1")
    assert [case.get("name") for case in suite] == ["good", "wrong", "broken"]
    assert [child.tag for case in suite for child in case] == ["failure", "error"]


def test_results_are_kept_as_they_end_and_a_torn_line_is_left_out(tmp_path: Path) -> None:
    assert report.earlier(tmp_path) == []
    one = find(["window-halfway"])[0]
    report.append(tmp_path, Result(one, "TIMEOUT", "no answer within 60s"), "cpu")
    file = tmp_path / report.RESULTS
    file.write_text(file.read_text() + '{"digest": "tor', encoding="utf-8")
    (kept,) = report.earlier(tmp_path)
    assert (kept["id"], kept["outcome"], kept["profile"], kept["digest"]) == (
        "window-halfway",
        "TIMEOUT",
        "cpu",
        one.digest,
    )
    file.write_text('{"no": "result"}\n{}\n', encoding="utf-8")
    with pytest.raises(InputError, match="no result of the rig"):
        report.earlier(tmp_path)


def test_going_on_keeps_what_is_kept_and_nothing_twice(tmp_path: Path) -> None:
    one = find(["window-halfway"])[0]
    for outcome in ("ERROR", "PASS"):
        report.append(tmp_path, Result(one, outcome), "cpu")
    kept = report.earlier(tmp_path)[1:]
    report.begin(tmp_path, kept)
    assert report.earlier(tmp_path) == kept
    report.begin(tmp_path, [])
    assert report.earlier(tmp_path) == []


def test_a_spectrogram_is_a_png_whose_bright_line_is_the_tone() -> None:
    tone = np.sin(2 * np.pi * 2000 * np.arange(16_000) / 16_000).astype(np.float32)
    png = base64.b64decode(spectrogram(tone).removeprefix("data:image/png;base64,"))
    width, height = struct.unpack(">II", png[16:24])
    length = struct.unpack(">I", png[33:37])[0]
    lines = np.frombuffer(zlib.decompress(png[41 : 41 + length]), np.uint8).reshape(height, width + 1)
    grey = lines[:, 1:]
    assert grey.shape[0] == 129
    assert abs((128 - grey.mean(axis=1).argmax()) * 8000 / 128 - 2000) < 100
    assert spectrogram(np.zeros(10, np.float32)).startswith("data:image/png")


def test_a_baseline_is_compared_with_an_interval() -> None:
    old, new = row("one", "PASS", tuple(range(300, 320))), row("one", "FAIL", tuple(range(350, 370)))
    first, *others = differences([new, row("two", "PASS", (1.0,))], [old])
    assert (first.id, first.stage, first.verdict, first.outcomes) == ("one", "first_audio", "slower", ("PASS", "FAIL"))
    assert first.low_ms is not None
    assert first.high_ms is not None
    assert 35 < first.low_ms < 50 < first.high_ms < 65
    assert {one.verdict for one in others} == {"no difference shown"}
    (few, *_) = differences([row("one", "PASS", (400.0,))], [old])
    assert (few.verdict, few.low_ms) == ("too few turns", None)
    values = np.random.default_rng(3).normal(500, 20, 40)
    low, high = bootstrap(values, values)
    assert low < 0 < high


def test_the_trend_goes_over_runs(tmp_path: Path) -> None:
    file = tmp_path / "trend.sqlite"
    for date, outcome in (("2026-12-01T01:00:00", "PASS"), ("2026-12-01T02:00:00", "FAIL")):
        trend.note(file, [row("one", outcome, (300.0, 500.0)), row("two", "PASS")], {"date": date})
        trend.note(file, [row("one", outcome, (300.0, 500.0)), row("two", "PASS")], {"date": date})
    told = trend.runs(file)
    assert [(run["passed"], run["results"], run["first_audio_p50_ms"]) for run in told] == [(2, 2, 400), (1, 2, 400)]
    report.write_html(tmp_path / "page.html", ROWS, {}, {"date": "now"}, differences(ROWS, ROWS), told)
    page = (tmp_path / "page.html").read_text(encoding="utf-8")
    assert "Against the baseline" in page
    assert "2026-12-01T02:00:00" in page
    (tmp_path / "none").write_text("no database, but long enough to be told as one" * 20)
    with pytest.raises(StartupError, match="name another --trend"):
        trend.note(tmp_path / "none", ROWS, {"date": "now"})
