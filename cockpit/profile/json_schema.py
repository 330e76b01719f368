"""The JSON Schema of a profile, for editors and for `cockpit profile show --explain`.

The sections come from `cockpit.profile.sections`; `orchestration` and `tasks` are described here, with the ranges that
`cockpit.arbiter.config` enforces (a test compares them).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Any

from cockpit.profile.sections import Profile

SCHEMA_FILE = Path(__file__).resolve().parents[2] / "profiles" / "profile.schema.json"

_DURATION = {"type": "string", "pattern": r"^\d+(?:\.\d+)?\s*(us|ms|s|min)$", "examples": ["150ms"]}


def _object(description: str, properties: dict[str, Any], required: tuple[str, ...] = ()) -> dict[str, Any]:
    made = {"type": "object", "description": description, "additionalProperties": False, "properties": properties}
    return made | ({"required": list(required)} if required else {})


def _number(description: str, low: float, high: float, default: float | None = None) -> dict[str, Any]:
    made = {"type": "number", "minimum": low, "maximum": high, "description": description}
    return made | ({} if default is None else {"default": default})


def _integer(description: str, low: int, high: int, default: int | None = None) -> dict[str, Any]:
    return _number(description, low, high, default) | {"type": "integer"}


def _choices(description: str, item: dict[str, Any], default: Sequence[float]) -> dict[str, Any]:
    return {"description": description, "default": list(default), "anyOf": [item, {"type": "array", "items": item}]}


def _item(kind: str, low: float, high: float) -> dict[str, Any]:
    return {"type": kind, "minimum": low, "maximum": high}


ORCHESTRATION: dict[str, Any] = _object(
    "Red lines, clusters, eviction and the bounds of the online policy.",
    {
        "global_limits": _object(
            "Limits no task may break.",
            {
                "max_gpu_memory_percent": _number(
                    "Share of device memory all tasks together may plan for.", 1, 100, 85
                ),
                "min_token_per_second": _number(
                    "A promise: five seconds below it pause low-priority tasks. 0: no promise.", 0, 1e6, 0
                ),
            },
        ),
        "eviction_policy": {
            "description": 'Who gives up KV memory: "lru_k=3", or a hybrid that also counts age once memory is short.',
            "anyOf": [
                {"type": "string", "pattern": r"^\s*lru_k\s*=\s*\d+\s*$"},
                _object(
                    "LRU-K, with age once memory is short.",
                    {
                        "type": {"enum": ["lru_k", "hybrid"], "default": "hybrid", "description": "The rule."},
                        "lru_k": _integer("Rank by the K-th last use.", 1, 16, 3),
                        "age_threshold_seconds": _number("Older than this goes first under pressure.", 1, 86_400, 180),
                        "memory_pressure_threshold": _number("Share of memory in use that is pressure.", 0.05, 1, 0.7),
                    },
                ),
            ],
        },
        "clusters": {
            "type": "object",
            "description": "Name -> compute units (SMs on a GPU, cores on a CPU). One must stay out of all masks.",
            "additionalProperties": {"type": "integer", "minimum": 0, "maximum": 4096},
        },
        "policy": _object(
            "What the online policy may try; one value pins a knob.",
            {
                "frozen": {"type": "boolean", "default": False, "description": "Keep the arm that is in use."},
                "update_every_requests": _integer("Requests between two choices.", 10, 1_000_000, 1000),
                "prefill_chunk_tokens": _choices(
                    "Tokens per prefill chunk: how long a more urgent task waits.",
                    _item("integer", 16, 8192),
                    [256, 512],
                ),
                "draft_tokens": _choices("Tokens drafted ahead.", _item("integer", 0, 16), [0]),
                "kv_keep_ratio": _choices(
                    "Share of KV kept beyond the recent window. Only 1.0 so far: no engine drops any.",
                    _item("number", 0.6, 1),
                    [1.0],
                ),
                "l2_window_mb": _choices(
                    "Persisting L2 window for the urgent task's weights. Only 0 so far: no engine sets one.",
                    _item("integer", 0, 128),
                    [0],
                ),
                "yielding": _choices(
                    "Whether a task gives way to an urgent one on units of its own too.", {"type": "boolean"}, [True]
                ),
            },
        ),
    },
    ("global_limits", "eviction_policy", "clusters"),
)

TASK: dict[str, Any] = _object(
    "Quality of service of one task.",
    {
        "priority": _integer("10 is the most urgent. From 8 on a task never yields.", 0, 10),
        "latency_sla": _DURATION | {"description": "The latency promised for one request."},
        "memory_budget_mb": _integer("Device memory this task may use, in MB.", 0, 1 << 24),
        "affinity_mask": {"type": "string", "description": "Cluster names joined by commas, narrowest lane first."},
        "warmup_requests": _integer("Requests run at start and at wake-up before the first real one.", 0, 1000, 3),
        "model": {"type": "string", "description": "The registry's name of its model."},
        "models": {"type": "array", "items": {"type": "string"}, "description": "Several models of one task."},
        "queue_limit": _integer("Requests that may wait; more are refused.", 1, 4096, 8),
        "timeout": _DURATION
        | {"description": "A request older than this is degraded instead of blocking.", "default": "30s"},
    },
    ("priority", "latency_sla", "memory_budget_mb", "affinity_mask"),
)


def profile_schema() -> dict[str, Any]:
    """The JSON Schema (2020-12) of a profile file."""
    made = _plain(Profile.model_json_schema()) | {"title": "Cockpit profile"}
    schema: dict[str, Any] = {"$schema": "https://json-schema.org/draft/2020-12/schema", **made}
    schema["properties"]["orchestration"] = ORCHESTRATION
    schema["properties"]["tasks"] = {
        "type": "object",
        "description": "Quality of service per task.",
        "additionalProperties": TASK,
    }
    return schema


def _plain(node: Any) -> Any:
    """Defaults that are quantities come as their fields; a profile writes them as text."""
    if isinstance(node, dict):
        return node["text"] if node.keys() == {"base", "text"} else {key: _plain(value) for key, value in node.items()}
    return [_plain(item) for item in node] if isinstance(node, list) else node


def schema_text() -> str:
    """The schema as `profiles/profile.schema.json` holds it."""
    return json.dumps(profile_schema(), indent=2, ensure_ascii=False) + "\n"


def schema_at(path: tuple[str | int, ...]) -> dict[str, Any] | None:
    """The part of the schema that describes a key; None for a key that a profile cannot have."""
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
    if "$ref" not in node:
        return node
    target: dict[str, Any] = whole["$defs"][node["$ref"].rpartition("/")[2]]
    return target | {key: value for key, value in node.items() if key != "$ref"}
