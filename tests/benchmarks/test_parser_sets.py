"""The parser's benchmark: its sets are valid, its judge tells right from wrong, others' labels become calls."""

from __future__ import annotations

import json
from collections import Counter
from pathlib import Path

import pytest

from benchmarks.quality.mac_slu import wishes_of
from benchmarks.quality.parser import (
    OWN,
    REFUSED_BY_THE_CAR,
    Case,
    Judge,
    Reading,
    SetMissing,
    by_seat,
    load,
    main,
    measure,
    own_set,
)
from pipeline.frames import ToolCall
from pipeline.nlu.lexicon import build_lexicon
from pipeline.nlu.parser.labels import REASONS
from pipeline.vehicle.places import load_places
from pipeline.vehicle.schemas import fault_of


@pytest.fixture(scope="module")
def judge() -> Judge:
    return Judge(build_lexicon(load_places(), by_sound=False), load_places())


@pytest.mark.parametrize(
    ("name", "least"),
    [("dev", 300), ("dev_scope", 160), ("read", 300), ("blind", 199), ("drivers", 400), ("car", 120), ("blind3", 120)],
)
def test_own_sets_are_valid(name: str, least: int) -> None:
    places = load_places()
    rows = [json.loads(line) for line in (OWN / f"parser_{name}.jsonl").read_text(encoding="utf-8").splitlines()]
    assert len(rows) >= least
    assert len({row["text"] for row in rows}) == len(rows)
    languages = Counter(row["lang"] for row in rows)
    assert min(languages["en"], languages["zh"]) >= 0.48 * least
    for row in rows:
        assert row["calls"] or row["reason"] in REASONS, row
        assert row["reason"] is None or row["reason"] in REASONS, row
        if row["what"]:
            assert row["text"][slice(*row["what"])].strip(), row
        for call in row["calls"]:
            fault = fault_of(call["tool"], call["args"])
            assert fault is None or (row["kind"] == "range" and fault == "out_of_range"), row
            assert call["args"].get("query", "") in row["text"], row
            place = call["args"].get("place", "")
            assert place in row["text"] or places.knows(place), row


@pytest.mark.parametrize("name", ["blind", "blind3"])
def test_the_blind_set_shares_no_sentence_with_another(name: str) -> None:
    open_sets = ("dev", "dev_scope", "read", "drivers", "car")
    others = {case.text.casefold() for other in open_sets for case in own_set(OWN / f"parser_{other}.jsonl")}
    blind = [case.text.casefold() for case in own_set(OWN / f"parser_{name}.jsonl")]
    assert not others & set(blind)
    assert len(set(blind)) == len(blind)


def test_a_missing_set_is_named(tmp_path: Path) -> None:
    with pytest.raises(SetMissing, match="mac_slu_open"):
        load("mac_slu", tmp_path)
    with pytest.raises(ValueError, match="there are dev, scope"):
        load("poems", tmp_path)


def window(zone: str, value: float) -> ToolCall:
    return ToolCall("set_window", {"zone": zone, "action": "set", "value": value})


def test_judge_compares_seat_by_seat(judge: Judge) -> None:
    case = Case("x", "en", "exception", (window("front", 0.0), window("rear_right", 0.0)))
    same = Reading((window("driver", 0), window("passenger", 0), window("rear_right", 0)))
    assert judge.outcome(case, same) == "right"
    assert judge.outcome(case, Reading((window("all", 0.0),))) == "wrong"
    assert judge.outcome(case, Reading((window("front", 0.0),))) == "missed"
    assert by_seat([window("all", 0)]) == by_seat([window("rear", 0), window("front", 0)])


def test_judge_where_nothing_is_meant(judge: Judge) -> None:
    nothing = Case("x", "en", "statement", (), reason="statement")
    assert judge.outcome(nothing, Reading((), "none_talk")) == "right"
    assert judge.outcome(nothing, Reading((window("driver", 100.0),))) == "wrong"
    assert judge.outcome(nothing, Reading((REFUSED_BY_THE_CAR,))) == "right"
    assert judge.outcome(nothing, Reading((ToolCall("ask_vehicle", {"item": "windows", "zone": "any"}),))) == "missed"


