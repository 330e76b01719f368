"""A follow-up keeps the device and the place of what was last acted on, unless it names another."""

from __future__ import annotations

import pytest

from pipeline.dialogue.manager import DialogueManager
from pipeline.frames import Language, ToolCall

ZONES: dict[Language, dict[str, str]] = {
    "en": {"driver": "driver", "passenger": "passenger", "rear_left": "rear left", "rear": "rear"},
    "zh": {"driver": "主驾", "passenger": "副驾", "rear_left": "左后", "rear": "后排"},
}
FIRST: dict[Language, dict[str, str]] = {
    "en": {
        "set_seat_heating": "turn on the {} seat heating",
        "set_seat_ventilation": "turn on the {} seat ventilation",
        "set_temperature": "set the {} temperature to 21 degrees",
        "set_fan": "set the {} fan to 40 percent",
        "set_window": "open the {} window to 50 percent",
        "set_door_locks": "lock the {} door",
    },
    "zh": {
        "set_seat_heating": "打开{}座椅加热",
        "set_seat_ventilation": "打开{}座椅通风",
        "set_temperature": "把{}温度调到二十一度",
        "set_fan": "把{}风量调到百分之四十",
        "set_window": "把{}车窗打开百分之五十",
        "set_door_locks": "锁上{}车门",
    },
}
LEVELS = ("set_seat_heating", "set_seat_ventilation", "set_temperature", "set_fan", "set_window")
AFTER: list[tuple[Language, str, tuple[str, ...], str, float | None]] = [
    ("en", "a bit more", LEVELS, "", 1),
    ("en", "turn it off", ("set_seat_heating", "set_seat_ventilation", "set_fan"), "", 0),
    ("en", "close it", ("set_window",), "", 0),
    ("en", "open it more", ("set_window",), "", 1),
    ("en", "make it warmer", ("set_seat_heating", "set_temperature"), "", 1),
    ("en", "make it cooler", ("set_seat_heating", "set_temperature"), "", -1),
    ("en", "make it cooler", ("set_seat_ventilation",), "", 1),
    ("en", "make it warmer", ("set_fan", "set_window"), "set_temperature", 1),
    ("en", "set it to 24 degrees", ("set_seat_heating", "set_fan"), "set_temperature", 1),
    ("en", "unlock it", ("set_door_locks",), "", None),
    ("zh", "再热一点", ("set_seat_heating", "set_temperature"), "", 1),
    ("zh", "再暖和一点", ("set_seat_heating", "set_temperature"), "", 1),
    ("zh", "凉一点", ("set_seat_ventilation",), "", 1),
    ("zh", "再强一点", LEVELS, "", 1),
    ("zh", "关掉", ("set_seat_heating", "set_seat_ventilation", "set_fan", "set_window"), "", 0),
    ("zh", "再开大一点", ("set_window",), "", 1),
    ("zh", "调到百分之三十", ("set_seat_heating", "set_seat_ventilation", "set_fan", "set_window"), "", 1),
    ("zh", "解锁", ("set_door_locks",), "", None),
]
"""Follow-up, tools it is tried after, tool it calls (the same where empty), and the sign of its value."""


@pytest.fixture(scope="module")
def dialogue() -> DialogueManager:
    return DialogueManager.create()


def _only(dialogue: DialogueManager, text: str, language: Language, last: ToolCall | None = None) -> ToolCall:
    (clause,) = dialogue.interpreter.parse(text, language, last).clauses
    return clause.call


@pytest.mark.parametrize(("language", "text", "tools", "becomes", "sign"), AFTER)
def test_the_place_and_the_device_are_kept(
    dialogue: DialogueManager, language: Language, text: str, tools: tuple[str, ...], becomes: str, sign: float | None
) -> None:
    for tool in tools:
        for zone, said in ZONES[language].items():
            last = _only(dialogue, FIRST[language][tool].format(said), language)
            assert (last.name, last.arguments["zone"]) == (tool, zone)
            call = _only(dialogue, text, language, last)
            assert (call.name, call.arguments["zone"]) == (becomes or tool, zone), (last, text)
            if sign is not None:
                value = float(call.arguments["value"])
                assert (value > 0) - (value < 0) == sign, (last, call)


def test_a_place_that_is_named_wins(dialogue: DialogueManager) -> None:
    last = _only(dialogue, "turn on the passenger seat heating", "en")
    call = _only(dialogue, "turn it off for the driver", "en", last)
    assert (call.name, call.arguments["zone"]) == ("set_seat_heating", "driver")


@pytest.mark.parametrize(
    ("first", "after", "expected"),
    [
        ("turn on the rear defroster", "turn it off", ToolCall("set_defrost", {"area": "rear", "on": False})),
        (
            "turn the navigation volume to 30 percent",
            "louder",
            ToolCall("set_volume", {"target": "navigation", "action": "change", "value": 10.0}),
        ),
        (
            "close the passenger window a bit",
            "a bit more",
            ToolCall("set_window", {"zone": "passenger", "action": "change", "value": -20.0}),
        ),
    ],
)
def test_so_are_the_area_and_the_target(dialogue: DialogueManager, first: str, after: str, expected: ToolCall) -> None:
    assert _only(dialogue, after, "en", _only(dialogue, first, "en")) == expected


def test_after_passenger_seat_heating_warmer_changes_the_passengers_seat() -> None:
    dialogue = DialogueManager.create()
    read = dialogue.toolbox.access.read
    seats = [f"Vehicle.Cabin.Seat.Row1.{side}Side.HeatingCooling" for side in ("Driver", "Passenger")]
    dialogue.execute(dialogue.plan("turn on the passenger seat heating", "en"), 1)
    dialogue.execute(dialogue.plan("make it warmer", "en"), 2)
    assert [read(path) for path in seats] == [0, 75]
    dialogue.execute(dialogue.plan("再热一点", "zh"), 3)
    assert [read(path) for path in seats] == [0, 87]
