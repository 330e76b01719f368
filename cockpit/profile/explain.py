"""A key or a section of a profile, explained: value, who set it, default, range and what it does."""

from __future__ import annotations

import difflib
import re
from dataclasses import dataclass
from typing import Any

from cockpit.profile.base import dotted
from cockpit.profile.json_schema import profile_schema, schema_at
from cockpit.profile.language_models import DialogueLlmSection
from cockpit.profile.load import LoadedProfile
from cockpit.profile.yaml import KeyPath
from models.errors import InputError


@dataclass(frozen=True, slots=True)
class Explanation:
    """`origin`: file:line:column, or "default". `allowed`: range or choices in words; empty when anything goes.

    keys: of a section, its own keys explained; empty for a single value.
    """

    key: str
    value: Any
    origin: str
    default: Any
    allowed: str
    effect: str
    keys: tuple[Explanation, ...] = ()


def explain(loaded: LoadedProfile, key: str) -> Explanation:
    """Explain `key` (`endpoint.end_silence`). Raises InputError for a key that no profile has."""
    path = _by_role(parse_key(key))
    schema = schema_at(path)
    if schema is None:
        near = difflib.get_close_matches(key, _known_keys(), n=1, cutoff=0.4)
        raise InputError(f"no profile key {key!r}" + (f"; did you mean {near[0]}?" if near else ""))
    return _explained(loaded, path, schema)


def _explained(loaded: LoadedProfile, path: KeyPath, schema: dict[str, Any]) -> Explanation:
    place = loaded.places.get(path)
    value = value_at(loaded, path)
    inner = [(*path, key) for key in value] if isinstance(value, dict) else []
    return Explanation(
        key=dotted(path),
        value=value,
        origin=str(place) if place else "default",
        default=schema.get("default"),
        allowed=_allowed(schema),
        effect=str(schema.get("description", "")).replace("\n", " "),
        keys=tuple(_explained(loaded, key, schema_at(key) or {}) for key in inner),
    )


def parse_key(key: str) -> KeyPath:
    """`asr.languages[0]` -> ("asr", "languages", 0)."""
    return tuple(int(part) if part.isdigit() else part for part in re.findall(r"[^.\[\]]+", key))


def _by_role(path: KeyPath) -> KeyPath:
    """`llm.model`, as it is written without roles, is the dialogue's."""
    older = path[:1] == ("llm",) and len(path) > 1 and path[1] in DialogueLlmSection.model_fields
    return ("llm", "dialogue", *path[1:]) if older else path


def value_at(loaded: LoadedProfile, path: KeyPath) -> Any:
    """The effective value at `path`, JSON-able; None where nothing is set."""
    value: Any = loaded.profile.model_dump(mode="json")
    for key in path:
        try:
            value = value[key]
        except (KeyError, IndexError, TypeError):
            return None
    return value


def _known_keys() -> list[str]:
    keys = []
    for section in profile_schema()["properties"]:
        keys.append(section)
        keys += [f"{section}.{key}" for key in (schema_at((section,)) or {}).get("properties", {})]
    return keys


def _allowed(schema: dict[str, Any]) -> str:
    options = [_allowed(option) or option.get("type", "") for option in schema.get("anyOf", [])]
    if options:
        return " or ".join(dict.fromkeys(option for option in options if option))
    if "x-range" in schema:
        return str(schema["x-range"])
    if "enum" in schema:
        return ", ".join(map(str, schema["enum"]))
    if "minimum" in schema or "maximum" in schema:
        return f"{schema.get('minimum', '')} to {schema.get('maximum', '')}"
    if "exclusiveMinimum" in schema:
        return f"between {schema['exclusiveMinimum']} and {schema['exclusiveMaximum']}, neither allowed"
    if schema.get("type") == "boolean":
        return "true, false"
    if schema.get("type") == "array":
        inner = _allowed(schema.get("items", {}))
        return f"list of {inner}" if inner else "list"
    return f"such as {schema['examples'][0]}" if "examples" in schema else ""
