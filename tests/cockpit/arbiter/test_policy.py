"""The token floor with its hysteresis, and the online policy on two simulated machines."""

from __future__ import annotations

import json
from copy import deepcopy
from typing import Any

import pytest

from cockpit.arbiter.config import ArbiterConfig
from cockpit.arbiter.degrade import TokenFloor
from cockpit.arbiter.policy import CONTEXTS, MAX_ARMS, Policy, arms_of
from cockpit.profile.orchestration import parse
from hil.simulator import HBM, LOADS, SOC, Machine, Simulator
from tests.support.arbiter_config import GOOD

S = 1_000_000_000
NAV, DIALOGUE, BACKGROUND, CHAT = range(4)


def config_of(**policy: Any) -> ArbiterConfig:
    mapping = deepcopy(GOOD)
    for name, priority in (("background_task", 2), ("chat_task", 3)):
        mapping["tasks"][name] = {**mapping["tasks"]["dialogue_task"], "priority": priority}
    mapping["policy"] = policy
    config = parse(mapping).config
    assert config is not None
    return config


# --- token floor ---------------------------------------------------------------------------------------------------
def feed(floor: TokenFloor, rate: float, begin_s: int, seconds: int) -> list[int]:
    """Dialogue generates at `rate` for `seconds`; `paused` after each second."""
    seen = []
    for second in range(begin_s + 1, begin_s + seconds + 1):
        floor.generated(DIALOGUE, int(rate), S, second * S)
        seen.append(floor.paused)
    return seen


def test_five_seconds_below_the_floor_pause_the_lowest_first() -> None:
    floor = TokenFloor(120.0, tuple(config_of().tasks.values()))
    seen = feed(floor, 100, 0, 11)
    assert seen[:4] == [0, 0, 0, 0]
    assert seen[4] == 1 << BACKGROUND
    assert seen[8] == 1 << BACKGROUND
    assert seen[10] == 1 << BACKGROUND | 1 << CHAT
    assert floor.entered == 1
    feed(floor, 100, 11, 20)
    assert not floor.paused & (1 << NAV | 1 << DIALOGUE), "neither who generates nor the urgent"


def test_a_dip_shorter_than_five_seconds_does_nothing() -> None:
    floor = TokenFloor(120.0, tuple(config_of().tasks.values()))
    for begin in range(0, 60, 5):
        feed(floor, 100, begin, 4)
        feed(floor, 121, begin + 4, 1)
    assert floor.entered == 0


def test_hysteresis_on_the_way_back() -> None:
    floor = TokenFloor(120.0, tuple(config_of().tasks.values()))
    feed(floor, 100, 0, 11)
    assert set(feed(floor, 125, 11, 30)) == {1 << BACKGROUND | 1 << CHAT}, "above the floor, not above its margin"
    seen = feed(floor, 140, 41, 22)
    assert seen[9] == 1 << BACKGROUND | 1 << CHAT
    assert seen[10] == 1 << BACKGROUND, "the highest comes back first"
    assert seen[20] == 0
    assert floor.degraded_since_ns == -1


def test_idle_time_brings_the_paused_back() -> None:
    floor = TokenFloor(120.0, tuple(config_of().tasks.values()))
    feed(floor, 100, 0, 5)
    for second in range(6, 18):
        floor.idle(second * S)
    assert floor.paused == 0


def test_no_promise_no_degraded_mode() -> None:
    floor = TokenFloor(0.0, tuple(config_of().tasks.values()))
    assert not any(feed(floor, 1, 0, 60))


# --- policy --------------------------------------------------------------------------------------------------------
def test_arms_stay_inside_the_profile_and_the_safe_one_is_first() -> None:
    config = config_of(prefill_chunk_tokens=[512, 256], kv_keep_ratio=[1.0, 0.6])
    arms = arms_of(config)
    assert arms[0].widths == tuple(len(task.clusters) for task in config.tasks.values())
    assert (arms[0].prefill_chunk_tokens, arms[0].kv_keep_ratio) == (512, 1.0)
    assert len(set(arms)) == len(arms) == 2 * 2 * 2 * 2 * 2
    for arm in arms:
        assert all(1 <= w <= len(t.clusters) for w, t in zip(arm.widths, config.tasks.values(), strict=True))
    many = arms_of(config_of(prefill_chunk_tokens=[64, 128, 256, 512], l2_window_mb=[0, 8, 16], draft_tokens=[0, 2, 4]))
    assert len(many) <= MAX_ARMS
    assert many[0].draft_tokens == 0


def epoch(policy: Policy, load: float, *, urgent: bool = True) -> bool:
    """One epoch in which every request takes `load` of its SLA; True when the arm changed."""
    while not policy.observe(int(load * 1000), 1000, urgent, True):
        pass
    return policy.choose(False)


def two_arms(**policy: Any) -> Policy:
    config = config_of(prefill_chunk_tokens=[512, 256], update_every_requests=100, **policy)
    return Policy(arms_of(config)[:2], every=100, frozen=config.policy.frozen)


