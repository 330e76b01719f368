"""An unknown place never becomes a known one of its kind: it is refused by name."""

from __future__ import annotations

import pytest

from pipeline.dialogue.manager import DialogueManager
from pipeline.frames import Language


@pytest.fixture(scope="module")
def dialogue() -> DialogueManager:
    return DialogueManager.create()


@pytest.mark.parametrize(
    ("text", "name"),
    [
        ("Take me to Heathrow airport", "Heathrow airport"),
        ("navigate to heathrow airport please", "heathrow airport"),
        ("How far is Heathrow airport?", "Heathrow airport"),
        ("Drive to Beijing airport", "Beijing airport"),
        ("Take me to the hotel Adlon", "hotel Adlon"),
        ("Navigate to the Tesla charging station", "Tesla charging station"),
        ("导航到首都机场", "首都机场"),
        ("去首都机场", "首都机场"),
        ("到首都机场还有多远", "首都机场"),
        ("去北京大学", "北京大学"),
        ("带我去协和医院", "协和医院"),
    ],
)
def test_refused_by_name(dialogue: DialogueManager, text: str, name: str) -> None:
    language: Language = "en" if text.isascii() else "zh"
    plan = dialogue.plan(text, language)
    (result,) = dialogue.execute(plan, 1)
    assert (result.status, result.reason) == ("refused", "unknown_place")
    assert name in dialogue.reply(plan, [result], language)
    assert dialogue.toolbox.route.place is None


@pytest.mark.parametrize(
    ("text", "kind"),
    [
        ("Take me to the airport", "airport"),
        ("find me a good restaurant", "restaurant"),
        ("Drive to the nearest charging station", "charging_station"),
        ("Is there a cheap hotel near here?", "hotel"),
        ("去最近的加油站", "petrol_station"),
        ("找一家好吃的餐厅", "restaurant"),
        ("去机场", "airport"),
    ],
)
def test_a_kind_that_is_only_described_is_still_the_kind(dialogue: DialogueManager, text: str, kind: str) -> None:
    plan = dialogue.plan(text, "en" if text.isascii() else "zh")
    assert [call.arguments["place"] for call in plan.calls] == [kind]
