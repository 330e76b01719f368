"""The memory plan: what it adds up, what it refuses and shows, and that its KV figure is what sessions really take."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import replace
from pathlib import Path

import pytest

from cockpit.arbiter.lanes import plan_lanes
from cockpit.profile.load import LoadedProfile, load_profile
from cockpit.profile.memory_budget import MIB, MemoryLine, MemoryPlan, TaskNeed, kv_arena, lane_caps
from cockpit.profile.memory_plan import KV_SESSIONS, plan_of
from models.engines.llm.causal_lm import CausalLM
from models.errors import ConfigError
from models.store.registry import load_registry
from models.store.store import Store

LINES = (
    MemoryLine("talker", "weights", 500 * MIB, "files"),
    kv_arena(4, 50 * MIB, "2048 tokens"),
    MemoryLine("lane:1", "activations", 100 * MIB, "measured peak"),
)


def test_what_fits_is_let_through() -> None:
    plan = MemoryPlan(LINES, 80.0, 1000 * MIB, (TaskNeed("talk", 200 * MIB, 200 * MIB),))
    assert plan.sum_bytes == plan.limit_bytes == 800 * MIB
    plan.check()


def test_what_does_not_fit_is_refused_with_every_line_of_the_sum() -> None:
    plan = MemoryPlan(LINES, 79.0, 1000 * MIB, (TaskNeed("talk", 200 * MIB, 199 * MIB),))
    with pytest.raises(ConfigError) as caught:
        plan.check()
    said = str(caught.value).splitlines()
    assert [line.split()[:3] for line in said[1:5]] == [
        ["500", "MiB", "talker"],
        ["200", "MiB", "kv"],
        ["100", "MiB", "lane:1"],
        ["800", "MiB", "sum"],
    ]
    assert "4 texts x 50 MiB: 2048 tokens" in said[2]
    assert "KV of talk 200 MiB is above its memory_budget_mb of 199 MiB: raise the budget" in said[5]
    assert "the sum of 800 MiB is above the limit of 790 MiB (79 % of 1000 MiB): choose smaller models" in said[6]
    assert caught.value.exit_code == 2


def test_without_a_device_only_budgets_are_checked() -> None:
    MemoryPlan(LINES, 1.0, None).check()
    assert "no such device" in MemoryPlan(LINES, 1.0, None).limit_text
    assert not MemoryPlan(LINES, 1.0, None, (TaskNeed("talk", 2, 1),)).fits


def test_a_lane_counts_with_its_measured_peak_else_with_its_cap() -> None:
    config = load_profile("h200").arbiter
    assert config is not None
    lines = {line.name: line for line in lane_caps(plan_lanes(config), {"dialogue_task:2": 700 * MIB})}
    assert (lines["dialogue_task:2"].count_bytes, lines["dialogue_task:2"].note) == (700 * MIB, "measured peak")
    assert lines["dialogue_task:1"].count_bytes == config.tasks["dialogue_task"].memory_budget_mb * MIB
    assert "cap" in lines["dialogue_task:1"].note


def test_a_gpu_holds_weights_once_and_only_what_runs_there(tmp_path: Path) -> None:
    loaded = load_profile("h200")
    store = Store(tmp_path, load_registry())
    plan = plan_of(loaded.profile, loaded.arbiter, store, 140 << 30, {"dialogue_task:1": MIB})
    weights = [line.name for line in plan.lines if line.kind == "weights"]
    assert sorted(weights) == sorted(
        {loaded.profile.asr.model, loaded.profile.llm.named("dialogue"), loaded.profile.tts.en_voice}
    )
    assert {line.kind for line in plan.lines} == {"weights", "kv", "activations"}
    plan.check()
    small = plan_of(loaded.profile, loaded.arbiter, store, 4 << 30)
    with pytest.raises(ConfigError, match="choose smaller models"):
        small.check()


def test_the_kv_line_is_what_real_sessions_take(model_dir: Callable[[str], Path], model_store: Store) -> None:
    folder = model_dir("smollm2-135m-instruct")
    loaded = with_model(load_profile("cpu"), "smollm2-135m-instruct")
    plan = plan_of(loaded.profile, loaded.arbiter, model_store, None)
    model = CausalLM.load(folder, context_tokens=loaded.profile.llm.dialogue.context_tokens)
    arena = next(line for line in plan.lines if line.kind == "kv")
    assert arena.count_bytes == KV_SESSIONS * model.open_session().kv_bytes
    (need,) = plan.needs
    assert need.kv_bytes == arena.count_bytes


def with_model(loaded: LoadedProfile, name: str) -> LoadedProfile:
    profile = loaded.profile
    llm = profile.llm.model_copy(update={"dialogue": profile.llm.dialogue.model_copy(update={"model": name})})
    return replace(loaded, profile=profile.model_copy(update={"llm": llm}))
