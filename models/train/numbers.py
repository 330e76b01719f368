"""Numbers as people say them and as a recogniser writes them."""

from __future__ import annotations

import random

_EN_UNITS = ["zero", "one", "two", "three", "four", "five", "six", "seven", "eight", "nine", "ten", "eleven", "twelve"]
_EN_UNITS += ["thirteen", "fourteen", "fifteen", "sixteen", "seventeen", "eighteen", "nineteen"]
_EN_TENS = ["", "", "twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"]
_ZH = "零一二三四五六七八九"


def english(value: int, rng: random.Random) -> str:
    """0 to 999 in words."""
    if value < 20:
        return _EN_UNITS[value]
    if value < 100:
        tens, units = divmod(value, 10)
        if not units:
            return _EN_TENS[tens]
        return f"{_EN_TENS[tens]}{rng.choice([' ', ' ', ' ', '-'])}{_EN_UNITS[units]}"
    hundreds, rest = divmod(value, 100)
    head = "a hundred" if hundreds == 1 and rng.random() < 0.4 else f"{_EN_UNITS[hundreds]} hundred"
    if not rest:
        return head
    return f"{head}{rng.choice([' and ', ' '])}{english(rest, rng)}"


def mandarin(value: int) -> str:
    """0 to 999 in characters."""
    if value < 10:
        return _ZH[value]
    if value < 20:
        return "十" + (_ZH[value % 10] if value % 10 else "")
    if value < 100:
        tens, units = divmod(value, 10)
        return _ZH[tens] + "十" + (_ZH[units] if units else "")
    hundreds, rest = divmod(value, 100)
    head = _ZH[hundreds] + "百"
    if not rest:
        return head
    if rest < 10:
        return f"{head}零{_ZH[rest]}"
    return head + (_ZH[rest // 10] + "十" + (_ZH[rest % 10] if rest % 10 else ""))


def said(value: float, language: str, rng: random.Random, *, degrees: bool = False) -> str:
    """A way to say `value` >= 0 with at most one decimal. degrees: 二十三度五 and 23度半 may say the half, too."""
    whole, tenths = int(value), round(value % 1 * 10)
    digits = rng.random() < 0.4
    if tenths == 5 and rng.random() < 0.06:
        return f"{whole}½"
    if language == "en":
        if not tenths:
            return str(whole) if digits else english(whole, rng)
        if digits:
            return f"{whole}.{tenths}"
        if tenths == 5 and rng.random() < 0.5:
            return f"{english(whole, rng)} and a half"
        return f"{english(whole, rng)} point {_EN_UNITS[tenths]}"
    if not tenths:
        return str(whole) if digits else mandarin(whole)
    spoken = str(whole) if digits else mandarin(whole)
    if degrees and rng.random() < 0.5:
        half = "半" if tenths == 5 and rng.random() < 0.5 else str(tenths) if digits else _ZH[tenths]
        return f"{spoken}度{half}"
    return f"{whole}.{tenths}" if digits else f"{spoken}点{_ZH[tenths]}"
