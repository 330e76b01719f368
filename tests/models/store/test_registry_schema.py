"""The published schema of a registry is that of its classes, and the registry that ships keeps to it."""

from __future__ import annotations

import json
from typing import Any

import pytest
import rapidjson

from models.errors import ConfigError
from models.store.registry import DEFAULT_REGISTRY, load_registry
from models.store.registry_schema import SCHEMA_FILE, registry_schema, schema_text


def test_the_published_schema_is_that_of_this_version() -> None:
    remedy = "from models.store.registry_schema import *; SCHEMA_FILE.write_text(schema_text())"
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), f'run: python -c "{remedy}"'


def test_the_registry_that_ships_names_it() -> None:
    assert load_registry().json_schema == f"./{SCHEMA_FILE.name}"
    assert (DEFAULT_REGISTRY.parent / SCHEMA_FILE.name).is_file()


@pytest.mark.parametrize(
    ("key", "value"),
    [("kind", "radio"), ("devices", []), ("known_answers", [{"ask": "x"}]), ("licence", 3), ("colour", "red")],
)
def test_the_schema_refuses_what_the_classes_refuse(key: str, value: Any, tmp_path: Any) -> None:
    said = json.loads(DEFAULT_REGISTRY.read_text(encoding="utf-8"))
    said["models"] = said["models"][:1]
    validator = rapidjson.Validator(json.dumps(_as_rapidjson_reads(registry_schema())))
    validator(json.dumps(said))
    said["models"][0][key] = value
    with pytest.raises(rapidjson.ValidationError):
        validator(json.dumps(said))
    file = tmp_path / "registry.json"
    file.write_text(json.dumps(said))
    with pytest.raises(ConfigError, match=key):
        load_registry(file)


def _as_rapidjson_reads(schema: Any) -> Any:
    """RapidJSON knows neither `$defs` nor `discriminator`; everything else of the schema it reads."""
    text = json.dumps(schema).replace("#/$defs/", "#/definitions/").replace('"$defs"', '"definitions"')
    return json.loads(text)
