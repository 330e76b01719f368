"""What the sections of a profile have in common: their base class, common field types, and how they are validated.

`validated` reports every fault at once as a `Violation` with its key path; `cockpit.profile.load` turns key paths into
file:line:column.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass
from typing import Annotated, Any, TypeVar, get_args

from pydantic import BaseModel, ConfigDict, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationError
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, core_schema

from cockpit.profile.yaml import KeyPath

Flag = Annotated[bool, Field(strict=True)]
Threads = Annotated[int, Field(strict=True, ge=1, le=64)]


class Section(BaseModel):
    """Base of every section: frozen, unknown keys refused."""

    model_config = ConfigDict(frozen=True, extra="forbid", use_attribute_docstrings=True, allow_inf_nan=False)


M = TypeVar("M", bound=Section)


@dataclass(frozen=True, slots=True)
class OneOrMore:
    """Annotation of a tuple field: one value may stand without its list; a value that is repeated counts once."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        listed = core_schema.no_info_before_validator_function(_as_list, handler(source))
        return core_schema.no_info_after_validator_function(_each_once, listed)

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        array = handler(schema)
        return {"anyOf": [array["items"], array]}


def _as_list(value: Any) -> Any:
    return value if isinstance(value, list | tuple) else [value]


def _each_once(values: tuple[Any, ...]) -> tuple[Any, ...]:
    return tuple(dict.fromkeys(values))


@dataclass(frozen=True, slots=True)
class Violation:
    """One thing wrong in a mapping. `path`: keys from its root to the value; `related`: others that could mend it.

    A rule between several values may be broken by any of them: it is reported at the one that the user wrote.
    """

    path: KeyPath
    message: str
    related: tuple[KeyPath, ...] = ()


def validated(model: type[M], data: Mapping[str, Any], context: object = None) -> tuple[M | None, list[Violation]]:
    """(The section, or None when something is wrong; everything that is wrong)."""
    try:
        return model.model_validate(data, context=context), []
    except ValidationError as error:
        return None, [_violation(model, data, item) for item in error.errors(include_url=False)]


_OWN_WORDS = {"out_of_range", "no_unit", "bad_unit", "value_error", "unknown_cluster"}
"""Kinds of fault whose message holds the value already."""


def _violation(model: type[BaseModel], data: Mapping[str, Any], item: Any) -> Violation:
    path = _written(tuple(item["loc"]), data)
    message = item["msg"].removeprefix("Value error, ")
    related: tuple[KeyPath, ...] = ()
    if item["type"] == "extra_forbidden":
        known = list(_model_at(model, path[:-1]).model_fields)
        message = f"unknown key {path[-1]!r}; {suggestion(str(path[-1]), known, 'known keys')}"
    elif item["type"] == "missing":
        message = f"{path[-1]} is required"
    elif item["type"] == "literal_error":
        wanted = str(item.get("ctx", {}).get("expected", ""))
        near = difflib.get_close_matches(str(item["input"]), wanted.replace("'", "").replace(" or ", ", ").split(", "))
        message = f"{item['input']!r} is not one of {wanted}" + (f"; did you mean {near[0]}?" if near else "")
    elif item["type"] in ("bool_type", "bool_parsing"):
        message = f"write true or false, not {item['input']!r}"
    elif item["type"] == "unknown_cluster":
        related = (("orchestration", "clusters", item["ctx"]["name"]), ("orchestration", "clusters"))
    elif item["type"] not in _OWN_WORDS and not isinstance(item["input"], dict):
        message = f"{message.replace('Input should', 'must')}, not {item['input']!r}"
    return Violation(path, message, related)


def _written(loc: KeyPath, data: Any) -> KeyPath:
    """The key path without the index that OneOrMore gave a value that stands alone."""
    for depth, key in enumerate(loc):
        if isinstance(key, int) and not isinstance(data, list | tuple):
            return loc[:depth]
        try:
            data = data[key]
        except (KeyError, IndexError, TypeError):
            return loc
    return loc


def _model_at(model: type[BaseModel], path: KeyPath) -> type[BaseModel]:
    """The section at `path`; a key that is no field is the name of an entry, such as a task's."""
    for key in path:
        if str(key) in model.model_fields:
            model = next(_sections_in(model.model_fields[str(key)].annotation), model)
    return model


def _sections_in(annotation: Any) -> Any:
    if isinstance(annotation, type) and issubclass(annotation, BaseModel):
        yield annotation
    for part in get_args(annotation):
        yield from _sections_in(part)


def suggestion(name: str, known: list[str], title: str = "known", cutoff: float = 0.5) -> str:
    """`did you mean X?` when one is near, else all that are known."""
    near = difflib.get_close_matches(name, known, n=1, cutoff=cutoff)
    return f"did you mean {near[0]}?" if near else f"{title}: {', '.join(known) or 'none'}"


def dotted(path: KeyPath) -> str:
    """`("asr", "languages", 0)` -> `asr.languages[0]`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".") or "profile"
