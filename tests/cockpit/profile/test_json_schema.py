"""The JSON Schema: current, and saying the same as the code that checks."""

from __future__ import annotations

from typing import Any

import pytest

from cockpit.arbiter.config import parse
from cockpit.profile.json_schema import ORCHESTRATION, SCHEMA_FILE, TASK, profile_schema, schema_text
from cockpit.profile.load import PROFILES

GOOD: dict[str, Any] = {
    "orchestration": {
        "global_limits": {},
        "eviction_policy": {"type": "hybrid"},
        "clusters": {"a": 1, "system": 1},
        "policy": {},
    },
    "tasks": {"t": {"priority": 5, "latency_sla": "1s", "memory_budget_mb": 1, "affinity_mask": "a"}},
}


def test_the_committed_schema_is_current() -> None:
    remedy = "from cockpit.profile.json_schema import *; SCHEMA_FILE.write_text(schema_text())"
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), f'run: python -c "{remedy}"'


def test_every_profile_names_the_schema_for_editors() -> None:
    profiles = sorted(PROFILES.glob("*.yaml"))
    assert len(profiles) >= 3
    for path in profiles:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=profile.schema.json", path


def test_every_key_has_a_description() -> None:
    schema = profile_schema()
    for name, section in schema["$defs"].items():
        for key, field in section["properties"].items():
            assert field.get("description"), f"{name}.{key}"
    assert all(field.get("description") or "$ref" in field for field in schema["properties"].values())


def with_value(path: tuple[str, ...], value: object) -> dict[str, Any]:
    """GOOD with one value put in."""
    import copy

    made = copy.deepcopy(GOOD)
    node = made
    for key in path[:-1]:
        node = node[key]
    node[path[-1]] = value
    return made


def numbers() -> list[tuple[tuple[str, ...], float, float]]:
    """(path, lowest, highest) of every number in the hand-written part of the schema."""
    places: list[tuple[tuple[str, ...], dict[str, Any]]] = [
        (("orchestration", "global_limits"), ORCHESTRATION["properties"]["global_limits"]),
        (("orchestration", "eviction_policy"), ORCHESTRATION["properties"]["eviction_policy"]["anyOf"][1]),
        (("orchestration", "policy"), ORCHESTRATION["properties"]["policy"]),
        (("tasks", "t"), TASK),
    ]
    found: list[tuple[tuple[str, ...], float, float]] = []
    for path, section in places:
        for key, field in section["properties"].items():
            one = field.get("anyOf", [field])[0]
            if "maximum" in one:
                found.append(((*path, key), one["minimum"], one["maximum"]))
    return found


@pytest.mark.parametrize(("path", "low", "high"), numbers(), ids=lambda value: str(value)[:40])
def test_ranges_are_those_that_the_arbiter_enforces(path: tuple[str, ...], low: float, high: float) -> None:
    for value in (low, high):
        assert [fault for fault in parse(with_value(path, value)).errors if fault.path[: len(path)] == path] == []
    step = 1 if isinstance(low, int) else 0.001
    for value in (low - step, high + step):
        assert [fault for fault in parse(with_value(path, value)).errors if fault.path[: len(path)] == path], value


def test_the_same_keys_are_known() -> None:
    sections = {
        ("orchestration",): ORCHESTRATION,
        ("orchestration", "global_limits"): ORCHESTRATION["properties"]["global_limits"],
        ("orchestration", "eviction_policy"): ORCHESTRATION["properties"]["eviction_policy"]["anyOf"][1],
        ("orchestration", "policy"): ORCHESTRATION["properties"]["policy"],
        ("tasks", "t"): TASK,
    }
    for path, section in sections.items():
        (fault,) = parse(with_value((*path, "zzzz"), 1)).errors
        known = {name.strip(" '\"") for name in fault.message.partition("known keys: ")[2].split(",")}
        assert known == set(section["properties"]), path
