"""Commands that sound like questions, questions that sound like commands, and what is told of several seats."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.dialogue.manager import DialogueManager
from pipeline.frames import Language


@pytest.fixture
def dialogue() -> DialogueManager:
    return DialogueManager.create(by_sound=False)


def _language(text: str) -> Language:
    return "en" if text.isascii() else "zh"


def _said(dialogue: DialogueManager, *texts: str) -> list[str]:
    replies = []
    for turn_id, text in enumerate(texts, 1):
        plan = dialogue.plan(text, _language(text))
        replies.append(dialogue.reply(plan, dialogue.execute(plan, turn_id), plan.language))
    return replies


@pytest.mark.parametrize(
    ("text", "tool", "arguments"),
    [
        ("Set the driver temperature to 24 degrees?", "set_temperature", {"zone": "driver", "value": 24.0}),
        ("Please turn off the AC?", "set_air_conditioning", {"on": False}),
        ("Lower the volume?", "set_volume", {"action": "change", "value": -10.0}),
        ("Open the sunroof?", "set_sunroof", {"position": "open"}),
        ("把温度调到22度？", "set_temperature", {"value": 22.0}),
        ("The window open?", "ask_vehicle", {"item": "windows"}),
        ("Open windows?", "ask_vehicle", {"item": "windows"}),
        ("Closed the sunroof?", "ask_vehicle", {"item": "sunroof"}),
        ("Higher volume?", "ask_vehicle", {"item": "volume"}),
    ],
)
def test_a_rising_end_makes_no_question_of_a_command(
    dialogue: DialogueManager, text: str, tool: str, arguments: dict[str, Any]
) -> None:
    (call,) = dialogue.plan(text, _language(text)).calls
    assert call.name == tool
    assert arguments.items() <= call.arguments.items()


@pytest.mark.parametrize(
    "text",
    [
        "Can too much air conditioning make you sick",
        "can the window be opened while driving",
        "might the seat heating burn me",
        "must I close the window when driving fast",
        "shall I open the window",
        "opening the windows makes it noisy",
        "turning on the AC wastes fuel",
        "空调开多了会生病",
        "空调开太大会不会感冒",
    ],
)
def test_a_question_without_its_mark_is_talk(dialogue: DialogueManager, text: str) -> None:
    plan = dialogue.plan(text, _language(text))
    assert (plan.calls, plan.chat) == ((), True)


@pytest.mark.parametrize("text", ["seat heating makes you sick", "座椅加热很舒服"])
def test_a_thing_of_which_something_unknown_is_said_is_not_switched_on(dialogue: DialogueManager, text: str) -> None:
    assert [call.arguments.get("reason") for call in dialogue.plan(text, _language(text)).calls] == ["not_understood"]


@pytest.mark.parametrize(
    ("text", "name", "value"),
    [
        ("Can you open the window", "set_window", 100.0),
        ("can the seat heating be turned on", "set_seat_heating", 50.0),
        ("过一会关窗", "set_window", 0.0),
        ("seat heating please", "set_seat_heating", 50.0),
        ("set the fan to 3", "set_fan", 60.0),
        ("风量调到3", "set_fan", 60.0),
        ("set the fan to 6", "set_fan", 120.0),
        ("set the fan to 30", "set_fan", 30.0),
        ("set the fan to 3 percent", "set_fan", 3.0),
        ("turn up the fan by two", "set_fan", 40.0),
        ("座椅加热调到2", "set_seat_heating", 67.0),
    ],
)
def test_requests_and_levels(dialogue: DialogueManager, text: str, name: str, value: float) -> None:
    (call,) = dialogue.plan(text, _language(text)).calls
    assert (call.name, call.arguments["value"]) == (name, value)


def test_a_question_about_several_seats_tells_each_or_all(dialogue: DialogueManager) -> None:
    assert _said(
        dialogue,
        "set the temperature to 21 degrees",
        "what is the temperature set to",
        "set the passenger temperature to 18 degrees",
        "what is the temperature set to",
        "turn on the driver seat heating",
        "座椅加热开着吗",
        "set the fan to 40 percent",
        "how strong is the fan everywhere?",
        "set the rear fan to 60 percent",
        "风量是多少",
    )[1::2] == [
        "The temperature is set to 21 degrees.",
        "The driver, rear left and rear right temperature is set to 21 degrees, "
        "the passenger temperature is set to 18 degrees.",
        "主驾座椅加热在百分之50，副驾、左后、右后座椅加热关着。",
        "The fan is at 40 percent on all seats.",
        "主驾、副驾风量是百分之40，左后、右后风量是百分之60。",
    ]


def test_a_thing_named_after_a_question_is_asked_for(dialogue: DialogueManager) -> None:
    told = "The driver window is open at 40 percent, the passenger, rear left and rear right windows are closed."
    replies = _said(
        dialogue, "open the driver window to 40 percent", "are the windows open?", "All the windows.", "The sunroof."
    )
    assert replies[1:] == [told, told, "The sunroof is closed."]


def test_a_verb_that_is_heard_in_two_words_acts_on_its_object() -> None:
    """As the recogniser wrote a recorded command on a GPU."""
    (call,) = DialogueManager.create().plan("Re-circulate the air, please.", "en").calls
    assert (call.name, call.arguments) == ("set_recirculation", {"on": True})
