"""The regression set of typed commands: the share that ends right, and nothing done that must not be.

Its sets were blind at their first run; rules were made from their failures since, so the share says nothing about
commands never seen.
"""

from __future__ import annotations

import pytest

from benchmarks.quality.commands_regression import load_regression, measure
from pipeline.dialogue.manager import DialogueManager
from pipeline.frames import Language
from pipeline.vehicle.signals import EmbeddedTree


@pytest.fixture(scope="module")
def car() -> tuple[DialogueManager, EmbeddedTree]:
    tree = EmbeddedTree()
    dialogue = DialogueManager.create(tree)
    dialogue.warm_up()
    return dialogue, tree


def test_regression_commands(car: tuple[DialogueManager, EmbeddedTree]) -> None:
    result = measure(load_regression(), *car)
    assert result["forbidden_actions"] == 0, result["wrong"]
    assert result["wrong_actions"] <= 2, result["wrong"]
    assert min(result["accuracy_en"], result["accuracy_zh"]) >= 0.97, result["missed"]


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("Set the temperature to 21", "en"),
        ("Play pre missed rock again", "en"),
        ("温度调到二十一度", "zh"),
        ("放冲筹物", "zh"),
    ],
)
def test_numbers_and_free_text_heard_uncertainly_are_asked_for_again(
    car: tuple[DialogueManager, EmbeddedTree], text: str, language: Language
) -> None:
    dialogue, _ = car
    doubted = dialogue.plan(text, language, avg_logprob=-0.9).calls[0]
    assert doubted.arguments["reason"] == "not_understood"
    for sure in (None, -0.2):
        assert dialogue.plan(text, language, avg_logprob=sure).calls[0].name != "refuse"


def test_the_cars_own_words_are_judged_by_sound_not_by_confidence(car: tuple[DialogueManager, EmbeddedTree]) -> None:
    assert car[0].plan("打开主架座椅加热", "zh", avg_logprob=-0.9).calls[0].name == "set_seat_heating"
    assert car[0].plan("How fast are we going?", "en", avg_logprob=-0.9).calls[0].name == "ask_vehicle"


def test_a_turn_ends_early_only_on_what_hardly_goes_on(car: tuple[DialogueManager, EmbeddedTree]) -> None:
    """Of all beginnings of all commands, few are taken for the whole of another command (5 % when written)."""
    dialogue, _ = car
    cut_short, beginnings = [], 0
    for command in load_regression():
        joint = " " if command.language == "en" else ""
        words = command.text.split() if command.language == "en" else list(command.text)
        whole = [clause.call for clause in dialogue.interpreter.parse(command.text, command.language).clauses]
        for count in range(1, len(words)):
            beginning = joint.join(words[:count])
            beginnings += 1
            calls = [clause.call for clause in dialogue.interpreter.parse(beginning, command.language).clauses]
            if calls != whole and dialogue.is_complete(beginning, command.language):
                cut_short.append(beginning)
    assert len(cut_short) <= 0.07 * beginnings, cut_short
