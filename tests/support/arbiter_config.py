"""A valid arbiter configuration (the one of docs and design), and ways to change it."""

from __future__ import annotations

from copy import deepcopy
from dataclasses import replace
from typing import Any

from cockpit.arbiter.config import ArbiterConfig

GOOD: dict[str, Any] = {
    "global_limits": {"max_gpu_memory_percent": 85, "min_token_per_second": 120},
    "eviction_policy": {"type": "hybrid", "lru_k": 3, "age_threshold_seconds": 180, "memory_pressure_threshold": 0.7},
    "clusters": {"sm_cluster_a": 24, "sm_cluster_b": 72, "sm_cluster_c": 16, "system": 8},
    "tasks": {
        "navigation_task": {
            "priority": 9,
            "latency_sla": "150ms",
            "memory_budget_mb": 1200,
            "affinity_mask": "sm_cluster_a",
            "warmup_requests": 5,
        },
        "dialogue_task": {
            "priority": 5,
            "latency_sla": "800ms",
            "memory_budget_mb": 4000,
            "affinity_mask": "sm_cluster_b,sm_cluster_c",
        },
    },
}


def changed(**paths: Any) -> dict[str, Any]:
    """GOOD with values replaced; a key is a path joined by double underscores."""
    mapping = deepcopy(GOOD)
    for path, value in paths.items():
        *parents, last = path.split("__")
        section = mapping
        for parent in parents:
            section = section[parent]
        section[last] = value
    return mapping


def patient(config: ArbiterConfig) -> ArbiterConfig:
    """`config` whose requests may take ten minutes: on a busy machine a warm-up outlasts the 30 s of a car."""
    return replace(config, tasks={n: replace(t, timeout_ns=600_000_000_000) for n, t in config.tasks.items()})
