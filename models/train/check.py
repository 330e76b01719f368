"""Holds every line against the tools' schemas and the numbers as the product reads them."""

from __future__ import annotations

from typing import Any

from pipeline.nlu.numbers import find_numbers
from pipeline.nlu.parser.labels import ACT, REASONS
from pipeline.nlu.phonetics import tokens_of
from pipeline.vehicle.schemas import fault_of

_REASONS = frozenset(REASONS) - {ACT}
LEVEL_COUNTS = (5, 3, 10)
"""How many levels things have: a level counts as its share of a hundred."""


class LineError(ValueError):
    """A line that the generator must not write."""


class NumberMisread(LineError):
    """A number that runs into the words beside it, as 50 does in "亮度50点一首" (50.1), or is none to the product."""


def check(line: dict[str, Any]) -> None:
    """LineError where a call is invalid, a span is not the words it stands for, or a number is not the value
    (NumberMisread).
    """
    text = line["text"]
    if not line["calls"] and line["reason"] not in _REASONS:
        raise LineError(f"nothing to do and no reason: {line}")
    if line["reason"] is not None and line["reason"] not in _REASONS:
        raise LineError(f"unknown reason: {line}")
    for one in line["calls"]:
        fault = fault_of(one["tool"], one["args"])
        if fault is not None and not (line["kind"] == "range" and fault == "out_of_range"):
            raise LineError(f"{fault}: {line}")
        for name in ("place", "query"):
            if name in one["args"] and one["args"][name] != _slice(text, one["spans"].get(name)):
                raise LineError(f"{name} is not its words: {line}")
        if "value" in one["spans"]:
            _check_value(text, one, line)
    if line["last"] is not None and fault_of(line["last"]["tool"], line["last"]["args"]) is not None:
        raise LineError(f"the last call is invalid: {line}")


def _slice(text: str, span: list[int] | None) -> str | None:
    return None if span is None else text[span[0] : span[1]]


def _check_value(text: str, one: dict[str, Any], line: dict[str, Any]) -> None:
    low, high = one["spans"]["value"]
    tokens = tokens_of(text)
    inside = [
        number
        for number in find_numbers([token.text for token in tokens])
        if tokens[number.start].start < high and low < tokens[number.end - 1].end
    ]
    wanted = abs(one["args"]["value"])
    if len(inside) != 1:
        raise NumberMisread(f"{len(inside)} numbers in {text[low:high]!r}: {line}")
    number = inside[0]
    said = abs(number.value)
    as_level = {float(round(said * 100 / count)) for count in LEVEL_COUNTS}
    exact = tokens[number.start].start == low and tokens[number.end - 1].end == high
    if not exact or wanted not in {said, *as_level}:
        raise NumberMisread(f"{text[low:high]!r} is read as {said}, not {wanted}: {line}")
