"""Numbers said in words or digits, in English and Mandarin."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from itertools import pairwise

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
_SCALES = {"十": 10, "百": 100, "千": 1000, "万": 10_000, "亿": 100_000_000}
NUMBER_WORDS = frozenset(_UNITS) | frozenset(_TENS) | {"hundred", "thousand", "point", "minus"}
_NOT_A_NUMBER_AFTER_ONE = frozenset("点些下首个半会起定样直条曲段共只股键格路边则次")
_COUNTED = frozenset("边扇侧排位人首种张条位")
"""After a numeral these count things; the numeral is no amount: 两边的窗."""
_LIKE_TEN = frozenset("时是石实拾")
"""Sound like 十; after 百分之 and one numeral nothing else can stand."""
_MEASURES = tuple([word] for word in "度档挡级格")
_MEASURED = frozenset("度档挡级格点成个倍%°℃℉")
"""两 counts one of these; else it is no number but a sound ("风两" for 风量). So is 一 in the midst of a text ("放一手"
for 放一首), unless it is what something is set to.
"""
_SET_TO = frozenset("到成为至在之")
_BEFORE_ONE = frozenset(("to", "too", "at", "by", "level"))
"""After these "one" is a number, not a pronoun."""
_UNIT_WORDS = frozenset((*"度档挡级格百分之成%°℃℉", "degree", "degrees", "percent", "per", "cent", "celsius"))
_FRACTION_SIGNS = {"½": 0.5, "¼": 0.25, "¾": 0.75}
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


def number_span(words: Sequence[str], number: Number) -> tuple[int, int]:
    """The words [start, end) of a number with 百分之 or 百分 before it."""
    for before in ("百分之", "百分"):
        start = number.start - len(before)
        if start >= 0 and "".join(words[start : number.start]) == before:
            return start, number.end
    return number.start, number.end


def is_doubtful(words: Sequence[str], numbers: Sequence[Number]) -> bool:
    """True where what was said beside a number was not taken into it: a second number, a digit, a point, a fraction.

    "4, 1%" may be 41 %, "twenty two two" anything: such a number is asked for again.
    """
    for first, second in pairwise(numbers):
        if all(word in _UNIT_WORDS for word in words[first.end : second.start]):
            return True
    for number in numbers:
        start, _ = number_span(words, number)
        if words[number.end : number.end + 1] in (["point"], ["点"]) or _is_digit(words, number.end):
            return True
        if _is_digit(words, start - 1) or (start == number.start and words[start - 1 : start] == ["之"]):
            return True
    return False


def _is_digit(words: Sequence[str], i: int) -> bool:
    return 0 <= i < len(words) and (words[i][0].isdigit() or words[i] in _DIGITS or words[i] in _SCALES)


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
    if value.is_integer() and end < len(words) and words[end] in _FRACTION_SIGNS:
        return value + _FRACTION_SIGNS[words[end]], end + 1, False
    if words[end : end + 1] in (["point"], ["点"]) and value.is_integer():
        tail, after = _tail_at(words, end + 1)
        if tail:
            return float(f"{int(value)}.{tail}"), after, False
    if end < len(words) and words[end] in _SCALES and value < 100:
        return value * _SCALES[words[end]], end + 1, False
    if list(words[end : end + 3]) == ["and", "a", "half"]:
        return value + 0.5, end + 3, False
    tenth = _tenth_after_degree(words, end)
    if tenth is not None:
        return value + tenth, end + 2, False
    return value, end, False


def _tail_at(words: Sequence[str], i: int) -> tuple[str, int]:
    """The digits after a point, and where they end."""
    tail = ""
    while i < len(words):
        word = words[i]
        if word.isdigit() and not tail:
            return word, i + 1
        digit = _DIGITS.get(word, _UNITS.get(word, 10))
        if digit > 9:
            break
        tail, i = tail + str(digit), i + 1
    return tail, i


def _tenth_after_degree(words: Sequence[str], i: int) -> float | None:
    """ "23度5", "二十三度半": what a lone digit after 度 adds, unless it counts something itself."""
    if list(words[i : i + 1]) != ["度"] or i + 1 >= len(words):
        return None
    if words[i + 1] == "半":
        return 0.5
    digit = int(words[i + 1]) if words[i + 1] in tuple("123456789") else _DIGITS.get(words[i + 1], 0)
    following = words[i + 2] if i + 2 < len(words) else ""
    counts = following in _UNIT_WORDS or following in _COUNTED or following in ("个", "点", "十", "百")
    if not digit or counts or _is_digit(words, i + 2):
        return None
    return digit / 10


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
    if last in ("unit", "tens") and list(words[at : at + 1]) == ["point"]:
        tail, after = _tail_at(words, at + 1)
        if tail:
            return float(f"{int(value)}.{tail}"), after, False
    if at == i + 1 and words[i] == "oh":
        return None
    if list(words[at : at + 3]) == ["and", "a", "half"]:
        return value + 0.5, at + 3, False
    if (
        value == 1
        and at == i + 1
        and (
            i == 0
            or (at >= len(words) and words[i - 1] not in _BEFORE_ONE)
            or words[i - 1] in ("this", "that", "the", "next", "last", "another", "previous")
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
    if len(run) == 1 and run[0] == "百" and list(words[max(i - 1, 0) : i]) in (["之"], ["分"]):
        return 100.0, at, False
    if len(run) == 1 and run[0] in ("百", "千", "万", "亿"):
        return None
    if (
        list(run) == ["一"]
        and following
        and following not in _MEASURED
        and _SET_TO.isdisjoint(words[max(i - 1, 0) : i])
    ):
        return None
    if list(run) == ["两"] and following not in _MEASURED:
        return None
    if len(run) == 1 and (
        following in _COUNTED or (following == "个" and list(words[at + 1 : at + 2]) not in _MEASURES)
    ):
        return None
    if len(run) == 1 and run[0] in _DIGITS and following in _LIKE_TEN and list(words[max(i - 1, 0) : i]) == ["之"]:
        return 10.0 * _DIGITS[run[0]], at + 1, True
    value = _chinese_value(run)
    open_ended = len(run) == 1 or run[-1] == "十"
    if following == "点":
        tail, after = _tail_at(words, at + 1)
        if tail:
            return float(f"{int(value)}.{tail}"), after, False
    tenth = _tenth_after_degree(words, at)
    if tenth is not None:
        return value + tenth, at + 2, False
    return value, at, open_ended


def _chinese_value(run: Sequence[str]) -> float:
    if not any(word in _SCALES for word in run):
        return float("".join(str(_DIGITS[word]) for word in run))
    total, section, digit, scale = 0, 0, 0, 0
    for word in run:
        if word in _DIGITS:
            digit = 10 * digit + _DIGITS[word] if digit else _DIGITS[word]
            continue
        scale = _SCALES[word]
        if scale >= 10_000:
            total = (total + section + digit or 1) * scale
            section = 0
        else:
            section += (digit or (1 if word == "十" else 0)) * scale
        digit = 0
    if digit and scale >= 100 and run[-2] in _SCALES and run[-2] != "十":
        digit *= scale // 10
    return float(total + section + digit)
