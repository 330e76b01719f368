"""The JSON Schema: current, made from the sections, and taking every file that `profile check` takes."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest
import rapidjson

from cockpit.profile.json_schema import SCHEMA_FILE, file_schema, profile_schema, schema_at, schema_text
from cockpit.profile.load import PROFILES, load_profile
from cockpit.profile.yaml import read_yaml
from models.errors import ConfigError


def test_the_committed_schema_is_current() -> None:
    remedy = "from cockpit.profile.json_schema import *; SCHEMA_FILE.write_text(schema_text())"
    assert SCHEMA_FILE.read_text(encoding="utf-8") == schema_text(), f'run: python -c "{remedy}"'


def test_every_profile_names_the_schema_for_editors() -> None:
    profiles = sorted(PROFILES.glob("*.yaml"))
    assert len(profiles) >= 3
    for path in profiles:
        first = path.read_text(encoding="utf-8").splitlines()[0]
        assert first == "# yaml-language-server: $schema=profile.schema.json", path


@pytest.mark.parametrize("schema", [profile_schema(), file_schema()], ids=["whole", "file"])
def test_every_key_has_a_description(schema: dict[str, Any]) -> None:
    for name, section in schema["$defs"].items():
        for key, field in section["properties"].items():
            assert field.get("description") or "$ref" in json.dumps(field), f"{name}.{key}"
    assert all(section.get("description") for section in schema["$defs"].values())


def test_ranges_of_orchestration_and_tasks_are_in_the_schema() -> None:
    for key, low, high in (
        ("tasks.any.priority", 0, 10),
        ("tasks.any.queue_limit", 1, 4096),
        ("orchestration.eviction_policy.lru_k", 1, 16),
        ("orchestration.global_limits.max_gpu_memory_percent", 1, 100),
    ):
        found = schema_at(tuple(key.split(".")))
        assert found is not None, key
        assert (found["minimum"], found["maximum"]) == (low, high), key
    chunk = schema_at(("orchestration", "policy", "prefill_chunk_tokens"))
    assert chunk is not None
    one, several = chunk["anyOf"]
    assert (one["minimum"], one["maximum"]) == (16, 8192)
    assert several["items"] == one
    assert profile_schema()["$defs"]["TaskSection"]["required"] == [
        "priority", "latency_sla", "memory_budget_mb", "affinity_mask",
    ]  # fmt: skip


# --- what an editor says of a file ---------------------------------------------------------------------------------
def inlined(node: Any, definitions: dict[str, Any]) -> Any:
    """The schema without `$ref`, which this validator follows in draft 4's form only."""
    if isinstance(node, dict):
        if "$ref" in node:
            node = definitions[node["$ref"].rpartition("/")[2]] | node
        return {key: inlined(value, definitions) for key, value in node.items() if not key.startswith("$")}
    return [inlined(item, definitions) for item in node] if isinstance(node, list) else node


def accepted(text: str, folder: Path) -> bool:
    """Whether an editor that follows the committed schema takes the file."""
    path = folder / "p.yaml"
    path.write_text(text, encoding="utf-8")
    validate = rapidjson.Validator(json.dumps(inlined(file_schema(), file_schema()["$defs"])))
    try:
        validate(json.dumps(read_yaml(path).data))
    except rapidjson.ValidationError:
        return False
    return True


GOOD_FILES = [
    "extends: cpu\norchestration: {global_limits: {max_gpu_memory_percent: 80}}\n",
    "extends: cpu\ntasks: {dialogue_task: {latency_sla: 500ms}}\n",
    "extends: cpu\norchestration: {clusters: {cores_b: null}}\n"
    "tasks: {navigation_task: null, speech_task: null, background_task: null, "
    "dialogue_task: {affinity_mask: cores_a}}\n"
    "asr: null\nllm: {threads: null}\ntts: {en_voice: null}\n",
    "extends: cpu\norchestration: {eviction_policy: lru_k=2, policy: {yielding: [true, false], draft_tokens: 0}}\n",
    "extends: null\naudio: {barge_in: false, frame: 20 ms}\n",
]


@pytest.mark.parametrize("text", [*GOOD_FILES, *(path.read_text() for path in PROFILES.glob("*.yaml"))])
def test_what_profile_check_takes_an_editor_takes(text: str, tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text(text, encoding="utf-8")
    load_profile(str(path))
    assert accepted(text, tmp_path)


@pytest.mark.parametrize(
    "text",
    [
        "extends: cpu\ntasks: {dialogue_task: {priority: 11}}\n",
        "extends: cpu\ntasks: {dialogue_task: {latency_sla: 500}}\n",
        "extends: cpu\norchestration: {eviction_policy: lru}\n",
        "extends: cpu\norchestration: {policy: {draft_tokens: [17]}}\n",
        "asr: {modle: x}\n",
        "audio: {pace: slow}\n",
    ],
)
def test_what_profile_check_refuses_an_editor_refuses(text: str, tmp_path: Path) -> None:
    assert not accepted(text, tmp_path)
    with pytest.raises(ConfigError):
        load_profile(str(tmp_path / "p.yaml"))


def test_the_merged_profile_still_needs_every_part(tmp_path: Path) -> None:
    path = tmp_path / "p.yaml"
    path.write_text("tasks: {dialogue_task: {priority: 5}}\norchestration: {clusters: {a: 1, system: 0}}\n")
    with pytest.raises(ConfigError) as caught:
        load_profile(str(path))
    missing = {line.split(": ")[1] for line in str(caught.value).splitlines() if line.endswith("is required")}
    assert missing == {
        "orchestration.global_limits", "orchestration.eviction_policy", "tasks.dialogue_task.latency_sla",
        "tasks.dialogue_task.memory_budget_mb", "tasks.dialogue_task.affinity_mask",
    }  # fmt: skip
