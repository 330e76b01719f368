"""The training sentences: the same for the same seed, every call valid, none of them a sentence that judges."""

from __future__ import annotations

import json
import random
import re
from collections import Counter
from typing import Any

import pytest

from models.train import generate
from models.train.bank import bank_of, sizes
from models.train.check import LineError, NumberMisread, check
from models.train.devices import DEVICES
from models.train.generate import main, sentences
from models.train.grammar import TemplateError, Writer, joined, parsed, text_of
from models.train.held_out import fingerprint, held_out, sentences_of
from models.train.kinds import KINDS
from models.train.surface import _hesitating
from models.train.wishes import Maker
from pipeline.vehicle.schemas import TOOL_NAMES
from tests.support.paths import ROOT

COUNT = 5000
"""Lines that are made once for all tests."""


@pytest.fixture(scope="module")
def lines() -> list[dict]:  # type: ignore[type-arg]
    """Every line was held against schemas and numbers when it was made."""
    return list(sentences(3, COUNT))


def test_same_seed_same_lines(lines: list[dict]) -> None:  # type: ignore[type-arg]
    assert list(sentences(3, 300)) == lines[:300]
    assert list(sentences(4, 300)) != lines[:300]


def test_distinct_and_balanced(lines: list[dict]) -> None:  # type: ignore[type-arg]
    assert len({line["text"] + json.dumps(line["last"]) for line in lines}) == COUNT
    english = sum(line["lang"] == "en" for line in lines)
    acting = sum(bool(line["calls"]) for line in lines)
    assert 0.45 < english / COUNT < 0.55
    assert 0.45 < acting / COUNT < 0.6
    kinds = Counter((line["kind"], line["lang"]) for line in lines)
    assert {kind for kind, _ in kinds} == set(KINDS)


def test_every_tool_is_asked_for(lines: list[dict]) -> None:  # type: ignore[type-arg]
    assert {one["tool"] for line in lines for one in line["calls"]} == set(TOOL_NAMES) - {"refuse"}


def test_spans_are_words_of_the_text(lines: list[dict]) -> None:  # type: ignore[type-arg]
    for line in lines:
        spans = [span for one in line["calls"] for span in one["spans"].values()]
        spans += [line["what"]] if line["what"] else []
        for low, high in spans:
            words = line["text"][low:high]
            assert words == words.strip() != "", line


def test_a_wrong_value_is_found() -> None:
    line = next(line for line in sentences(1, 500, ["plain"]) if any("value" in one["spans"] for one in line["calls"]))
    spoiled = json.loads(json.dumps(line))
    for one in spoiled["calls"]:
        one["args"]["value"] += 0.25
    with pytest.raises(LineError):
        check(spoiled)


def test_words_that_are_not_there_are_found() -> None:
    line = next(line for line in sentences(1, 500, ["title"]))
    spoiled = json.loads(json.dumps(line))
    spoiled["calls"][0]["args"]["query"] += "x"
    with pytest.raises(LineError):
        check(spoiled)


def test_template_faults_are_named() -> None:
    for template in ("turn on {x", "a (b", "b) c", "<what"):
        with pytest.raises(TemplateError):
            parsed(template)
    with pytest.raises(TemplateError, match="no 'nothing'"):
        Writer({}, random.Random(1)).write("{nothing}")


def test_joined_spans_survive_double_spaces() -> None:
    text, spans = joined((("set  ", ""), (" the volume", "what"), (" to ", ""), ("20", "0.value"), (" .", "")))
    assert text == "set the volume to 20."
    assert {tag: text[low:high] for tag, (low, high) in spans.items()} == {"what": "the volume", "0.value": "20"}


def test_words_for_any_thing_name_it() -> None:
    for language in ("en", "zh"):
        for name, templates in bank_of(language).items():
            if name.startswith("frame."):
                assert not [template for template in templates if "{x}" not in template], name


def test_a_window_that_is_meant_is_named() -> None:
    """Mandarin has words for opening a window that leave no room for which one."""
    maker = Maker("zh", random.Random(2))
    for _ in range(300):
        wish = maker.window_wish(DEVICES["window"], "open", "rear_left")
        zone = wish.calls[0]["args"]["zone"]
        assert zone in ("rear_left", "all"), wish
        assert len(text_of(wish.chunks)) > 3, wish


def test_a_little_is_half_a_step_however_it_is_said(lines: list[dict]) -> None:  # type: ignore[type-arg]
    for line in lines:
        if line["kind"] != "plain" or line["calls"][0]["tool"] != "set_fan" or line["calls"][0]["spans"]:
            continue
        args = line["calls"][0]["args"]
        if args["action"] == "change" and re.search(r"[大小高低强弱][点些]|一点|\bbit\b", line["text"]):
            assert abs(args["value"]) == 10, line


