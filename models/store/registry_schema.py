"""The JSON Schema of a model registry, made from its classes: for editors, and for who writes a registry by hand."""

from __future__ import annotations

import json
from typing import Any

from models.store.registry import DEFAULT_REGISTRY, Registry

SCHEMA_FILE = DEFAULT_REGISTRY.with_name("model_registry.schema.json")


def registry_schema() -> dict[str, Any]:
    """JSON Schema 2020-12. What no schema can say (names that are listed twice, `sources_of` that leads nowhere) is
    checked by `load_registry`.
    """
    made = Registry.model_json_schema() | {"title": "Cockpit model registry"}
    return {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}


def schema_text() -> str:
    """The contents of SCHEMA_FILE."""
    return json.dumps(registry_schema(), indent=1, ensure_ascii=False) + "\n"
