"""Which task work runs as, whose budget its memory is in, and who gives way on an engine that tasks share."""

from __future__ import annotations

from dataclasses import replace

import pytest

from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.config import BACKGROUND, DIALOGUE, NAVIGATION, SPEECH, VEHICLE, ArbiterConfig
from cockpit.arbiter.requests import YIELD
from cockpit.profile.load import load_profile
from cockpit.scheduling.tasks import names_of, speech_name_of


def test_work_runs_as_its_own_task_or_as_the_next_in_its_row() -> None:
    everything = (NAVIGATION, VEHICLE, DIALOGUE, BACKGROUND, SPEECH)
    assert names_of(everything) == {
        "navigation": NAVIGATION,
        "vehicle": VEHICLE,
        "dialogue": DIALOGUE,
        "background": BACKGROUND,
    }
    assert names_of((NAVIGATION, DIALOGUE))["vehicle"] == NAVIGATION
    assert set(names_of((DIALOGUE,)).values()) == {DIALOGUE}
    assert speech_name_of(everything, "navigation") == SPEECH
    assert speech_name_of((NAVIGATION, DIALOGUE), "navigation") == NAVIGATION
    assert speech_name_of((NAVIGATION, DIALOGUE), None) == DIALOGUE


@pytest.mark.parametrize("profile", ["cpu", "h200"])
def test_the_shipped_profiles_name_every_task_of_the_chain(profile: str) -> None:
    loaded = load_profile(profile)
    assert loaded.arbiter is not None
    tasks = loaded.arbiter.tasks
    assert {NAVIGATION, SPEECH, DIALOGUE, BACKGROUND} == set(tasks)
    order = sorted(tasks, key=lambda name: -tasks[name].priority)
    assert order == [NAVIGATION, SPEECH, DIALOGUE, BACKGROUND]
    assert BACKGROUND in loaded.profile.api.grants["*"]


@pytest.fixture
def apart() -> ArbiterConfig:
    """Tasks on clusters of their own, of which none yields for bandwidth."""
    config = load_profile("h200").arbiter
    assert config is not None
    tasks = {**config.tasks, DIALOGUE: replace(config.tasks[DIALOGUE], clusters=("sm_cluster_b",))}
    return replace(config, tasks=tasks, policy=replace(config.policy, yielding=(False,)))


@pytest.mark.parametrize("one_engine", [True, False])
@pytest.mark.parametrize(("first", "then"), [(DIALOGUE, NAVIGATION), (BACKGROUND, DIALOGUE)])
def test_who_shares_an_engine_gives_way_whatever_the_lanes(
    apart: ArbiterConfig, one_engine: bool, first: str, then: str
) -> None:
    shared = frozenset((NAVIGATION, DIALOGUE, BACKGROUND)) if one_engine else frozenset()
    arbiter = Arbiter(replace(apart, one_engine=shared), 1 << 30)
    low = arbiter.submit(arbiter.task_index[first], 0)
    assert arbiter.decide(0) is low
    high = arbiter.submit(arbiter.task_index[then], 1)
    assert arbiter.decide(1) is high
    assert (arbiter.report(low, 2) == YIELD) is one_engine
    arbiter.finish(high, 3)
    assert arbiter.report(low, 4) != YIELD


def test_a_text_stays_in_the_budget_of_its_first_task_whoever_uses_it(apart: ArbiterConfig) -> None:
    arbiter = Arbiter(apart, 1 << 30)
    dialogue, navigation = arbiter.task_index[DIALOGUE], arbiter.task_index[NAVIGATION]
    for task, size in ((dialogue, 1 << 20), (navigation, 3 << 20), (dialogue, 2 << 20)):
        request = arbiter.submit(task, 0, session="choose", kv_bytes=size)
        assert arbiter.decide(0) is request
        arbiter.finish(request, 1)
        arbiter.check()
    assert (arbiter.ledger.held[dialogue], arbiter.ledger.held[navigation]) == (3 << 20, 0)
