"""Memory past `max_gpu_memory_percent`: idle sessions go first, then new ones are refused, and it comes back."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cockpit.arbiter import members
from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.policy import arms_of
from cockpit.arbiter.requests import MEMORY_RED_LINE, QUEUED, REFUSED
from cockpit.arbiter.status import snapshot
from cockpit.profile.load import load_profile
from cockpit.profile.orchestration import parse
from tests.support.arbiter_config import GOOD

MIB = 1 << 20
TOTAL = 1000 * MIB
"""Of which 85 % may be in use."""


@pytest.fixture
def gone() -> list[str]:
    return []


@pytest.fixture
def arbiter(gone: list[str]) -> Arbiter:
    config = parse(GOOD).config
    assert config is not None
    return Arbiter(config, 500 * MIB, on_evict=lambda session, _: gone.append(session))


def use(arbiter: Arbiter, task: str, session: str, *, end: bool = True) -> int:
    """Run a request on 40 MiB; its state."""
    request = arbiter.submit(arbiter.task_index[task], 0, session=session, kv_bytes=40 * MIB)
    state = request.state
    if state == QUEUED:
        assert arbiter.decide(0) is request
        if end:
            arbiter.finish(request, 1)
    return state


def test_idle_sessions_go_first_then_new_ones_are_refused_and_it_comes_back(arbiter: Arbiter, gone: list[str]) -> None:
    use(arbiter, "dialogue_task", "old")
    use(arbiter, "dialogue_task", "older")
    use(arbiter, "dialogue_task", "talking", end=False)
    arbiter.memory_in_use(840 * MIB, TOTAL, 2)
    assert gone == []
    arbiter.memory_in_use(880 * MIB, TOTAL, 3)  # 30 MiB too much: one of 40 is enough
    assert gone == ["old"]
    assert not arbiter.red_line.refusing
    arbiter.memory_in_use(880 * MIB, TOTAL, 4)
    assert gone == ["old", "older"]
    assert not arbiter.red_line.refusing, "its owner has yet to give it back"
    arbiter.memory_in_use(880 * MIB, TOTAL, 5)
    assert gone == ["old", "older"], "who talks is never cut off"
    assert arbiter.red_line.refusing
    shown = snapshot(arbiter, 5).memory
    assert (shown.refusing, shown.used_percent, shown.limit_percent) == (True, 88.0, 85)

    dialogue = arbiter.task_index["dialogue_task"]
    refused = arbiter.submit(dialogue, 6, session="new", kv_bytes=MIB)
    assert (refused.state, refused.reason) == (REFUSED, MEMORY_RED_LINE)
    assert "max_gpu_memory_percent" in refused.why
    text = members.join(arbiter, dialogue, 6, session="new", kv_bytes=MIB, submitted_ns=6)
    assert text is not None
    assert (text.state, text.reason) == (REFUSED, MEMORY_RED_LINE)
    again = arbiter.submit(dialogue, 6, session="talking", kv_bytes=40 * MIB)
    assert again.state == QUEUED, "what it holds is held already"
    assert use(arbiter, "navigation_task", "way") == QUEUED, "never kept from what is urgent"

    arbiter.memory_in_use(845 * MIB, TOTAL, 7)
    assert arbiter.red_line.refusing, "not before the margin"
    arbiter.memory_in_use(820 * MIB, TOTAL, 8)
    assert not arbiter.red_line.refusing
    assert arbiter.submit(dialogue, 9, session="new", kv_bytes=MIB).state == QUEUED
    assert arbiter.red_line.entered == 1
    arbiter.check()


def test_what_changes_nothing_on_a_device_is_no_arm_there() -> None:
    config = load_profile("cpu").arbiter
    assert config is not None
    assert len(config.tasks["dialogue_task"].clusters) == 2
    served = arms_of(replace(config, widths_act=False))
    assert len(served) == len(config.policy.prefill_chunk_tokens) < len(arms_of(config))
    assert {arm.l2_window_mb for arm in served} == {0}
    assert {arm.widths for arm in served} == {tuple(len(task.clusters) for task in config.tasks.values())}


def test_a_status_lists_the_arms_and_judges_an_sla_by_its_p95(arbiter: Arbiter) -> None:
    status = snapshot(arbiter, 0)
    assert len(status.policy.offered) == status.policy.arms
    assert status.policy.offered[status.policy.arm] == status.policy.description
    assert snapshot(arbiter, 0, verbose=False).policy.offered == ()
    navigation = arbiter.task_index["navigation_task"]
    sla_ns = arbiter.tasks[navigation].latency_sla_ns
    for late in [False] * 96 + [True] * 4:
        arbiter.latency[navigation].add(sla_ns * 4 if late else sla_ns // 4)
    assert snapshot(arbiter, 0).tasks[navigation].sla_kept
    for _ in range(4):
        arbiter.latency[navigation].add(sla_ns * 4)
    assert not snapshot(arbiter, 0).tasks[navigation].sla_kept
