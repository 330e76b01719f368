"""Sections by meaning: the kept file gives back what was built; what is not near enough is not said."""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import numpy as np
import pytest
from numpy.typing import NDArray

from models.errors import InputError
from pipeline.dialogue.manager import DialogueManager
from pipeline.manual.file import sections_of
from pipeline.manual.index import FEW_NAMES, ManualIndex
from pipeline.manual.manual import MOST_SPOKEN, SHIPPED, SHIPPED_INDEX, Manual, quoted
from pipeline.nlu.parser.decision import Decision

TEXT = """# Mirrors {#mirrors}

Asked as: fold the mirrors; see behind

Choose a mirror with the switch.

# 后视镜 {#mirrors}

问法：收起后视镜；看后面

用开关选后视镜。

# Hot engine {#hot .trouble}

Asked as: steam from the front; engine too hot

Stop and let it cool.

# Roof

It carries 75 kilograms.

Check the straps.
"""
MEANINGS = ("mirror 后视镜 后面 behind", "engine steam hot", "roof top kilogram", "strap")


class FakeEncoder:
    """One dimension for each of a few meanings, and one that every text shares."""

    def embed(self, texts: Sequence[str], side: str = "query") -> NDArray[np.float32]:
        rows = np.zeros((len(texts), len(MEANINGS) + 1), np.float32)
        for row, text in zip(rows, texts, strict=True):
            row[-1] = 3.0
            for number, words in enumerate(MEANINGS):
                row[number] = sum(word in text.lower() for word in words.split())
        return rows / np.linalg.norm(rows, axis=1, keepdims=True)  # type: ignore[no-any-return]


@pytest.fixture
def index() -> ManualIndex:
    centre = FakeEncoder().embed([""])[0]
    sections = sections_of(TEXT, "m.md")
    return ManualIndex.build(
        sections, FakeEncoder().embed, source="s", encoder="e", centre={"en": centre, "zh": centre}
    )


def manual_of(index: ManualIndex) -> Manual:
    encoder: Future[Any] = Future()
    encoder.set_result(FakeEncoder())
    return Manual(index.sections, index, encoder)


def test_a_question_finds_its_section_in_its_language(index: ManualIndex) -> None:
    asked = FakeEncoder().embed(["mirror", "镜子后面"])
    hits = index.search(asked[0], "en", 2)
    assert (hits[0].section.heading, len(hits)) == ("Mirrors", 2)
    assert index.search(asked[1], "zh")[0].section.heading == "后视镜"
    assert index.search(asked[0], "en")[0].likeness > 0.9
    assert index.search(asked[0], "zh")[0].section.language == "zh"


def test_a_section_with_few_names_is_found_by_what_it_says(index: ManualIndex) -> None:
    assert FEW_NAMES > 1
    (hit,) = index.search(FakeEncoder().embed(["how do I check a strap"])[0], "en")
    assert (hit.section.heading, hit.passage) == ("Roof", 1)
    assert quoted(hit.section, hit.passage) == 'From the manual, "Roof": Check the straps.'


def test_what_is_kept_is_what_was_built(index: ManualIndex, tmp_path: Path) -> None:
    index.save(tmp_path / "m.npz")
    again = ManualIndex.load(tmp_path / "m.npz")
    assert (again.sections, again.source, again.encoder) == (index.sections, "s", "e")
    assert np.array_equal(again.owners, index.owners)
    assert np.array_equal(again.passages, index.passages)
    assert np.abs(again.vectors - index.vectors).max() < 0.01
    assert [path.name for path in tmp_path.iterdir()] == ["m.npz"]


def test_a_damaged_file_is_refused(index: ManualIndex, tmp_path: Path) -> None:
    file = tmp_path / "m.npz"
    index.save(file)
    file.write_bytes(file.read_bytes()[: file.stat().st_size // 2])
    with pytest.raises(InputError, match="cockpit manual build"):
        ManualIndex.load(file)
    file.write_text("# A\n")
    with pytest.raises(InputError, match="cockpit manual build"):
        ManualIndex.load(file)


def test_the_answer_quotes_its_section_and_what_is_far_is_none(index: ManualIndex) -> None:
    manual = manual_of(index)
    answer = manual.by_meaning("how do I turn the mirror", "en", how_to=True, question=True)
    assert answer is not None
    assert (answer.section, answer.said) == ("Mirrors", 'From the manual, "Mirrors": Choose a mirror with the switch.')
    assert manual.by_meaning("how do I bake bread", "en", how_to=True, question=True) is None
    assert manual.absent("how do I bake bread", "en").said == "That is not in the manual."
    assert manual.absent("怎么做面包", "zh").said == "手册里没有。"


def test_what_is_told_and_not_asked_finds_troubles_only(index: ManualIndex) -> None:
    manual = manual_of(index)
    told = manual.by_meaning("there is steam at my engine", "en", how_to=False, question=False)
    assert told is not None
    assert told.section == "Hot engine"
    assert manual.by_meaning("my mirror is dirty behind", "en", how_to=False, question=False) is None


def test_a_subject_without_a_section_in_the_language_is_not_found(index: ManualIndex) -> None:
    manual = manual_of(index)
    assert manual.find("what is the roof", "en") is not None
    assert manual.find("what is the roof", "zh") is None


def test_long_sections_are_cut_between_paragraphs() -> None:
    long = "word " * (MOST_SPOKEN["en"] // 8)
    (section,) = sections_of(f"# A\n\n{long}\n\n{long}\n\n{long}\n", "m.md")
    assert quoted(section).count(long.strip()) == 1


def test_the_shipped_vectors_are_of_the_shipped_text() -> None:
    index = ManualIndex.load(SHIPPED_INDEX)
    digest = hashlib.sha256(SHIPPED.read_bytes()).hexdigest()
    assert index.source == digest, f"run: cockpit manual build {SHIPPED}"


def test_a_plan_of_the_manual_says_so_and_its_talk_quotes(index: ManualIndex) -> None:
    car = DialogueManager.create(manual=manual_of(index), by_sound=False)
    plan = car.plan("why is there steam in front of me?", "en")
    assert (plan.chat, plan.decided_by, plan.calls) == (True, "manual", ())
    assert plan.from_manual is not None
    said = "".join(car.chat("why is there steam in front of me?", "en", from_manual=plan.from_manual))
    assert said == 'From the manual, "Hot engine": Stop and let it cool.'


@pytest.mark.parametrize(
    ("text", "absent"),
    [
        ("how do I wash a yak", True),
        ("May I carry a yak?", True),
        ("牦牛怎么洗", True),
        ("Tell me something about yaks.", False),
        ("tell me a story about a yak", False),
        ("给我讲讲牦牛吧", False),
        ("讲个牦牛的故事", False),
    ],
)
def test_only_a_question_is_not_in_the_manual(index: ManualIndex, text: str, absent: bool) -> None:
    """Even where the parser's model is sure that it is asked how something is done."""
    car = DialogueManager.create(manual=manual_of(index), by_sound=False)
    sure: Any = SimpleNamespace(decide=lambda *_: Decision("nothing", 0.95, reason="how_to"))
    car.understanding = sure
    plan = car.plan(text, "en" if text.isascii() else "zh")
    assert (plan.chat, plan.calls, plan.from_manual is not None) == (True, (), absent)
