"""Several wishes in one breath: where they are cut, and that all of them or none are done."""

from __future__ import annotations

import pytest

from pipeline.frames import Language, ToolCall
from pipeline.nlu.evidence import evidence_of
from pipeline.nlu.interpreter import Interpreter
from pipeline.nlu.lexicon import Lexicon, build_lexicon
from pipeline.nlu.parser.decision import Decision
from pipeline.nlu.parser.parts import parts_of
from pipeline.nlu.parser.reader import Program
from pipeline.nlu.parser.several import Part, of_parts, same_thing
from pipeline.vehicle.places import load_places


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    return build_lexicon(load_places())


@pytest.mark.parametrize(
    ("text", "parts"),
    [
        ("关闭空调打开所有车窗打开天窗", ["关闭空调", "打开所有车窗", "打开天窗"]),
        ("打开座椅通风打开座椅按摩", ["打开座椅通风", "打开座椅按摩"]),
        ("打开座椅按摩座椅通风", ["打开座椅按摩", "打开座椅通风"]),
        ("关闭副驾座椅通风打开副驾座椅加热", ["关闭副驾座椅通风", "打开副驾座椅加热"]),
        ("打开空调风量调至一挡", ["打开空调", "风量调至一挡"]),
        ("空调温度调到三十度打开空调", ["空调温度调到三十度", "打开空调"]),
        ("打开座椅通风去公司", ["打开座椅通风", "去公司"]),
        ("导航回家打开座椅加热", ["导航回家", "打开座椅加热"]),
        ("关灯关窗关空调", ["关灯", "关窗", "关空调"]),
        ("关闭天窗快速制热", ["关闭天窗", "快速制热"]),
        ("turn off the AC and the fan", ["turn off the AC", "turn off the fan"]),
        ("AC on, fan at 60 percent, recirculation off", ["AC on", "fan at 60 percent", "recirculation off"]),
    ],
)
def test_wishes_are_cut_apart(text: str, parts: list[str], lexicon: Lexicon) -> None:
    language: Language = "en" if text.isascii() else "zh"
    assert parts_of(evidence_of(text, lexicon, language), lexicon) == parts


@pytest.mark.parametrize(
    "text",
    [
        "空调风量调到三档",
        "播放五月天的歌",
        "后排空调打开座椅通风",
        "打开前排座椅加热",
        "play the song close the window",
        "set the temperature to twenty two",
    ],
)
def test_one_wish_is_left_whole(text: str, lexicon: Lexicon) -> None:
    language: Language = "en" if text.isascii() else "zh"
    assert parts_of(evidence_of(text, lexicon, language), lexicon) == [text]


def test_a_name_is_never_cut(lexicon: Lexicon) -> None:
    whole = evidence_of("play open the window and close the door", lexicon, "en")
    assert parts_of(whole, lexicon, [(5, 39)]) == [whole.text]


AC = ToolCall("set_air_conditioning", {"on": True})
ROOF = ToolCall("set_sunroof", {"position": "open"})


def window(zone: str, value: float = 100.0) -> ToolCall:
    return ToolCall("set_window", {"zone": zone, "action": "set", "value": value})


def several(*parts: Part, reason: str = "act", whole: Decision | None = None) -> Decision:
    parse = Interpreter(build_lexicon(load_places())).parse("open the sunroof and turn on the ac", "en")
    program = Program(reason, 0.9, 0.9, (), "", 0.9)
    return of_parts(whole or Decision("ask", 0.9), parse, program, parts)


def test_all_parts_are_done_and_the_lacking_one_is_named() -> None:
    done = several(Part((AC,), confidence=0.9), Part((ROOF,), confidence=0.8))
    assert (done.kind, done.calls, done.confidence) == ("program", (AC, ROOF), 0.8)
    some = several(Part((AC,)), Part((), "seat massage"), reason="unsupported")
    assert (some.calls, some.reason, some.what) == ((AC,), "unsupported", "seat massage")


@pytest.mark.parametrize(
    "parts",
    [
        (Part((AC,)), Part()),  # a part that is no wish: the cut was wrong, or it must not be done
        (Part((window("all"),)), Part((window("driver", 0.0),))),  # one thing twice
        (Part((AC,)), Part((ToolCall("ask_vehicle", {"item": "fan", "zone": "any"}),))),
        (Part((AC,)), Part((AC,))),
    ],
)
def test_else_the_whole_decides(parts: tuple[Part, Part]) -> None:
    assert several(*parts).kind == "ask"


def test_a_whole_that_is_no_command_is_not_done_in_parts() -> None:
    assert several(Part((AC,)), Part((ROOF,)), reason="none_talk").kind == "ask"


def test_one_thing_at_two_places_is_two() -> None:
    assert not same_thing(window("driver"), window("passenger"))
    assert same_thing(window("front"), window("passenger"))
    assert not same_thing(AC, ROOF)


def test_parts_that_are_sure_go_before_rules_that_the_model_does_not_confirm() -> None:
    parts = (Part((AC,), confidence=0.9), Part((ROOF,), confidence=0.9))
    assert several(*parts, whole=Decision("rules", 0.3)).kind == "program"
    assert several(*parts, whole=Decision("agreed", 0.9)).kind == "agreed"
