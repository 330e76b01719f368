"""However sure the model is: not what shall not be, not on by an off verb, not for another car."""

from __future__ import annotations

import pytest

from pipeline.frames import Language, ToolCall
from pipeline.nlu.interpreter import Interpreter
from pipeline.nlu.lexicon import Lexicon, build_lexicon
from pipeline.nlu.parser.decision import Decision, Judge
from pipeline.nlu.parser.reader import Program, ProgramCall
from pipeline.vehicle.places import load_places

FACE = ToolCall("set_air_direction", {"direction": "face", "zone": "all"})
QUIET = ToolCall("set_navigation_voice", {"state": "MUTED"})
LOCK = ToolCall("set_door_locks", {"locked": True, "zone": "all"})
BLUE = ToolCall("set_ambient_color", {"color": "blue"})
HEARD = ToolCall("play_media", {"query": "Don't Look Back in Anger"})


ROOF_SHUT = ToolCall("set_sunroof", {"position": "closed"})
DARK = ToolCall("set_ambient_light", {"zone": "all", "action": "set", "value": 0.0})
GREEN = ToolCall("set_ambient_color", {"color": "green"})
SHUFFLED = ToolCall("control_media", {"action": "shuffle"})
REPEATED = ToolCall("control_media", {"action": "repeat"})
BLUETOOTH = ToolCall("set_media_source", {"source": "BLUETOOTH"})
ENDED = ToolCall("cancel_navigation", {})
OPEN = ToolCall("set_window", {"zone": "all", "action": "set", "value": 100.0})
SHUT = ToolCall("set_window", {"zone": "driver", "action": "set", "value": 0.0})


def fan(percent: float) -> ToolCall:
    return ToolCall("set_fan", {"zone": "all", "action": "set", "value": percent})


def warmer(zone: str, by: float) -> ToolCall:
    return ToolCall("set_temperature", {"zone": zone, "action": "change", "value": by})


def trip(place: str) -> ToolCall:
    return ToolCall("navigate_to", {"place": place, "avoid": []})


def high_beam(on: bool) -> ToolCall:
    return ToolCall("set_exterior_light", {"which": "high_beam", "on": on})


@pytest.fixture(scope="module")
def lexicon() -> Lexicon:
    return build_lexicon(load_places())


def decide(call: ToolCall, text: str, lexicon: Lexicon, language: Language) -> Decision:
    words = None
    if "query" in call.arguments:
        at = text.index(call.arguments["query"])
        words = (at, at + len(call.arguments["query"]))
    program = Program("act", 0.999, 0.999, (ProgramCall(call, 0.999, None, words),), "", 0.999)
    return Judge().decide(program, Interpreter(lexicon).parse(text, language), None)


@pytest.mark.parametrize(
    ("text", "language", "call"),
    [
        ("不要吹脸", "zh", FACE),
        ("don't put the high beams on", "en", high_beam(True)),
        ("turn off the blue ambient light", "en", BLUE),
        ("后面的车开着远光灯", "zh", high_beam(True)),
        ("对面的远光灯好亮", "zh", high_beam(True)),
        ("the high beams of that car are bright", "en", high_beam(True)),
        ("my phone screen is off", "en", ToolCall("set_screen", {"on": False})),
        ("put the fan on two or three", "en", fan(60.0)),
        ("风量开到三档还是四档", "zh", fan(80.0)),
        ("close the left or the right window", "en", SHUT),
        ("二排加热都停掉吧", "zh", warmer("rear", 2.0)),
        ("够凉快了把空调关掉", "zh", warmer("all", -2.0)),
        ("氛围灯别弄成绿色", "zh", GREEN),
        ("氛围灯别用紫色", "zh", DARK),
        ("no green for the mood light", "en", GREEN),
        ("关天窗，哦别关了", "zh", ROOF_SHUT),
        ("close the sunroof, no, don't", "en", ROOF_SHUT),
        ("来个导航", "zh", ENDED),
        ("warm up the seats in the back", "en", warmer("rear", 2.0)),
        ("pair the bluetooth", "en", BLUETOOTH),
        ("蓝牙配对一下", "zh", BLUETOOTH),
        ("途中去一下机场", "zh", trip("airport")),
        ("say the windows are open", "en", OPEN),
        ("thank you for opening the windows", "en", OPEN),
        ("谢谢你把车窗打开", "zh", OPEN),
    ],
)
def test_it_is_not_done(text: str, language: Language, call: ToolCall, lexicon: Lexicon) -> None:
    assert decide(call, text, lexicon, language).kind in ("ask", "nothing"), text


@pytest.mark.parametrize(
    ("text", "language", "call"),
    [
        ("导航别念叨了", "zh", QUIET),
        ("don't forget to lock the doors", "en", LOCK),
        ("make the ambient light blue", "en", BLUE),
        ("oncoming car, drop the high beam", "en", high_beam(False)),
        ("put the fan on two, or rather three", "en", fan(60.0)),
        ("打开天窗，别开车窗", "zh", ToolCall("set_sunroof", {"position": "open"})),
        ("氛围灯不要红色要绿色", "zh", GREEN),
        ("no more navigation please", "en", ENDED),
        ("warm it up a bit in the back", "en", warmer("rear", 1.0)),
        ("switch over to bluetooth", "en", BLUETOOTH),
        ("shuffle my songs", "en", SHUFFLED),
        ("queue up Don't Look Back in Anger", "en", HEARD),
    ],
)
def test_it_is_done(text: str, language: Language, call: ToolCall, lexicon: Lexicon) -> None:
    assert decide(call, text, lexicon, language).kind not in ("ask", "nothing"), text


def test_a_light_that_is_too_bright_is_not_to_shine(lexicon: Lexicon) -> None:
    interpreter = Interpreter(lexicon)
    assert not any(c.call.name == "set_exterior_light" for c in interpreter.parse("远光灯太亮了", "zh").clauses)
    (lit,) = interpreter.parse("远光灯亮起来", "zh").clauses
    assert lit.call == high_beam(True)


@pytest.mark.parametrize(
    ("text", "call"),
    [
        ("shuffle the cards", SHUFFLED),
        ("the video is on repeat at school", REPEATED),
    ],
)
def test_words_of_the_list_beside_other_things_do_nothing(text: str, call: ToolCall, lexicon: Lexicon) -> None:
    program = Program("act", 0.8, 0.6, (ProgramCall(call, 0.6, None, None),), "", 0.8)
    assert Judge().decide(program, Interpreter(lexicon).parse(text, "en"), None).kind == "nothing"


def test_what_is_only_asked_is_answered_though_the_rules_would_act(lexicon: Lexicon) -> None:
    asked = ToolCall("ask_vehicle", {"item": "windows", "zone": "driver"})
    program = Program("act", 0.99, 0.8, (ProgramCall(asked, 0.8, None, None),), "", 0.99)
    decision = Judge().decide(program, Interpreter(lexicon).parse("打开主驾的车窗", "zh"), None)
    assert (decision.kind, decision.calls) == ("program", (asked,))
    unsure = Program("act", 0.99, 0.3, (ProgramCall(asked, 0.3, None, None),), "", 0.3)
    assert asked not in Judge().decide(unsure, Interpreter(lexicon).parse("打开主驾的车窗", "zh"), None).calls
