"""Plans without a language model: who decided, and what an interrupted choice leaves."""

from __future__ import annotations

from collections.abc import Sequence
from typing import Any

import pytest

from pipeline.dialogue.manager import DialogueManager
from pipeline.dialogue.tool_choice import Choice
from pipeline.frames import Language, ToolCall
from pipeline.turn_log import TurnRecord


@pytest.fixture(scope="module")
def dialogue() -> DialogueManager:
    return DialogueManager.create()


class _Chooser:
    """Stands for the model's choice; `cancelled` as in the real one."""

    def choose(self, text: str, calls: Sequence[ToolCall], *, cancelled: Any, **_: Any) -> Choice | None:
        return None if cancelled() else Choice(calls[-1], 1.0)


@pytest.mark.parametrize(
    ("text", "language", "decided_by"),
    [
        ("set the driver temperature to 22 degrees", "en", "rule"),
        ("shift into reverse", "en", "rule"),
        ("what is regenerative braking?", "en", "manual"),
        ("什么是动能回收", "zh", "manual"),
        ("你好", "zh", "manual"),
    ],
)
def test_who_decided(dialogue: DialogueManager, text: str, language: Language, decided_by: str) -> None:
    assert dialogue.plan(text, language).decided_by == decided_by


def test_an_interrupted_choice_is_dropped_and_never_the_first_candidate() -> None:
    dialogue = DialogueManager.create()
    dialogue.chooser = _Chooser()  # type: ignore[assignment]
    cut = dialogue.plan("it's stuffy in here", "en", cancelled=lambda: True)
    assert (cut.cut, cut.calls, cut.chat) == (True, (), False)
    assert dialogue.execute(cut, 1) == []
    made = dialogue.plan("it's stuffy in here", "en")
    assert (made.decided_by, len(made.calls), made.cut) == ("model", 1, False)


@pytest.mark.parametrize(
    ("text", "language", "task"),
    [
        ("take me to the nearest charging station", "en", "navigation"),
        ("导航到最近的充电站", "zh", "navigation"),
        ("avoid highways", "en", "navigation"),
        ("how far is it to the airport", "en", "navigation"),
        ("cancel the navigation", "en", "navigation"),
        ("取消导航", "zh", "navigation"),
        ("open the sunroof and take me home", "en", "navigation"),
        ("set the driver temperature to 22 degrees", "en", "vehicle"),
        ("把空调调到二十二度", "zh", "vehicle"),
        ("打开后窗除雾", "zh", "vehicle"),
        ("how warm is it outside", "en", "vehicle"),
        ("shift into reverse", "en", "dialogue"),
        ("what is regenerative braking?", "en", "dialogue"),
        ("你好", "zh", "dialogue"),
        ("tell me a joke", "en", "dialogue"),
        ("给我讲个笑话", "zh", "dialogue"),
        ("...", "en", "dialogue"),
    ],
)
def test_the_parse_says_what_a_turn_is_for(dialogue: DialogueManager, text: str, language: Language, task: str) -> None:
    assert dialogue.plan(text, language).task == task


def test_the_model_chooses_as_the_task_of_the_words() -> None:
    asked: list[Any] = []

    class Chooser:
        def choose(self, text: str, calls: Sequence[ToolCall], *, task: Any, **_: Any) -> Choice | None:
            asked.append(task)
            return None

    dialogue = DialogueManager.create()
    dialogue.chooser = Chooser()  # type: ignore[assignment]
    cut = dialogue.plan("it's stuffy in here", "en")
    assert (cut.cut, cut.task) == (True, "vehicle")
    assert asked == ["vehicle"]


def test_a_turn_says_who_decided() -> None:
    record = TurnRecord(1, 0)
    assert record.as_json()["decided_by"] is None
    record.decided_by = "manual"
    assert record.as_json()["decided_by"] == "manual"


@pytest.mark.parametrize(
    ("text", "language"),
    [("All the windows.", "en"), ("The plus all windows", "en"), ("把音量", "zh"), ("百分之五", "zh"), ("41%", "en")],
)
def test_a_fragment_about_the_car_is_asked_for_again_and_no_talk(
    dialogue: DialogueManager, text: str, language: Language
) -> None:
    plan = dialogue.plan(text, language)
    assert [call.arguments["reason"] for call in plan.calls] == ["not_understood"]
    assert not dialogue.is_complete(text, language)


@pytest.mark.parametrize(
    ("text", "language"),
    [("I love my car's seat heating", "en"), ("Why do windows fog up in winter", "en"), ("发动机声音有点怪", "zh")],
)
def test_talk_that_names_a_thing_stays_talk(dialogue: DialogueManager, text: str, language: Language) -> None:
    assert dialogue.plan(text, language).chat


@pytest.mark.parametrize(("text", "language"), [("Mm-hmm", "en"), ("Hmm.", "en"), ("Uh-huh", "en"), ("嗯", "zh")])
def test_a_backchannel_is_no_command_whatever_it_sounds_like(
    dialogue: DialogueManager, text: str, language: Language
) -> None:
    """ "Mm-hmm" was navigated home."""
    assert dialogue.plan(text, language).calls == ()
