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
        ("set the driver temperature to 22 degrees", "en", "words"),
        ("shift into reverse", "en", "words"),
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
