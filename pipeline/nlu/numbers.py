"""Numbers said in words or digits, in English and Mandarin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

_UNITS = {
    word: value
    for value, word in enumerate(
        [
            "zero",
            "one",
            "two",
            "three",
            "four",
            "five",
            "six",
            "seven",
            "eight",
            "nine",
            "ten",
            "eleven",
            "twelve",
            "thirteen",
            "fourteen",
            "fifteen",
            "sixteen",
            "seventeen",
            "eighteen",
            "nineteen",
        ]
    )
} | {"oh": 0}
_TENS = {
    word: 10 * (i + 2)
    for i, word in enumerate(["twenty", "thirty", "forty", "fifty", "sixty", "seventy", "eighty", "ninety"])
}
_TENS["fourty"] = 40
_DIGITS = {
    "零": 0,
    "〇": 0,
    "一": 1,
    "二": 2,
    "两": 2,
    "三": 3,
    "四": 4,
    "五": 5,
    "六": 6,
    "七": 7,
    "八": 8,
    "九": 9,
    "幺": 1,
    "俩": 2,
}
_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10000}
NUMBER_WORDS = frozenset(_UNITS) | frozenset(_TENS) | {"hundred", "thousand", "point", "minus"}
_NOT_A_NUMBER_AFTER_ONE = frozenset("点些下首个半会起定样直条曲段共只股键格路边则次")
_COUNTED = frozenset("边扇侧排位人首种张条位")
"""After a numeral these count things; the numeral is no amount: 两边的窗."""
_LIKE_TEN = frozenset("时是石实拾")
"""Sound like 十; after 百分之 and one numeral nothing else can stand."""
_MEASURES = tuple([word] for word in "度档挡级格")
_MINUS = {"minus", "negative", "负"}


@dataclass(frozen=True, slots=True)
class Number:
    """Words [start, end) say this value. `open_ended`: more digits may still follow ("twenty", "二十")."""

    value: float
    start: int
    end: int
    open_ended: bool = False


def find_numbers(words: Sequence[str]) -> list[Number]:
    """Every number in the words, left to right; "below zero" (零下) and "minus" make it negative."""
    numbers: list[Number] = []
    i = 0
    while i < len(words):
        start = i
        sign = 1.0
        if words[i] in _MINUS and i + 1 < len(words):
            sign, i = -1.0, i + 1
        elif words[i : i + 2] == ["零", "下"]:
            sign, i = -1.0, i + 2
        number = _number_at(words, i)
        if number is None:
            i = start + 1
            continue
        value, end, open_ended = number
        numbers.append(Number(sign * value, start, end, open_ended))
        i = end
    return numbers


def _number_at(words: Sequence[str], i: int) -> tuple[float, int, bool] | None:
    if i >= len(words):
        return None
    word = words[i]
    if word[0].isdigit():
        return _digits_at(words, i)
    if word in _DIGITS or word in _SCALES:
        return _chinese_at(words, i)
    return _english_at(words, i)


def _digits_at(words: Sequence[str], i: int) -> tuple[float, int, bool]:
    value = float(words[i].replace(",", "." if len(words[i].split(",")[-1]) != 3 else ""))
    end = i + 1
    if (
        end + 1 < len(words)
        and words[end] in ("point", "点")
        and (words[end + 1][0].isdigit() or words[end + 1] in _DIGITS)
    ):
        tail = words[end + 1]
        tail = tail if tail[0].isdigit() else str(_DIGITS[tail])
        return float(f"{int(value)}.{tail}"), end + 2, False
    if end < len(words) and words[end] in _SCALES and value < 100:
        return value * _SCALES[words[end]], end + 1, False
    if list(words[end : end + 3]) == ["and", "a", "half"]:
        return value + 0.5, end + 3, False
    if list(words[end : end + 2]) == ["度", "半"]:
        return value + 0.5, end + 2, False
    return value, end, False


def _english_at(words: Sequence[str], i: int) -> tuple[float, int, bool] | None:
    total, current, at, seen, open_ended = 0.0, 0.0, i, False, False
    if words[i] == "a" and i + 1 < len(words) and words[i + 1] == "hundred":
        current, at, seen = 1.0, i + 1, True
    last = ""
    while at < len(words):
        word = words[at]
        if (
            word in _UNITS
            and last in ("", "tens", "hundred", "and")
            and not (last == "tens" and not 1 <= _UNITS[word] <= 9)
        ):
            current, last, open_ended = current + _UNITS[word], "unit", False
        elif word in _TENS and last in ("", "hundred", "and"):
            current, last, open_ended = current + _TENS[word], "tens", True
        elif word == "hundred" and (last == "unit" or (seen and not last)):
            current, last, open_ended = current * 100, "hundred", False
        elif word == "thousand" and last in ("unit", "tens", "hundred"):
            total, current, last, open_ended = total + current * 1000, 0.0, "hundred", False
        elif word == "and" and last == "hundred" and at + 1 < len(words) and words[at + 1] in _UNITS | _TENS:
            last = "and"
        else:
            break
        at += 1
    if not last:
        return None
    value = total + current
    if last in ("unit", "tens") and at + 1 < len(words) and words[at] == "point" and words[at + 1] in _UNITS:
        return value + _UNITS[words[at + 1]] / 10, at + 2, False
    if list(words[at : at + 3]) == ["and", "a", "half"]:
        return value + 0.5, at + 3, False
    if (
        value == 1
        and at == i + 1
        and (
            i == 0 or at >= len(words) or words[i - 1] in ("this", "that", "the", "next", "last", "another", "previous")
        )
    ):
        return None
    return value, at, open_ended


def _chinese_at(words: Sequence[str], i: int) -> tuple[float, int, bool] | None:
    at = i
    while at < len(words) and (words[at] in _DIGITS or words[at] in _SCALES):
        at += 1
    run = words[i:at]
    following = words[at] if at < len(words) else ""
    if len(run) == 1 and run[0] == "一" and following in _NOT_A_NUMBER_AFTER_ONE:
        digit_follows = following == "点" and at + 1 < len(words) and words[at + 1] in _DIGITS
        if not digit_follows or words[at + 1] == "一":
            return None
    if len(run) == 1 and run[0] in ("百", "千", "万"):
        return None
    if len(run) == 1 and (
        following in _COUNTED or (following == "个" and list(words[at + 1 : at + 2]) not in _MEASURES)
    ):
        return None
    if len(run) == 1 and run[0] in _DIGITS and following in _LIKE_TEN and list(words[max(i - 1, 0) : i]) == ["之"]:
        return 10.0 * _DIGITS[run[0]], at + 1, True
    value = _chinese_value(run)
    open_ended = len(run) == 1 or run[-1] == "十"
    if following == "点" and at + 1 < len(words) and words[at + 1] in _DIGITS:
        return value + _DIGITS[words[at + 1]] / 10, at + 2, False
    if following == "度" and at + 1 < len(words) and words[at + 1] == "半":
        return value + 0.5, at + 2, False
    return value, at, open_ended


def _chinese_value(run: Sequence[str]) -> float:
    if not any(word in _SCALES for word in run):
        return float("".join(str(_DIGITS[word]) for word in run))
    total, digit, scale = 0, 0, 0
    for word in run:
        if word in _DIGITS:
            digit = _DIGITS[word]
        else:
            scale = _SCALES[word]
            total += (digit or (1 if word == "十" else 0)) * scale
            digit = 0
    if digit and scale >= 100 and run[-2] in _SCALES and run[-2] != "十":
        digit *= scale // 10
    return float(total + digit)
