"""Numbers in both languages."""

from __future__ import annotations

import pytest

from pipeline.nlu.numbers import find_numbers
from pipeline.nlu.phonetics import tokens_of


@pytest.mark.parametrize(
    ("text", "values"),
    [
        ("twenty two degrees", [22]),
        ("twenty-two", [22]),
        ("22.5", [22.5]),
        ("two and a half", [2.5]),
        ("22½ degrees", [22.5]),
        ("19 ¼", [19.25]),
        ("调到22½度", [22.5]),
        ("a hundred percent", [100]),
        ("one hundred and twenty", [120]),
        ("two thousand five hundred", [2500]),
        ("minus five", [-5]),
        ("twenty one point five", [21.5]),
        ("play the next one", []),
        ("二十二度", [22]),
        ("二十一点五度", [21.5]),
        ("二十二度半", [22.5]),
        ("零下五度", [-5]),
        ("百分之六十", [60]),
        ("一百五十", [150]),
        ("一百二", [120]),
        ("两千零五", [2005]),
        ("调高一点", []),
        ("放一首歌", []),
        ("打开一半", []),
        ("从十八到二十", [18, 20]),
        ("", []),
    ],
)
def test_values(text: str, values: list[float]) -> None:
    assert [number.value for number in find_numbers([token.text for token in tokens_of(text)])] == values


@pytest.mark.parametrize(
    ("text", "open_ended"), [("twenty", True), ("twenty two", False), ("二十", True), ("二十二", False)]
)
def test_more_digits_may_follow(text: str, open_ended: bool) -> None:
    assert find_numbers([token.text for token in tokens_of(text)])[0].open_ended is open_ended
