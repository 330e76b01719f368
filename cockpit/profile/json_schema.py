"""The JSON Schema of a profile, made from its sections: for editors and for `cockpit profile show --explain`."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

from cockpit.profile.sections import Profile

SCHEMA_FILE = Path(__file__).resolve().parents[2] / "profiles" / "profile.schema.json"


def profile_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a whole profile, after every `extends:` is merged."""
    made = _plain(Profile.model_json_schema()) | {"title": "Cockpit profile"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def file_schema() -> dict[str, Any]:
    """The JSON Schema of one profile file, for editors.

    A file that extends another may leave out any key and drop any with `null`, so nothing is required here; the merged
    profile is held to `profile_schema` by `cockpit profile check`.
    """
    schema = profile_schema()
    for node in (schema, *schema["$defs"].values()):
        node.pop("required", None)
        node["properties"] = {key: _or_null(field) for key, field in node.get("properties", {}).items()}
    for key, field in schema["properties"].items():
        schema["properties"][key] = _entries_or_null(field)
    for section in schema["$defs"].values():
        section["properties"] = {key: _entries_or_null(field) for key, field in section["properties"].items()}
    return schema


_ANNOTATIONS = ("title", "description", "default", "examples", "x-range")


def _or_null(field: dict[str, Any]) -> dict[str, Any]:
    """The same, null allowed; what describes the field stays outside for editors to show."""
    if "anyOf" in field:
        options = field["anyOf"]
        return field if {"type": "null"} in options else field | {"anyOf": [*options, {"type": "null"}]}
    about = {key: field[key] for key in _ANNOTATIONS if key in field}
    rest = {key: value for key, value in field.items() if key not in about}
    return about | {"anyOf": [rest, {"type": "null"}]}


def _entries_or_null(field: dict[str, Any]) -> dict[str, Any]:
    """Entries of a mapping with free names (clusters, tasks) may be dropped too."""
    options = [
        option | {"additionalProperties": _or_null(option["additionalProperties"])}
        if isinstance(option.get("additionalProperties"), dict)
        else option
        for option in field["anyOf"]
    ]
    return field | {"anyOf": options}


def _plain(node: Any) -> Any:
    """Defaults that are quantities come as their fields; a profile writes them as text."""
    if isinstance(node, dict):
        return node["text"] if node.keys() == {"base", "text"} else {key: _plain(value) for key, value in node.items()}
    return [_plain(item) for item in node] if isinstance(node, list) else node


def schema_text() -> str:
    """The schema as `profiles/profile.schema.json` holds it."""
    return json.dumps(file_schema(), indent=2, ensure_ascii=False) + "\n"


def schema_at(path: tuple[str | int, ...]) -> dict[str, Any] | None:
    """The part of the whole profile's schema that describes a key; None for a key that a profile cannot have."""
    whole = profile_schema()
    node: dict[str, Any] = whole
    for key in path:
        node = _step(whole, node, key)
        if not node:
            return None
    return _resolve(whole, node)


def _step(whole: dict[str, Any], node: dict[str, Any], key: str | int) -> dict[str, Any]:
    for option in (node, *node.get("anyOf", [])):
        found = _resolve(whole, option)
        for inner in (found.get("properties", {}).get(key), found.get("additionalProperties"), found.get("items")):
            if isinstance(inner, dict):
                return inner
    return {}


def _resolve(whole: dict[str, Any], node: dict[str, Any]) -> dict[str, Any]:
    """A node with what its `$ref` points to, also where null is the only other choice."""
    options = [option for option in node.get("anyOf", []) if option != {"type": "null"}]
    reference = options[0].get("$ref") if len(options) == 1 else None
    reference = node.get("$ref", reference)
    if reference is None:
        return node
    target: dict[str, Any] = whole["$defs"][reference.rpartition("/")[2]]
    return target | {key: value for key, value in node.items() if key not in ("$ref", "anyOf")}
