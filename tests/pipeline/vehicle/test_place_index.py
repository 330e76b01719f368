"""The place search: what was said finds its place, by spelling and by sound, and what is not there finds nothing."""

from __future__ import annotations

import random

import pytest

from hil.place_names import made_up_places
from pipeline.vehicle.place_index import CERTAIN, PlaceIndex, the_one_meant
from pipeline.vehicle.places import Place

HERE = (48.14, 11.58)


def place(name: str, latitude: float = 48.0, *aliases: str) -> Place:
    return Place(f"{name}@{latitude}", "", name, name, latitude, 11.5, aliases)


@pytest.fixture(scope="module")
def many() -> tuple[list[Place], PlaceIndex]:
    places = made_up_places(3000)
    return places, PlaceIndex.build(places)


def test_every_name_finds_itself_first(many: tuple[list[Place], PlaceIndex]) -> None:
    places, index = many
    for wanted in random.Random(3).sample(places, 200):
        hits = index.search(wanted.en, *HERE)
        assert hits[0].likeness == 1.0
        assert hits[0].place.en == wanted.en
        assert the_one_meant(hits) == hits[0]


def test_a_homophone_finds_the_place_by_sound() -> None:
    index = PlaceIndex.build([place("静安公园"), place("长宁公园"), place("南山小学")])
    (first, *_) = hits = index.search("景安公园", *HERE)
    assert first.place.en == "静安公园"
    assert CERTAIN <= first.likeness < 1.0
    assert the_one_meant(hits) == first


def test_one_wrong_letter_still_finds_it(many: tuple[list[Place], PlaceIndex]) -> None:
    places, index = many
    chance = random.Random(4)
    english = [candidate for candidate in chance.sample(places, 200) if candidate.en.isascii()]
    found = 0
    for wanted in english:
        at = chance.randrange(1, len(wanted.en) - 1)
        said = wanted.en[:at] + chance.choice("aeiou") + wanted.en[at + 1 :]
        found += wanted.en in [hit.place.en for hit in index.search(said, *HERE)]
    assert found >= 0.97 * len(english)


def test_of_equal_names_the_nearest() -> None:
    index = PlaceIndex.build([place("City Museum", 47.0), place("City Museum", 48.1), place("City Museum", 50.0)])
    hits = index.search("city museum", *HERE)
    assert [hit.place.latitude for hit in hits] == [48.1, 47.0, 50.0]
    assert the_one_meant(hits) == hits[0]


@pytest.mark.parametrize(
    ("known", "said"),
    [
        ("Munich Airport", "Heathrow Airport"),
        ("上海虹桥机场", "首都机场"),
        ("北京儿童医院", "北京医院"),
        ("Gate 8", "Gate 3"),
        ("第一人民医院", "第二人民医院"),
        ("Longton Coffee House", "Langdon Tea House"),
    ],
)
def test_another_place_of_the_kind_is_never_the_one_meant(known: str, said: str) -> None:
    index = PlaceIndex.build([place(known), place("Somewhere Else")])
    assert the_one_meant(index.search(said, *HERE)) is None


def test_two_names_that_sound_alike_are_not_guessed_between() -> None:
    index = PlaceIndex.build([place("静安公园"), place("景安公园")])
    assert the_one_meant(index.search("敬安公园", *HERE)) is None


def test_a_part_that_is_a_whole_name_of_its_own_wins() -> None:
    index = PlaceIndex.build([place("Union Square Garage", 48.13), place("Union Square", 47.0)])
    hit = the_one_meant(index.search("Union Square", *HERE))
    assert hit is not None
    assert hit.place.en == "Union Square"


def test_nothing_said_finds_nothing(many: tuple[list[Place], PlaceIndex]) -> None:
    for said in ("", "!?", "qqqqqq", "的" * 80):
        assert the_one_meant(many[1].search(said, *HERE)) is None
