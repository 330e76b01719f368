"""Labels and scores: what a line says comes back as a program, and nothing else can."""

from __future__ import annotations

from typing import Any

import numpy as np
import pytest

from models.engines.parser import ParserScores
from models.train.parser.examples import Unusable, constants_in, example_of
from pipeline.frames import ToolCall
from pipeline.nlu.parser.features import FIRST, LAST, MOST_TOKENS, FeatureReader, Features
from pipeline.nlu.parser.labels import MOST_CALLS, NONE, Space
from pipeline.nlu.parser.reader import Program, program_of
from pipeline.vehicle.schemas import TOOL_NAMES, fault_of
from tests.support.nlu.parser_scores import certain

ONE = {"reason": 1.0, "calls": 1.0}


def line(text: str, *calls: dict[str, Any], **more: Any) -> dict[str, Any]:
    return {"text": text, "calls": list(calls), "reason": None, "what": None, **more}


def call(tool: str, args: dict[str, Any], **spans: Any) -> dict[str, Any]:
    return {"tool": tool, "args": args, "spans": spans}


def spanned(made: dict[str, Any]) -> dict[str, Any]:
    """The line with every span given as its words turned to characters."""

    def place(words: str) -> list[int]:
        start = made["text"].index(words)
        return [start, start + len(words)]

    for one in made["calls"]:
        one["spans"] = {name: place(words) for name, words in one["spans"].items()}
    if made["what"]:
        made["what"] = place(made["what"])
    return made


LINES = [
    line("Open the window.", call("set_window", {"zone": "driver", "action": "set", "value": 100.0})),
    line("调到二十三度五", call("set_temperature", {"zone": "all", "action": "set", "value": 23.5}, value="二十三度")),
    line("fan to level three", call("set_fan", {"zone": "all", "action": "set", "value": 60.0}, value="three")),
    line("quieter by 10", call("set_volume", {"target": "media", "action": "change", "value": -10.0}, value="10")),
    line("open it half way", call("set_window", {"zone": "driver", "action": "set", "value": 50.0}, value="half")),
    line("放一首《别停》", call("play_media", {"query": "别停"}, query="别停")),
    line("Drive to Red Lion", call("navigate_to", {"place": "Red Lion", "avoid": ["toll"]}, place="Red Lion")),
    line("cancel the route", call("cancel_navigation", {})),
    line(
        "打开座椅加热，打开天窗",
        call("set_seat_heating", {"zone": "driver", "action": "set", "value": 50.0}),
        call("set_sunroof", {"position": "open"}),
    ),
    line("turn on the seat massage", reason="unsupported", what="seat massage"),
    line("You opened the wrong window", reason="statement"),
]  # fmt: skip


@pytest.mark.parametrize("made", LINES, ids=[made["text"] for made in LINES])
def test_a_line_comes_back_as_the_program_of_a_model_that_is_sure_of_it(
    made: dict[str, Any], features: FeatureReader, space: Space
) -> None:
    made = spanned({**made, "calls": [dict(one) for one in made["calls"]]})
    program = _read(made, features, space)
    assert [(read.call.name, read.call.arguments) for read in program.calls] == [
        (one["tool"], one["args"]) for one in made["calls"]
    ]
    assert program.valid
    assert program.reason == (made["reason"] or "act")
    assert program.confidence > 0.99
    if made["what"]:
        assert program.what == made["text"][slice(*made["what"])]


def _read(made: dict[str, Any], features: FeatureReader, space: Space) -> Program:
    read = features.read(made["text"])
    assert read is not None
    return program_of(certain(example_of(made, features, space), space), read, space, ONE)


@pytest.mark.parametrize("seed", range(30))
@pytest.mark.parametrize("text", ["set the temperature to 22 and open the window", "打开车窗，播放稻香"])
def test_no_scores_give_a_call_that_the_schemas_refuse_or_a_value_that_nobody_said(
    text: str, seed: int, features: FeatureReader, space: Space
) -> None:
    read = features.read(text)
    assert read is not None
    program = program_of(_random(read, space, seed), read, space, ONE)
    said = {abs(number.value) * turn for number in read.numbers for turn in (1, 10, 20, 25)} | {
        float(round(100 * number.value / 3)) for number in read.numbers
    }
    for one in program.calls:
        assert one.call.name in TOOL_NAMES
        assert fault_of(one.call.name, one.call.arguments) in (None, "out_of_range")
        value = one.call.arguments.get("value")
        assert value is None or value in space.constants or abs(value) in said
        for name in ("query", "place"):
            assert str(one.call.arguments.get(name, "")) in text
    assert 0.0 <= program.confidence <= 1.0


