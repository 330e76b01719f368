"""The arbiter's configuration: what is taken, and that every fault comes back at once at its place."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from cockpit.arbiter.budget import kv_bytes
from cockpit.arbiter.config import EvictionPolicy
from cockpit.arbiter.lanes import lanes_of, plan_lanes, widest
from cockpit.profile.orchestration import Facts, parse
from tests.support.arbiter_config import GOOD, changed


def faults(mapping: dict[str, Any], facts: Facts | None = None) -> dict[tuple[str | int, ...], str]:
    checked = parse(mapping, facts)
    assert (checked.config is None) == bool(checked.errors)
    return {fault.path: fault.message for fault in checked.errors}


def test_the_designs_own_example_is_taken() -> None:
    config = parse(GOOD, Facts(device="cuda", units=132, granularity=8, memory_total_mb=16_000)).config
    assert config is not None
    assert config.limits.min_token_per_second == 120
    assert config.eviction == EvictionPolicy("hybrid", 3, 180.0, 0.7)
    navigation = config.tasks["navigation_task"]
    assert (navigation.latency_sla_ns, navigation.warmup_requests, navigation.yields) == (150_000_000, 5, False)
    assert config.tasks["dialogue_task"].clusters == ("sm_cluster_b", "sm_cluster_c")
    assert set(config.clusters) - {name for task in config.tasks.values() for name in task.clusters} == {"system"}


def test_sections_may_stand_under_orchestration() -> None:
    nested = {"orchestration": {k: v for k, v in GOOD.items() if k != "tasks"}, "tasks": GOOD["tasks"], "audio": {}}
    assert parse(nested).config == parse(GOOD).config
    nested["orchestration"]["eviction_policy"] = "lru_k=0"
    assert list(faults(nested)) == [("orchestration", "eviction_policy", "lru_k")]


def test_eviction_policy_in_one_string() -> None:
    config = parse(changed(eviction_policy="lru_k=2")).config
    assert config is not None
    assert config.eviction == EvictionPolicy("lru_k", 2)


def test_all_faults_at_once_each_at_its_place() -> None:
    bad = changed(
        global_limits__max_gpu_memory_percent=120,
        eviction_policy__type="mru",
        clusters__sm_cluster_a=12,
        tasks__navigation_task__latency_sla=150,
        tasks__navigation_task__priority=11,
        tasks__dialogue_task__affinity_mask="sm_cluster_b,sm_cluster_x",
        tasks__dialogue_task__memory_budget_mb="4000",
    )
    bad["clusterz"] = {}
    found = faults(bad, Facts(device="cuda", granularity=8))
    assert set(found) == {
        ("clusterz",),
        ("global_limits", "max_gpu_memory_percent"),
        ("eviction_policy", "type"),
        ("clusters", "sm_cluster_a"),
        ("tasks", "navigation_task", "latency_sla"),
        ("tasks", "navigation_task", "priority"),
        ("tasks", "dialogue_task", "affinity_mask"),
        ("tasks", "dialogue_task", "memory_budget_mb"),
    }
    assert "clusters" in found["clusterz",]
    assert "did you mean" in found["tasks", "dialogue_task", "affinity_mask"]
    assert "150ms" in found["tasks", "navigation_task", "latency_sla"]


@pytest.mark.parametrize("missing", ["global_limits", "eviction_policy", "clusters", "tasks"])
def test_every_part_is_required(missing: str) -> None:
    mapping = deepcopy(GOOD)
    del mapping[missing]
    assert (missing,) in faults(mapping)


def test_masks_must_leave_the_system_a_cluster() -> None:
    found = faults(changed(tasks__dialogue_task__affinity_mask="sm_cluster_b,sm_cluster_c,system"))
    assert "system" in found["clusters",]


def test_a_cluster_without_units_is_for_cpus_only() -> None:
    mapping = changed(clusters={"a": 1, "b": 1, "system": 0})
    mapping["tasks"]["navigation_task"]["affinity_mask"] = "a"
    mapping["tasks"]["dialogue_task"]["affinity_mask"] = "a,b"
    assert parse(mapping, Facts(device="cpu", units=2)).config is not None
    assert ("clusters", "system") in faults(mapping, Facts(device="cuda"))


def test_more_units_than_the_device_has() -> None:
    found = faults(GOOD, Facts(device="cuda", units=80, granularity=8))
    assert "24 + 72 + 16 + 8 = 120" in found["clusters",]


def test_budgets_above_the_limit_show_the_sum() -> None:
    found = faults(GOOD, Facts(memory_total_mb=6000))
    assert "1200" in found["tasks",]
    assert "5200" in found["tasks",]
    assert "5100" in found["tasks",]
    assert ("tasks", "dialogue_task", "memory_budget_mb") in faults(GOOD, Facts(memory_total_mb=4000))


def test_unknown_models_are_named_with_a_suggestion() -> None:
    mapping = changed(tasks__dialogue_task__model="gemma-3-270n")
    found = faults(mapping, Facts(models=("gemma-3-270m", "whisper-base")))
    assert "gemma-3-270m" in found["tasks", "dialogue_task", "model"]


def test_an_sla_below_the_measured_baseline_is_a_warning() -> None:
    checked = parse(GOOD, Facts(baseline_ms={"navigation_task": 180.0}))
    assert checked.config is not None
    assert checked.warnings[0].path == ("tasks", "navigation_task", "latency_sla")
    assert "180 ms" in checked.warnings[0].message


@pytest.mark.parametrize("bad", [True, [], ["yes"], "no"])
def test_policy_bounds_are_checked(bad: Any) -> None:
    mapping = changed(policy={"yielding": bad, "kv_keep_ratio": [1.0, 0.5], "prefill_chunk_tokens": []})
    found = faults(mapping)
    assert ("policy", "kv_keep_ratio", 1) in found
    assert ("policy", "prefill_chunk_tokens") in found
    assert (("policy", "yielding") in found) == (bad is not True)


def test_lanes_are_prefixes_of_the_mask() -> None:
    config = parse(GOOD).config
    assert config is not None
    lanes = plan_lanes(config)
    assert [lane.name for lane in lanes] == ["navigation_task:1", "dialogue_task:1", "dialogue_task:2"]
    assert [lane.units for lane in lanes_of(lanes, "dialogue_task")] == [72, 88]
    assert widest(lanes, config.tasks["dialogue_task"]).name == "dialogue_task:2"
    assert len({lane.cluster_bits for lane in lanes}) == 3


def test_kv_bytes_are_keys_and_values_of_every_layer() -> None:
    assert kv_bytes(layers=24, kv_heads=2, head_dim=64, tokens=4096, bytes_per_value=2) == 2 * 24 * 2 * 64 * 4096 * 2
