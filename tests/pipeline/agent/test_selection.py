"""What chooses one of the places named before, and what does not."""

from __future__ import annotations

import time

import pytest

from pipeline.agent.memory import KEPT_TURNS, RECENT_TURNS, Offer, TaskMemory
from pipeline.agent.selection import selection_of
from pipeline.frames import Language, ToolCall
from pipeline.vehicle.places import Place

A, B, C = (
    Place(name, "hotel", en, zh, 31.0 + i / 10, 121.0, ())
    for i, (name, en, zh) in enumerate(
        (("a", "the Garden hotel", "花园酒店"), ("b", "Peace Inn", "和平旅馆"), ("c", "Lake Lodge", "湖畔旅舍"))
    )
)
TRIP = ToolCall("navigate_to", {"place": "", "avoid": []})
LIST = Offer(1, "found", (A, B, C), TRIP)


@pytest.mark.parametrize(
    ("text", "language", "place"),
    [
        ("the second one", "en", B),
        ("The second one, please.", "en", B),
        ("take me to the second one", "en", B),
        ("okay, let's take the first", "en", A),
        ("number three", "en", C),
        ("option 2", "en", B),
        ("I'd like the last one", "en", C),
        ("navigate to the nearest one", "en", A),
        ("第二个", "zh", B),
        ("去第二个吧", "zh", B),
        ("带我去第三家", "zh", C),
        ("那就第一个。", "zh", A),
        ("最后一个", "zh", C),
        ("去最近的那个", "zh", A),
        ("我要去第二个", "zh", B),
    ],
)
def test_one_of_the_list_is_chosen(text: str, language: Language, place: Place) -> None:
    chosen = selection_of(text, language, LIST, None)
    assert chosen is not None
    assert (chosen.verb, chosen.place) == ("go", place)


@pytest.mark.parametrize(
    ("text", "language"),
    [
        ("second gear", "en"),
        ("yes", "en"),
        ("yes, I like that song", "en"),
        ("set the fan to two", "en"),
        ("play the second one", "en"),
        ("don't take the second one", "en"),
        ("not the first one", "en"),
        ("the second one is ugly", "en"),
        ("open the last window", "en"),
        ("对", "zh"),
        ("不要第二个", "zh"),
        ("不去第二个", "zh"),
        ("不去了", "zh"),
        ("第二个是什么意思", "zh"),
        ("打开第二个车窗", "zh"),
        ("音量调到二", "zh"),
    ],
)
def test_other_words_choose_nothing(text: str, language: Language) -> None:
    assert selection_of(text, language, LIST, None) is None


def test_a_number_beyond_the_list_is_asked_back() -> None:
    chosen = selection_of("the fifth one", "en", LIST, None)
    assert chosen is not None
    assert (chosen.verb, chosen.place) == ("which", None)
    there = selection_of("take me there", "en", LIST, None)
    assert there is not None
    assert there.verb == "which"


def test_how_far() -> None:
    for text, language in (("how far is the second one", "en"), ("第二个有多远", "zh")):
        chosen = selection_of(text, language, LIST, None)  # type: ignore[arg-type]
        assert chosen is not None
        assert (chosen.verb, chosen.place) == ("distance", B)


@pytest.mark.parametrize(
    ("text", "language", "verb"),
    [
        ("yes", "en", "go"),
        ("Yes, please.", "en", "go"),
        ("yeah that's the one", "en", "go"),
        ("correct", "en", "go"),
        ("no", "en", "declined"),
        ("No, thanks.", "en", "declined"),
        ("对", "zh", "go"),
        ("是的", "zh", "go"),
        ("对，就是它", "zh", "go"),
        ("没错。", "zh", "go"),
        ("不是", "zh", "declined"),
        ("算了", "zh", "declined"),
        ("the garden hotel", "en", "go"),
        ("花园酒店", "zh", "go"),
    ],
)
def test_did_you_mean(text: str, language: Language, verb: str) -> None:
    question = Offer(1, "asked", (A,), TRIP)
    chosen = selection_of(text, language, question, question)
    assert chosen is not None
    assert chosen.verb == verb
    assert chosen.place == (A if verb == "go" else None)


def test_yes_to_two_of_them_is_asked_back() -> None:
    question = Offer(1, "asked", (A, B), TRIP)
    chosen = selection_of("yes", "en", question, question)
    assert chosen is not None
    assert (chosen.verb, chosen.place) == ("which", None)


def test_an_old_list_is_asked_about_unless_a_trip_is_named() -> None:
    bare = selection_of("the second one", "en", LIST, None, recent=False)
    assert bare is not None
    assert (bare.verb, bare.offer.places) == ("which", (B,))
    named = selection_of("take me to the second one", "en", LIST, None, recent=False)
    assert named is not None
    assert (named.verb, named.place) == ("go", B)


def test_memory_lasts_ten_turns_and_ends() -> None:
    memory = TaskMemory()
    memory.keep(LIST)
    for turn_id in range(2, 12):
        memory.begin(turn_id)
    assert memory.latest() == LIST
    assert memory.turns_since_latest() > RECENT_TURNS
    for turn_id in range(12, 3 + KEPT_TURNS):
        memory.begin(turn_id)
    assert memory.latest() is None


def test_only_the_turn_before_asks_a_question() -> None:
    memory = TaskMemory()
    question = Offer(3, "asked", (A,), TRIP)
    memory.keep(question)
    assert memory.open_question() == question
    assert memory.open_question(4) == question
    memory.begin(4)
    assert memory.open_question() is None
    assert memory.open_question(4) == question, "a turn that is planned again still answers the one before"
    memory.forget(3)
    assert memory.latest() is None


@pytest.mark.parametrize("text", ["嗯" * 300 + "x", "yes " * 300 + "x", "那就好对是" * 100 + "x", "ok, " * 200 + "x"])
def test_long_texts_are_judged_at_once(text: str) -> None:
    start_s = time.process_time()
    for language in ("en", "zh"):
        selection_of(text, language, LIST, Offer(1, "asked", (A,), TRIP))  # type: ignore[arg-type]
    assert time.process_time() - start_s < 5.0
