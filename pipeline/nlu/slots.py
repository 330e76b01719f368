"""The slots of a clause: how much (numbers, units, words such as half or maximum, set or changed) and where (zone)."""

from __future__ import annotations

import re
from dataclasses import dataclass

from pipeline.nlu.evidence import Evidence, match_names
from pipeline.nlu.numbers import Number

FRACTIONS = {"half": 50.0, "quarter": 25.0, "third": 33.0, "two_thirds": 67.0, "three_quarters": 75.0, "medium": 50.0}
_TO = ("to", "at", "too", "到", "成", "为", "至", "在", "道", "倒")
_BY = ("by", "another", "more", "extra", "再")
_LITTLE = re.compile(r"一点|一些|稍微|稍稍|(?<=[高低大小暖凉热冷轻响亮暗强弱])[点些]")
"""Little, inside a word such as 大一点 that the lexicon takes as a whole."""


@dataclass(frozen=True, slots=True)
class Amount:
    """`value` with its `unit` (None when none was said); `word`: max, min or little, lot. `to`/`by`: what the
    grammar says.
    """

    value: float | None = None
    unit: str | None = None
    word: str | None = None
    to: bool = False
    by: bool = False
    open_ended: bool = False
    unitless_end: bool = False
    """The text ends with the number itself: a unit or more digits may follow."""


def amount_of(evidence: Evidence) -> Amount:
    """The clause's amount; the last number counts where several were said ("no, 22")."""
    words = evidence.words
    unit = _unit_of(evidence)
    names = evidence.names("amount")
    word = next((name for name in ("max", "min", "little", "lot") if name in names), None)
    if word is None and _LITTLE.search(evidence.text):
        word = "little"
    by_words = any(w in _BY for w in words) or "by" in words
    if evidence.numbers:
        number = evidence.numbers[-1]
        value = number.value
        if (unit == "percent" and "成" in words[number.end : number.end + 1]) or (
            unit == "percent" and _is_chinese_tenths(evidence, number)
        ):
            value *= 10
        return Amount(
            value=value,
            unit=unit,
            word=word,
            to=_to_before(evidence, number),
            by=by_words and not _to_before(evidence, number),
            open_ended=number.open_ended,
            unitless_end=number.end == len(words),
        )
    fraction = next((FRACTIONS[name] for name in names if name in FRACTIONS), None)
    if fraction is not None and word not in ("max", "min"):
        return Amount(value=fraction, unit="percent", word=None, to=True)
    return Amount(unit=unit, word=word, by=by_words)


def _unit_of(evidence: Evidence) -> str | None:
    """The unit that stands at the last number, else the first one said."""
    if evidence.numbers and not evidence.has("unit.fahrenheit", "unit.kelvin"):
        number = evidence.numbers[-1]
        if "度" in evidence.words[number.start : number.end]:
            return "celsius"
        for match in evidence.of("unit"):
            if match.start == number.end or (match.end == number.start and "unit.percent" in match.tags):
                return match_names(match, "unit")[0]
    named = evidence.names("unit")
    return next((name for name in named if name in ("fahrenheit", "kelvin")), next(iter(named), None))


def _is_chinese_tenths(evidence: Evidence, number: Number) -> bool:
    return any(match.start == number.end and evidence.words[match.start] == "成" for match in evidence.of("unit"))


def _to_before(evidence: Evidence, number: Number) -> bool:
    """ "to 19", "down to nineteen", "调到二十二", "百分之六十" after 到; a verb that ends in 到/为/成 counts."""
    i = number.start - 1
    words = evidence.words
    while i >= 0 and (
        words[i] in ("about", "around", "百", "分", "之", "a", "level", "第") or _covers_unit(evidence, i)
    ):
        i -= 1
    return i >= 0 and words[i] in _TO


def _covers_unit(evidence: Evidence, i: int) -> bool:
    return any(match.start <= i < match.end and match_names(match, "unit") for match in evidence.matches)


# --- where ---------------------------------------------------------------------------------------------------------
def _driver_meant(evidence: Evidence) -> bool:
    """False for "my wife would like it on the passenger side": "my" alone is no place beside a named one."""
    said = [
        " ".join(evidence.words[match.start : match.end])
        for match in evidence.of("zone")
        if "zone.driver" in match.tags
    ]
    return any(phrase not in ("my", "for me") for phrase in said) or "my and" in evidence.text.lower()


def seat_zone(evidence: Evidence, default: str) -> str:
    """One of the tools' zones; `default` when none was said. Left is the driver's side."""
    zones = set(evidence.names("zone"))
    if len(zones) > 1 and not _driver_meant(evidence):
        zones.discard("driver")
    if not zones:
        return default
    if "rear_left" in zones and "rear_right" in zones:
        return "rear"
    for name in ("rear_left", "rear_right"):
        if name in zones:
            return name
    if "front_left" in zones and "front_right" in zones:
        return "front"
    if "front_left" in zones:
        return "driver"
    if "front_right" in zones:
        return "passenger"
    left, right = bool(zones & {"left", "driver"}), bool(zones & {"right", "passenger"})
    if "rear" in zones:
        if left == right:
            return "all" if "front" in zones else "rear"
        return "rear_left" if left else "rear_right"
    if left and right:
        return "front"
    if left:
        return "driver"
    if right:
        return "passenger"
    if "front" in zones:
        return "front"
    return "all"
