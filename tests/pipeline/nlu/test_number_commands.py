"""Every value from 0 to 100, in words and digits, in every kind of command: never another value or thing."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from pipeline.dialogue.manager import DialogueManager
from pipeline.frames import Language

PERCENT: dict[Language, dict[str, str]] = {
    "zh": {
        "主驾车窗打开百分之{}": "set_window",
        "把副驾车窗开到百分之{}": "set_window",
        "右后车窗打开到百分之{}": "set_window",
        "座椅加热调到百分之{}": "set_seat_heating",
        "把主驾座椅加热设为百分之{}": "set_seat_heating",
        "座椅通风调到百分之{}": "set_seat_ventilation",
        "方向盘加热调到百分之{}": "set_steering_wheel_heating",
        "风量调到百分之{}": "set_fan",
        "把风速设为百分之{}": "set_fan",
        "音量调到百分之{}": "set_volume",
        "把音量设成{}": "set_volume",
        "导航音量调到百分之{}": "set_volume",
        "屏幕亮度调到百分之{}": "set_brightness",
        "遮阳帘打开百分之{}": "set_sunshade",
        "温度调到{}度": "set_temperature",
        "把主驾温度调到{}度": "set_temperature",
        "空调调到{}度": "set_temperature",
    },
    "en": {
        "Open the driver window to {} percent": "set_window",
        "Set the passenger seat heating to {} percent": "set_seat_heating",
        "Set the seat ventilation to {} percent": "set_seat_ventilation",
        "Set the steering wheel heating to {} percent": "set_steering_wheel_heating",
        "Turn the fan to {} percent": "set_fan",
        "Set the volume to {} percent": "set_volume",
        "Set the volume to {}": "set_volume",
        "Navigation volume to {} percent": "set_volume",
        "Set the brightness to {} percent": "set_brightness",
        "Set the sunshade to {} percent": "set_sunshade",
        "Set the temperature to {} degrees": "set_temperature",
        "Set the driver temperature to {}": "set_temperature",
    },
}
_DIGITS = "零一二三四五六七八九"
_ONES = [
    *("zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"),
    *("thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"),
]
_TENS = ["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]


@pytest.fixture(scope="module")
def dialogue() -> DialogueManager:
    return DialogueManager.create()


def _spelled(value: int, language: Language) -> str:
    tens, ones = divmod(value, 10)
    if language == "zh":
        if value < 10 or value == 100:
            return "一百" if value == 100 else _DIGITS[value]
        return (_DIGITS[tens] if tens > 1 else "") + "十" + (_DIGITS[ones] if ones else "")
    if value < 20 or value == 100:
        return "one hundred" if value == 100 else _ONES[value]
    return _TENS[tens - 2] + (f" {_ONES[ones]}" if ones else "")


def _texts(template: str, language: Language) -> Iterator[tuple[int, str]]:
    for value in range(101):
        yield value, template.format(_spelled(value, language))
        yield value, template.format(value).replace(" percent", "%")


@pytest.mark.parametrize("language", ["en", "zh"])
def test_every_value_is_the_one_said(dialogue: DialogueManager, language: Language) -> None:
    wrong = []
    for template, tool in PERCENT[language].items():
        for value, text in _texts(template, language):
            calls = [clause.call for clause in dialogue.interpreter.parse(text, language).clauses]
            said = [(call.name, call.arguments.get("action"), call.arguments.get("value")) for call in calls]
            if said != [(tool, "set", value)]:
                wrong.append((text, said))
    assert wrong == []


def test_a_number_alone_is_no_word_that_sounds_like_it(dialogue: DialogueManager) -> None:
    """百分之五 switched the front defroster on (除雾), 之九十 was heard as 主驾室."""
    for value in range(101):
        for text in (f"百分之{_spelled(value, 'zh')}", _spelled(value, "zh")):
            assert dialogue.interpreter.parse(text, "zh").clauses == (), text


@pytest.mark.parametrize(
    ("text", "value"),
    [
        ("温度降到23度5", 23.5),
        ("温度调到二十三度五", 23.5),
        ("温度调到二十三度半", 23.5),
        ("温度调到二十一点五度", 21.5),
        ("音量调到百分之百", 100),
        ("音量调到百分百", 100),
        ("音量调到百分之十亿", 1e9),
        ("音量调到三万五", 35000),
        ("Set the temperature to twenty one point five degrees", 21.5),
        ("Set the temperature to twenty one point two five degrees", 21.25),
        ("Set the volume to one", 1),
    ],
)
def test_a_number_is_taken_whole(dialogue: DialogueManager, text: str, value: float) -> None:
    (clause,) = dialogue.interpreter.parse(text, "en" if text.isascii() else "zh").clauses
    assert (clause.call.arguments["action"], clause.call.arguments["value"]) == ("set", value)


@pytest.mark.parametrize(
    "text",
    [
        "Set the volume to 4, 1%.",
        "Set the volume to 4 1 percent",
        "Set the volume to 4.8%.",
        "音量调到百分之四点八",
        "Set the volume to four, one percent",
        "Set the temperature to twenty, two degrees",
        "Set the temperature to 20. 2 degrees",
        "Set the temperature to 22 degrees 50",
        "Set the temperature to 2 2 degrees",
        "Set the temperature to twenty two point",
        "音量调到百分之四，一",
        "温度调到二十度二十",
        "温度调到23度55",
        "音量调到千分之五",
        "音量调到五分之三",
        "音量调到3千5百",
    ],
)
def test_what_is_left_beside_a_number_is_asked_for_again(dialogue: DialogueManager, text: str) -> None:
    language: Language = "en" if text.isascii() else "zh"
    calls = dialogue.plan(text, language).calls
    assert [(call.name, call.arguments.get("reason")) for call in calls] == [("refuse", "not_understood")]
    assert not dialogue.is_complete(text, language)
