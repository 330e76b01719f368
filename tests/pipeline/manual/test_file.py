"""The manual's file: what is a section, what is read of it, and what is refused by line."""

from __future__ import annotations

from pathlib import Path

import pytest

from models.errors import InputError
from pipeline.manual.file import MOST_NAME, read_manual, sections_of

WHOLE = """# Manual

<!-- a note -->

## Driving

### Auto **hold** {#auto-hold}

Asked as: brake hold; keep the car still;
waiting at a light

Auto hold keeps [the car](http://x) still.

- Press the brake,
- then let go.

### 自动驻车 {#auto-hold .trouble}

问法：停住不动；等红灯

自动驻车会
保持刹车。
"""


def test_headings_with_text_are_sections_of_a_subject_in_each_language() -> None:
    english, chinese = sections_of(WHOLE, "m.md")
    assert (english.id, english.language, english.line) == ("auto-hold", "en", 7)
    assert english.names == ("Auto hold", "brake hold", "keep the car still", "waiting at a light")
    assert english.passages == ("Auto hold keeps the car still.", "Press the brake. then let go.")
    assert (chinese.id, chinese.language, chinese.trouble) == ("auto-hold", "zh", True)
    assert chinese.names == ("自动驻车", "停住不动", "等红灯")
    assert chinese.passages == ("自动驻车会保持刹车。",)


def test_without_an_id_the_heading_is_the_subject() -> None:
    (section,) = sections_of("# Seat belts\n\nWear them.\n", "m.md")
    assert (section.id, section.heading, section.trouble) == ("seat-belts", "Seat belts", False)


def test_a_name_in_latin_letters_may_head_a_mandarin_section() -> None:
    (section,) = sections_of("# ABS\n\n防止车轮抱死。\n", "m.md")
    assert section.language == "zh"


@pytest.mark.parametrize(
    ("text", "line", "words"),
    [
        ("# A\n", 1, "says nothing"),
        ("# A\n\nb\n\n## C\n\n## D\n\ne\n", 5, "says nothing"),
        ("hello\n\n# A\n\nb\n", 1, "before the first heading"),
        ("---\ntitle: x\n---\n\n# A\n\nb\n", 2, "says nothing"),
        ("# A\n\n| a | b |\n|---|---|\n| 1 | 2 |\n", 3, "a table cannot be read aloud"),
        ("# A\n\n![x](y.png)\n", 3, "a picture cannot be read aloud"),
        ("# A\n\n```\nx\n```\n", 3, "code cannot be read aloud"),
        ("# A\n\n<div>x</div>\n", 3, "HTML cannot be read aloud"),
        ("# A\n\nb <i>c</i>\n", 3, "HTML cannot be read aloud"),
        ("# A {#a}\n\nb\n\n# C {#a}\n\nd\n", 5, "'a' stands twice in this language (line 1)"),
        ("# A {a b}\n\nb\n", 1, "is not understood"),
        ("# A {.unknown}\n\nb\n", 1, "is not understood"),
        ("# A\n\nAsked as: ;\n\nb\n", 1, "line of questions is empty"),
        ("# A\n\nAsked as: x\n", 1, "holds questions, but says nothing"),
        ("# A\n\nb\n\nAsked as: x\n", 1, "stands once, first below the heading"),
        ("# ???\n\nb\n", 1, "holds no word"),
        (f"# {'a' * (MOST_NAME + 1)}\n\nb\n", 1, "longer than"),
    ],
)
def test_what_is_malformed_is_named_by_line(text: str, line: int, words: str) -> None:
    with pytest.raises(InputError) as raised:
        sections_of(text, "m.md")
    assert str(raised.value).startswith(f"m.md:{line}: ")
    assert words in str(raised.value)


def test_all_faults_are_counted_and_nothing_is_taken() -> None:
    with pytest.raises(InputError, match=r"\.\.\. and 3 more"):
        sections_of("".join(f"# A{number}\n\n" for number in range(8)), "m.md")


@pytest.mark.parametrize("text", ["", "\n\n", "<!-- only a note -->\n"])
def test_a_file_without_a_section_is_refused(text: str) -> None:
    with pytest.raises(InputError, match="holds no section"):
        sections_of(text, "m.md")


def test_a_file_that_cannot_be_read_is_refused(tmp_path: Path) -> None:
    with pytest.raises(InputError, match="cannot be read as a manual"):
        read_manual(tmp_path / "none.md")
    (tmp_path / "latin.md").write_bytes("# Öl\n\nÖl.\n".encode("latin-1"))
    with pytest.raises(InputError, match="cannot be read as a manual"):
        read_manual(tmp_path / "latin.md")
