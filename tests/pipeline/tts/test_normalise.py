"""What holds for the spoken form of any text."""

from __future__ import annotations

import random
import re
import time

import pytest

from pipeline.frames import Language
from pipeline.tts.normalise import spoken

_ALPHABET = [
    *"0123456789 .,:;!?-–/%$€¥°#*_`()[]<>|~\\'\"@&+=^\n",
    *"abAMx中度米月日号点第元",
    "km/h", "°C", "€", "½", "No.", "Dr.", "10:30", "2026-13-45", "a.m.", "http://", "](", "🙂", "①", "５", "२",
    "Ⅳ", "²", "1e9", "1/0",
]  # fmt: skip


@pytest.mark.parametrize("language", ["en", "zh"])
def test_no_digit_and_no_markup_is_left_of_any_text(language: Language) -> None:
    chance = random.Random(7)
    for _ in range(3000):
        text = "".join(chance.choices(_ALPHABET, k=chance.randint(0, 24)))
        words = spoken(text, language)
        assert not re.search(r"[0-9*_`#<>|\[\]{}\\^~$€¥°%@&=+]|\n", words), (text, words)
        assert words == words.strip()


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize(
    "text", ["", " ", "\n", "...", "!?", "——", "🙂🙂", "**", "```", "---", "|", "\x00\x1b", "\u200b", "（）"]
)
def test_what_has_no_sound_is_empty(language: Language, text: str) -> None:
    assert spoken(text, language) == ""


@pytest.mark.parametrize("language", ["en", "zh"])
def test_long_runs_leave_no_digit_and_no_markup(language: Language) -> None:
    for piece in ("1", "1,", "1.", "-", "a@", "(", "[a](", "*a", "10:30-", "第1", "1/2 ", "http://a", "<", "| "):
        words = spoken(piece * 100, language)
        assert not re.search(r"[0-9*_`#<>|\[\]@]", words), (piece, words[:80])


def _seconds(text: str, language: Language) -> float:
    """Processor time of the fastest of five runs: load cannot shorten it."""
    times = []
    for _ in range(5):
        start = time.process_time()
        spoken(text, language)
        times.append(time.process_time() - start)
    return min(times)


@pytest.mark.parametrize("language", ["en", "zh"])
@pytest.mark.parametrize("piece", ["1", "1.", "a", "-1", "\n", "!["])
def test_time_grows_with_the_length_and_not_with_its_square(piece: str, language: Language) -> None:
    """Eight times the text took 50 times as long for a run of digits; linear is 8."""
    short, long = (_seconds((piece * size)[:size], language) for size in (1_000, 8_000))
    assert long < 25 * short


@pytest.mark.parametrize(
    ("text", "language", "expected"),
    [
        ("| Place | Distance |\n|---|---|\n| Home | 5 km |", "en", "Place, Distance, Home, five kilometers"),
        ("> quoted\n> text", "en", "quoted, text"),
        ("## 路线\n\n* 左转\n* 右转", "zh", "路线，左转，右转"),
        ("![map](map.png) Here.", "en", "Here."),
        ("Go <b>now</b><br>please", "en", "Go now please"),
        ("snake_case stays", "en", "snake case stays"),
        ("🇨🇳 China 👨‍👩‍👧 ✅", "en", "China"),
        ("Hello<|im_end|>", "en", "Hello"),
    ],
)
def test_markup(text: str, language: Language, expected: str) -> None:
    assert spoken(text, language) == expected
