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