def test_wishes_in_a_row_never_set_one_thing_twice() -> None:
    """Except at another place: "close the driver's window, open the passenger's"."""
    found = 0
    for line in sentences(2, 400, ["several"]):
        parts = ("zone", "area", "which", "mode")
        done = [(one["tool"], *(one["args"].get(part) for part in parts)) for one in line["calls"]]
        assert len(set(done)) == len(done), line
        found += len({tool for tool, *_ in done}) < len(done)
    assert found > 10  # one thing at two places is among them


def test_one_of_several_wishes_is_lacking() -> None:
    for line in sentences(2, 300, ["several_lacking"]):
        assert line["calls"], line
        assert line["reason"] == "unsupported", line
        assert line["what"], line


def test_no_hesitation_parts_a_one_from_its_level() -> None:
    """ "Level uh one" is no number to the product: it came once in 300,000 lines, and stopped a training."""
    maker = Maker("en", random.Random(1))
    for _ in range(300):
        chunks = _hesitating(maker, (("set the fan to level ", ""), ("one", "0.value"), (" please", "")))
        assert "level one" in text_of(chunks)


def test_only_the_meant_of_two_opposites_is_done() -> None:
    """ "Don't close it, open it", "next song, no, the one before"."""
    opened = {"set_window": 100.0, "set_sunshade": 100.0, "set_sunroof": "open", "set_trunk": True}
    found = 0
    for line in sentences(2, 3500, ["contrast", "correction"]):
        assert len(line["calls"]) == 1, line
        one = line["calls"][0]
        verb = re.search(r"\b(open|close|shut) (?:it|that)\W*$", line["text"].lower())
        if verb and one["tool"] in opened:
            done = next(value for name, value in one["args"].items() if name in ("value", "position", "open"))
            assert (done == opened[one["tool"]]) == (verb[1] == "open"), line
            found += 1
    assert found > 10


def test_unknown_kind_is_refused() -> None:
    with pytest.raises(ValueError, match=r"no kinds \['poem'\]"):
        next(sentences(1, 1, ["poem"]))


def test_file_is_written(tmp_path, capsys) -> None:  # type: ignore[no-untyped-def]
    out = tmp_path / "lines.jsonl"
    assert main(["--seed", "5", "--sentences", "50", "--out", str(out), "--kinds", "title,chat"]) == 0
    rows = [json.loads(row) for row in out.read_text(encoding="utf-8").splitlines()]
    assert len(rows) == 50
    assert {row["kind"] for row in rows} == {"title", "chat"}
    assert "50 distinct sentences" in capsys.readouterr().out


def test_bank_is_large() -> None:
    bank = sizes()
    assert bank["templates"] + bank["phrases"] > 5000


def test_no_sentence_that_judges_is_trained_on(lines: list[dict]) -> None:  # type: ignore[type-arg]
    names = [f"parser_{name}.jsonl" for name in ("dev", "dev_scope", "read", "blind", "drivers", "car", "blind3")]
    judging = [text for name in names for text in sentences_of(ROOT / "tests" / "data" / name)]
    assert len(judging) > 700
    assert {fingerprint(text) for text in judging} <= held_out()
    assert not {fingerprint(line["text"]) for line in lines} & held_out()


def test_held_out_sentences_are_left_away(monkeypatch: pytest.MonkeyPatch) -> None:
    usual = [line["text"] for line in sentences(6, 40, ["title"])]
    monkeypatch.setattr(generate, "held_out", lambda: frozenset(fingerprint(text) for text in usual[:20]))
    assert not {line["text"] for line in sentences(6, 40, ["title"])} & set(usual[:20])


def test_wishes_that_run_into_each_other_are_left_out_and_a_faulty_template_is_told(
    monkeypatch: pytest.MonkeyPatch,
) -> None:
    made = generate.sentence
    refused = iter([True, False, True, True])

    def now_and_then(maker: Maker, kind: str) -> dict[str, Any]:
        if next(refused, False):
            raise NumberMisread("'50' is read as 50.1")
        return made(maker, kind)

    monkeypatch.setattr(generate, "sentence", now_and_then)
    assert len(list(sentences(1, 3, ["several"]))) == 3
    refused = iter([True, True])
    assert len(list(sentences(1, 3, ["plain"]))) == 3  # one in a hundred thousand stops no training
    refused = iter([True] * (generate.MOST_MISREAD + 1))
    with pytest.raises(NumberMisread):
        next(sentences(1, 1, ["plain"]))
