"""Values with their unit, as a profile writes them: `150ms`, `512MiB`, `16kHz`, `-30dB`.

Each is a frozen value that is read in one place and asked for the unit its user needs; a bare number is refused.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import total_ordering
from typing import Any, ClassVar, Self

from pydantic import GetCoreSchemaHandler, GetJsonSchemaHandler
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

_NUMBER = r"[+-]?[0-9]+(?:\.[0-9]+)?"


@total_ordering
@dataclass(frozen=True, slots=True)
class Quantity:
    """A number with a unit. `base`: the value in the smallest unit of the kind; `text`: as it was written."""

    base: float
    text: str

    KIND: ClassVar[str] = "quantity"
    UNITS: ClassVar[dict[str, float]] = {}
    EXAMPLE: ClassVar[str] = ""

    @classmethod
    def parse(cls, text: str) -> Self:
        """Read `text`. Raises ValueError that names the units and an example."""
        units = "|".join(sorted(map(re.escape, cls.UNITS), key=len, reverse=True))
        match = re.fullmatch(rf"({_NUMBER})\s?({units})", text.strip())
        if match is None:
            known = ", ".join(cls.UNITS)
            raise ValueError(f"{text!r} is not a {cls.KIND}; write a number and a unit ({known}), e.g. {cls.EXAMPLE}")
        return cls(float(match[1]) * cls.UNITS[match[2]], text.strip())

    def __str__(self) -> str:
        return self.text

    def __eq__(self, other: object) -> bool:
        return isinstance(other, type(self)) and self.base == other.base

    def __hash__(self) -> int:
        return hash((self.KIND, self.base))

    def __lt__(self, other: Quantity) -> bool:
        return self.base < other.base

    @classmethod
    def _validate(cls, value: Any) -> Self:
        if isinstance(value, cls):
            return value
        if not isinstance(value, str):
            message = "{value} has no unit; write it as a {kind}, e.g. {example}"
            raise PydanticCustomError(
                "no_unit", message, {"value": repr(value), "kind": cls.KIND, "example": cls.EXAMPLE}
            )
        try:
            return cls.parse(value)
        except ValueError as error:
            raise PydanticCustomError("bad_unit", "{reason}", {"reason": str(error)}) from error

    @classmethod
    def __get_pydantic_core_schema__(cls, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_plain_validator_function(
            cls._validate, serialization=core_schema.plain_serializer_function_ser_schema(str)
        )

    @classmethod
    def __get_pydantic_json_schema__(cls, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        units = "|".join(re.escape(unit) for unit in cls.UNITS)
        return {"type": "string", "pattern": rf"^{_NUMBER}\s?({units})$", "examples": [cls.EXAMPLE]}


class Duration(Quantity):
    """A length of time; base unit ns."""

    __slots__ = ()
    KIND = "duration"
    UNITS: ClassVar[dict[str, float]] = {"us": 1e3, "ms": 1e6, "s": 1e9, "min": 60e9}
    EXAMPLE = "150ms"

    @property
    def ns(self) -> int:
        """Nanoseconds."""
        return round(self.base)

    @property
    def ms(self) -> float:
        """Milliseconds."""
        return self.base / 1e6

    @property
    def seconds(self) -> float:
        """Seconds."""
        return self.base / 1e9

    def samples(self, rate_hz: int) -> int:
        """Samples at `rate_hz`, rounded."""
        return round(self.base * rate_hz / 1e9)


class Size(Quantity):
    """An amount of memory; base unit bytes."""

    __slots__ = ()
    KIND = "size"
    UNITS: ClassVar[dict[str, float]] = {
        "B": 1, "KiB": 2**10, "MiB": 2**20, "GiB": 2**30, "kB": 1e3, "MB": 1e6, "GB": 1e9,
    }  # fmt: skip
    EXAMPLE = "512MiB"

    @property
    def bytes(self) -> int:
        """Bytes."""
        return round(self.base)


class Level(Quantity):
    """A level or gain in decibels."""

    __slots__ = ()
    KIND = "level"
    UNITS: ClassVar[dict[str, float]] = {"dB": 1.0}
    EXAMPLE = "-30dB"

    @property
    def db(self) -> float:
        """Decibels."""
        return self.base

    @property
    def amplitude(self) -> float:
        """The factor on the amplitude."""
        return float(10.0 ** (self.base / 20.0))


@dataclass(frozen=True, slots=True)
class Within:
    """Annotation: the quantity lies between these two, both allowed."""

    low: Quantity
    high: Quantity

    @property
    def text(self) -> str:
        """The range as a person reads it."""
        return f"{self.low} to {self.high}"

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_after_validator_function(self._check, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {**handler(schema), "x-range": self.text}

    def _check(self, value: Quantity) -> Quantity:
        if not self.low <= value <= self.high:
            raise PydanticCustomError(
                "out_of_range", "{value} is outside {range}", {"value": str(value), "range": self.text}
            )
        return value


def between(kind: type[Quantity], low: str, high: str) -> Within:
    """`between(Duration, "10ms", "2s")`, to annotate a field."""
    return Within(kind.parse(low), kind.parse(high))