def _random(read: Features, space: Space, seed: int) -> ParserScores:
    rng = np.random.default_rng(seed)
    length = len(read.tokens)
    return ParserScores(
        *(
            rng.normal(0, 3, shape).astype(np.float32)
            for shape in ((11,), (MOST_CALLS, sum(space.heads.values())), (MOST_CALLS, 3, length), (2, length))
        )
    )


def test_the_last_value_is_taken_over_where_nothing_else_says_it(features: FeatureReader, space: Space) -> None:
    arguments = {"zone": "driver", "action": "set", "value": 37.0}
    last = {"tool": "set_fan", "args": arguments}
    again = call("set_fan", {"zone": "passenger", "action": "set", "value": 37.0})
    made = line("the passenger too", again, last=last)
    assert constants_in([made]) == set()
    before = ToolCall("set_fan", arguments)
    read = features.read(made["text"], before)
    assert read is not None
    scores = certain(example_of(made, features, space), space)
    (found,) = program_of(scores, read, space, ONE, before).calls
    assert found.call == ToolCall("set_fan", again["args"])
    (there,) = program_of(scores, read, space, ONE, before, place="rear").calls
    assert there.call.arguments["zone"] == "rear"  # "a bit more" is said of where the last call acted
    (other,) = program_of(scores, read, space, ONE).calls
    assert other.call.arguments["value"] in space.constants  # without a last call there is none to take over


def test_a_constant_is_taken_only_where_no_number_says_it() -> None:
    lines = [spanned({**made, "calls": [dict(one) for one in made["calls"]]}) for made in LINES]
    assert constants_in(lines) == {100.0, 50.0}


@pytest.mark.parametrize(
    ("made", "why"),
    [
        (line("fly me", call("fly", {})), "tool fly"),
        (line("warmer", call("set_temperature", {"zone": "all", "action": "change", "value": 3.0})), "neither said"),
        (line("play jazz", call("play_media", {"query": "jazz"})), "without a span"),
        (line("22", call("set_fan", {"zone": "all", "action": "set", "value": 47.0}, value=[0, 2])), "does not give"),
        (line("hm", reason="tired"), "reason tired"),
        (line("..."), "no words"),
        (line("a " * (MOST_TOKENS + 1)), "too many"),
    ],
)  # fmt: skip
def test_what_no_program_can_say_is_told(made: dict[str, Any], why: str, features: FeatureReader, space: Space) -> None:
    with pytest.raises(Unusable, match=why):
        example_of(made, features, space)


def test_the_labels_of_an_adapter_are_kept_and_a_value_that_the_schemas_lost_is_never_chosen(
    features: FeatureReader, space: Space
) -> None:
    config = space.as_config()
    config["tools"] = [*config["tools"], "set_ejector_seat"]
    config["choices"]["mode"] = ["turbo", *config["choices"]["mode"]]
    kept = Space.from_config(config)
    read = features.read("wipers to fast")
    assert read is not None
    scores = _random(read, kept, 0)
    tools, modes = slice(0, len(kept.tools)), list(kept.heads).index("mode")
    scores.choices[0, tools] = 0
    scores.choices[0, kept.tools.index("set_wipers")] = 10
    scores.choices[0, kept.tools.index("set_ejector_seat")] = 50
    turbo = sum(list(kept.heads.values())[:modes])
    scores.choices[0, turbo] = 50
    scores.choices[1, kept.tools.index(NONE)] = 50
    (read_call,) = program_of(scores, read, kept, ONE).calls
    assert read_call.call.name == "set_wipers"
    assert read_call.call.arguments["mode"] != "turbo"


def test_labels_of_another_version_are_refused(space: Space) -> None:
    with pytest.raises(ValueError, match="was trained for the reasons act"):
        Space.from_config({**space.as_config(), "reasons": ["act"]})


def test_positions_have_their_pieces_and_numbers_stand_at_their_words(features: FeatureReader) -> None:
    read = features.read("Set, the windowow to 22.5° 打开车窗")
    assert read is not None
    assert " ".join(token.text for token in read.tokens) == "set , the windowow to 22.5 ° 打 开 车 窗"
    assert read.cover.shape == (11, len(read.ids))
    assert read.cover[3].max() == 0.5  # "window" and "ow"
    assert np.allclose(read.cover.sum(1), 1)
    assert read.numbers[0].start == 5
    assert (read.cover[7] == read.cover[8]).all()  # one piece, told apart by their shares of it
    assert (read.cover[8] != read.cover[9]).any()
    assert read.shares.tolist() == [0, 0, 0, 0, 0, 0, 0, FIRST, LAST, FIRST, LAST]
    assert read.text[read.tokens[5].start : read.tokens[5].end] == "22.5"
