"""Typed access to a mapping that notes every fault, with its key path, and goes on."""

from __future__ import annotations

import re
from collections.abc import Mapping
from dataclasses import dataclass
from difflib import get_close_matches
from typing import Any

KeyPath = tuple[str | int, ...]

_DURATION = re.compile(r"(\d+(?:\.\d+)?)\s*(us|ms|s|min)")
_DURATION_NS = {"us": 1_000, "ms": 1_000_000, "s": 1_000_000_000, "min": 60_000_000_000}


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong in the mapping handed in. `path`: keys from its root to the value."""

    path: KeyPath
    message: str


def duration_ns(text: str) -> int:
    """`150ms` -> nanoseconds; units us, ms, s, min. Raises ValueError naming the form wanted."""
    found = _DURATION.fullmatch(text.strip())
    if not found:
        raise ValueError(f"{text!r} is not a duration: write a number and a unit (us, ms, s, min), such as 150ms")
    return round(float(found[1]) * _DURATION_NS[found[2]])


class Reader:
    """Values by key; a wrong one is noted in `errors` and its default comes back."""

    def __init__(self) -> None:
        self.errors: list[Fault] = []
        self.warnings: list[Fault] = []

    def fault(self, path: KeyPath, message: str) -> None:
        self.errors.append(Fault(path, message))

    def section(self, value: Any, path: KeyPath) -> Mapping[str, Any]:
        if value is None:
            return {}
        if isinstance(value, Mapping):
            return value
        self.fault(path, f"must be a mapping, not {type(value).__name__}")
        return {}

    def unknown_keys(self, section: Mapping[str, Any], path: KeyPath, known: tuple[str, ...]) -> None:
        for key in section:
            if key not in known:
                close = get_close_matches(str(key), known, n=1)
                hint = f"; did you mean {close[0]!r}?" if close else f"; known keys: {', '.join(known)}"
                self.fault((*path, key), f"unknown key {key!r}{hint}")

    def number(
        self, section: Mapping[str, Any], key: str, path: KeyPath, default: float, within: tuple[float, float]
    ) -> float:
        low, high = within
        value = section.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int | float):
            self.fault((*path, key), f"must be a number, not {value!r}")
            return default
        if not low <= value <= high:
            self.fault((*path, key), f"{value} is outside {low:g} to {high:g}")
            return default
        return float(value)

    def integer(
        self, section: Mapping[str, Any], key: str, path: KeyPath, default: int, within: tuple[int, int]
    ) -> int:
        low, high = within
        value = section.get(key, default)
        if isinstance(value, bool) or not isinstance(value, int):
            self.fault((*path, key), f"must be a whole number, not {value!r}")
            return default
        if not low <= value <= high:
            self.fault((*path, key), f"{value} is outside {low} to {high}")
            return default
        return value

    def duration(self, section: Mapping[str, Any], key: str, path: KeyPath, default_ns: int) -> int:
        value = section.get(key)
        if value is None:
            return default_ns
        try:
            found = duration_ns(value) if isinstance(value, str) else 0
            if found <= 0:
                raise ValueError(f"{value!r} is not a duration above zero: write it with its unit, such as 150ms")
        except ValueError as error:
            self.fault((*path, key), str(error))
            return default_ns
        return found

    def choices(
        self,
        section: Mapping[str, Any],
        key: str,
        path: KeyPath,
        default: tuple[float, ...],
        within: tuple[float, float],
    ) -> tuple[float, ...]:
        low, high = within
        value = section.get(key, default)
        values = tuple(value) if isinstance(value, list | tuple) else (value,)
        if not values:
            self.fault((*path, key), "must hold at least one value")
            return default
        for index, item in enumerate(values):
            if isinstance(item, bool) or not isinstance(item, int | float) or not low <= item <= high:
                self.fault((*path, key, index), f"{item!r} is outside {low:g} to {high:g}")
                return default
        return tuple(dict.fromkeys(values))