def test_the_cheaper_arm_wins_and_the_other_is_tried_now_and_then() -> None:
    policy = two_arms()
    for _ in range(200):
        epoch(policy, 0.5 if policy.arm == 0 else 0.3)
    assert policy.favourite() == 1
    assert policy.epochs_of(1) > 180


def test_frozen_stays_where_it_is() -> None:
    policy = two_arms(frozen=True)
    for _ in range(20):
        assert not epoch(policy, 0.9)
    assert policy.epochs_of(0) == 20


def test_an_arm_that_misses_urgent_slas_is_left_in_mid_epoch_and_barred() -> None:
    policy = two_arms()
    while policy.arm == 0:
        epoch(policy, 0.5)
    seen = 0
    while not policy.observe(2000, 1000, True, True):
        seen += 1
    assert seen < 10, "left long before the epoch's 100 requests"
    assert policy.choose(False)
    assert (policy.arm, policy.reverts) == (0, 1)
    for _ in range(40):
        epoch(policy, 0.5)
        assert policy.arm == 0, "barred"


def test_where_the_safe_arm_misses_too_the_cheaper_arm_still_wins() -> None:
    """Beside a load that no arm helps against prices of whole epochs decide, and nothing stays barred."""
    policy = two_arms()
    for _ in range(60):
        requests, load = 1, 3.0 if policy.arm == 0 else 1.5
        while not policy.observe(int(load * 1000), 1000, True, True):
            requests += 1
        assert requests == 100 or policy.epoch < 3, "whole epochs, once the safe arm is known to miss"
        policy.choose(False)
    assert policy.favourite() == 1
    assert policy.epochs_of(1) > 50
    assert policy.reverts <= 1


def test_bars_hold_again_once_the_safe_arm_keeps_its_promise() -> None:
    policy = two_arms()
    for _ in range(30):
        epoch(policy, 3.0 if policy.arm == 0 else 1.5)
    for _ in range(400):
        epoch(policy, 0.5 if policy.arm == 0 else 1.5)
    assert policy.favourite() == 0
    assert policy.reverts > 0
    assert policy.arm == 0


def test_red_line_reverts_at_once() -> None:
    policy = two_arms()
    assert not policy.red_line()
    while policy.arm == 0:
        epoch(policy, 0.5)
    assert policy.red_line()
    assert policy.arm == 0


def test_state_survives_a_restart_and_fits_its_arms_only() -> None:
    policy = two_arms()
    for _ in range(50):
        epoch(policy, 0.5 if policy.arm == 0 else 0.3)
    saved = json.loads(json.dumps(policy.state()))
    assert saved["safe_missed"] == [0] * CONTEXTS
    again = two_arms()
    assert again.restore(saved) is None
    assert (again.arm, again.epoch, again.favourite()) == (policy.arm, policy.epoch, 1)
    assert again.state() == policy.state()
    other = Policy(arms_of(config_of())[:2], every=100, frozen=False)
    assert "other arms" in str(other.restore(saved))
    assert "version" in str(again.restore({"version": 2}))
    again.reset()
    assert (again.arm, again.epoch, again.favourite()) == (0, 0, 0)


def test_a_truncated_state_changes_nothing() -> None:
    policy = two_arms()
    saved = policy.state()
    saved["stats"] = saved["stats"][:2]
    fresh = two_arms()
    assert fresh.restore(saved) is not None
    assert fresh.state() == two_arms().state()


# --- two machines --------------------------------------------------------------------------------------------------
def best_fixed(machine: Machine) -> tuple[float, int]:
    arms = range(len(Simulator(machine, LOADS[machine.name], seed=0).arbiter.policy.arms))
    costs = [(Simulator(machine, LOADS[machine.name], seed=arm, fixed_arm=arm).run(10_000).cost, arm) for arm in arms]
    return min(costs)


def test_two_machines_two_winners_within_five_percent_and_no_red_line() -> None:
    winners = []
    for machine in (HBM, SOC):
        best_cost, _ = best_fixed(machine)
        outcome = Simulator(machine, LOADS[machine.name], seed=9).run(100_000)
        assert outcome.broken == ()
        assert outcome.cost <= best_cost * 1.05
        winners.append((outcome.arm.widths[NAV], outcome.arm.yielding if outcome.arm.widths[NAV] == 1 else True))
    assert winners == [(2, True), (1, False)], "wide and yielding on one, narrow and side by side on the other"


def test_a_simulation_is_reproducible() -> None:
    runs = [Simulator(SOC, LOADS[SOC.name], seed=3).run(5_000) for _ in range(2)]
    assert runs[0] == runs[1]


def test_a_fixed_arm_stays_fixed() -> None:
    outcome = Simulator(HBM, LOADS[HBM.name], seed=3, fixed_arm=5).run(20_000)
    assert outcome.arm_share[5] == pytest.approx(1.0)