def test_judge_knows_a_place_by_its_names(judge: Judge) -> None:
    case = Case("take me home", "en", "plain", (ToolCall("navigate_to", {"place": "home", "avoid": []}),))
    assert judge.outcome(case, Reading((ToolCall("navigate_to", {"place": "my house", "avoid": []}),))) == "right"
    named = Case("x", "en", "plain", (ToolCall("ask_distance", {"place": "Garden Hotel"}),))
    assert judge.outcome(named, Reading((ToolCall("ask_distance", {"place": "hotel_garden"}),))) == "right"
    assert judge.outcome(case, Reading((ToolCall("navigate_to", {"place": "office", "avoid": []}),))) == "wrong"


def label(domain: str, intent: str, **slots: str) -> dict[str, object]:
    return {"domain": domain, "intent": intent, "slots": slots}


def test_labels_of_others_become_wishes(judge: Judge) -> None:
    close = label("车载控制", "车身控制", 操作="关闭", 位置="副驾", 对象="车窗")
    massage = label("车载控制", "车身控制", 操作="打开", 对象="座椅", 对象功能="按摩")
    scent = label("车载控制", "车身控制", 操作="打开", 对象="香氛")
    page = label("车载控制", "车身控制", 操作="关了", 对象="空调", 模式="自然风", 页面="设置页")
    beam = label("车载控制", "车身控制", 操作="打开", 对象="远光灯")
    others = wishes_of([massage, beam, scent, page])
    assert others is not None
    assert [wish.tool for wish in others] == ["set_seat_massage", "set_exterior_light", "", ""]
    wishes = wishes_of([close, scent])
    assert wishes is not None
    assert [wish.tool for wish in wishes] == ["set_window", ""]
    case = Case("x", "zh", "several", None, tuple(wish for wish in wishes if wish.tool))
    assert judge.outcome(case, Reading((window("passenger", 0.0),))) == "right"
    assert judge.outcome(case, Reading((window("all", 0.0),))) == "wrong"
    assert judge.outcome(case, Reading(())) == "missed"
    assert wishes_of([close, label("车载控制", "车身控制", 操作="打开", 对象="车窗", 位置="中排左")]) is None


@pytest.mark.parametrize(
    ("what", "amount", "call", "met"),
    [
        ("温度", "二十三度", ToolCall("set_temperature", {"zone": "all", "action": "set", "value": 23.0}), True),
        ("温度", "二十三度", ToolCall("set_temperature", {"zone": "all", "action": "set", "value": 20.0}), False),
        ("风量", "三挡", ToolCall("set_fan", {"zone": "all", "action": "set", "value": 60.0}), True),
        ("声音", "小一点", ToolCall("set_volume", {"target": "media", "action": "change", "value": -5.0}), True),
        ("声音", "小一点", ToolCall("set_volume", {"target": "media", "action": "change", "value": 5.0}), False),
    ],
)
def test_amounts_of_others(what: str, amount: str, call: ToolCall, met: bool) -> None:
    wishes = wishes_of([label("车载控制", "提供信息", 操作="调", 调节内容=what, value=amount)])
    assert wishes is not None
    assert wishes[0].met_by(call) is met


def test_measure_counts_by_kind(judge: Judge) -> None:
    cases = [
        Case("a", "en", "plain", (window("driver", 100.0),)),
        Case("b", "zh", "statement", (), reason="statement"),
    ]
    figures = measure(cases, lambda text, language, last: Reading((window("driver", 100.0),)), judge)
    assert (figures["right"], figures["wrong"], figures["missed"]) == (0.5, 0.5, 0.0)
    assert figures["kinds"]["statement"]["zh"] == {"right": 0, "wrong": 1, "missed": 0}
    assert len(figures["failed"]) == 1


def test_a_parser_that_is_not_there_is_named(capsys: pytest.CaptureFixture[str], tmp_path: Path) -> None:
    with pytest.raises(SystemExit):
        main(["--parser", "model", "--model", str(tmp_path / "none"), "--sets", "dev"])
    assert str(tmp_path / "none") in capsys.readouterr().err
