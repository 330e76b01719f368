"""Order, yielding, time slices, memory and eviction as the arbiter decides them, on a clock of our own."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import pytest

from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.copy_queue import CopyQueue
from cockpit.arbiter.requests import (
    CONTINUE,
    QUEUED,
    REFUSED,
    RELEASE,
    RUNNING,
    STOP,
    YIELD,
    LatencyHistogram,
    Request,
)
from cockpit.arbiter.status import snapshot
from cockpit.profile.orchestration import parse
from tests.support.arbiter_config import GOOD

MS = 1_000_000
S = 1_000_000_000
MB = 1 << 20
NAV, DIALOGUE, BACKGROUND = 0, 1, 2


def arbiter_of(arena_mb: int = 100, **changes: Any) -> Arbiter:
    """Navigation alone on its cluster, dialogue and a background task sharing theirs."""
    mapping = deepcopy(GOOD)
    mapping["tasks"]["background_task"] = {
        "priority": 2,
        "latency_sla": "2s",
        "memory_budget_mb": 100,
        "affinity_mask": "sm_cluster_b",
        "timeout": "20s",
    }
    mapping.update(changes)
    checked = parse(mapping)
    assert checked.config is not None, checked.errors
    return Arbiter(checked.config, arena_mb * MB)


def started(arbiter: Arbiter, task: int, now_ns: int, **kwargs: Any) -> Request:
    request = arbiter.submit(task, now_ns, **kwargs)
    assert arbiter.decide(now_ns) is request
    assert request.state == RUNNING
    return request


def test_a_request_starts_in_its_lane_and_ends() -> None:
    arbiter = arbiter_of()
    request = started(arbiter, NAV, 0)
    assert arbiter.lanes[request.lane].name == "navigation_task:1"
    assert request.chunk_tokens == 256
    assert arbiter.report(request, MS, 1) == CONTINUE
    arbiter.finish(request, 2 * MS)
    assert arbiter.running_bits == 0
    assert arbiter.decide(3 * MS) is None
    arbiter.check()


def test_navigation_makes_the_running_dialogue_yield_and_releases_it() -> None:
    arbiter = arbiter_of()
    dialogue = started(arbiter, DIALOGUE, 0)
    assert arbiter.report(dialogue, MS, 1) == CONTINUE
    navigation = started(arbiter, NAV, 2 * MS)
    assert "yield" in navigation.why
    assert arbiter.yield_bits == 1 << DIALOGUE
    assert arbiter.report(dialogue, 3 * MS, 1) == YIELD
    arbiter.finish(navigation, 4 * MS)
    assert arbiter.yield_bits == 0
    assert arbiter.report(dialogue, 5 * MS, 1) == CONTINUE


def test_without_yielding_disjoint_lanes_run_side_by_side() -> None:
    arbiter = arbiter_of(policy={"yielding": False})
    started(arbiter, DIALOGUE, 0)
    started(arbiter, NAV, 1)
    assert arbiter.yield_bits == 0


def test_nothing_lower_starts_while_navigation_runs() -> None:
    arbiter = arbiter_of()
    navigation = started(arbiter, NAV, 0)
    dialogue = arbiter.submit(DIALOGUE, 1)
    assert arbiter.decide(1) is None
    assert "navigation_task" in arbiter.explain(dialogue)
    arbiter.finish(navigation, 2)
    assert arbiter.decide(3) is dialogue


def test_priority_first_then_slack() -> None:
    arbiter = arbiter_of()
    blocker = started(arbiter, DIALOGUE, 0)
    background = arbiter.submit(BACKGROUND, 1)
    relaxed = arbiter.submit(DIALOGUE, 2, expected_ns=10 * MS)
    tight = arbiter.submit(DIALOGUE, 3, expected_ns=700 * MS)
    order = []
    arbiter.finish(blocker, 4)
    now_ns = 5
    while (chosen := arbiter.decide(now_ns)) is not None:
        order.append(chosen)
        arbiter.finish(chosen, now_ns + 1)
        now_ns += 2
    assert order == [tight, relaxed, background]


def test_waiting_raises_the_low_but_never_above_urgent() -> None:
    arbiter = arbiter_of()
    blocker = started(arbiter, DIALOGUE, 0)
    background = arbiter.submit(BACKGROUND, 0)
    fresh = arbiter.submit(DIALOGUE, 9 * S)
    arbiter.finish(blocker, 9 * S)
    assert arbiter.decide(9 * S) is background
    assert "waited" in background.why
    arbiter.finish(background, 9 * S)
    assert arbiter.decide(9 * S) is fresh
    arbiter.finish(fresh, 9 * S)
    old = arbiter.submit(BACKGROUND, 10 * S)
    urgent = arbiter.submit(NAV, 29 * S)
    assert arbiter.decide(29 * S) is urgent
    assert old.state == QUEUED


def test_queues_are_bounded_and_say_so() -> None:
    arbiter = arbiter_of()
    started(arbiter, NAV, 0)
    for _ in range(8):
        assert arbiter.submit(NAV, 1).state == QUEUED
    refused = arbiter.submit(NAV, 2)
    assert refused.state == REFUSED
    assert "queue is full" in refused.why
    arbiter.finish(refused, 3)
    arbiter.check()


def test_a_long_request_gives_way_to_a_short_one_and_goes_on_degraded() -> None:
    arbiter = arbiter_of(policy={"prefill_chunk_tokens": [512, 128], "kv_keep_ratio": [1.0, 0.6]})
    long = started(arbiter, DIALOGUE, 0, session="long", kv_bytes=MB)
    short = arbiter.submit(DIALOGUE, 100 * MS)
    assert arbiter.report(long, 700 * MS, 1) == CONTINUE
    assert arbiter.report(long, 900 * MS, 1) == RELEASE
    arbiter.requeue(long, 900 * MS)
    assert arbiter.decide(901 * MS) is short
    arbiter.finish(short, 950 * MS)
    assert arbiter.decide(951 * MS) is long
    assert (long.degraded, long.chunk_tokens, long.keep_ratio) == (True, 128, 0.6)
    arbiter.finish(long, 960 * MS)
    arbiter.check()
    assert arbiter.table.sessions["long"].pins == 0


def test_a_batch_that_keeps_its_lane_runs_under_the_arm_in_force() -> None:
    arbiter = arbiter_of(policy={"prefill_chunk_tokens": [512, 128], "draft_tokens": [0, 4]})
    batch = started(arbiter, DIALOGUE, 0, batch=True)
    assert (batch.chunk_tokens, batch.draft_tokens) == (512, 0)
    arms = arbiter.policy.arms
    arbiter.policy.arm = next(
        i for i, arm in enumerate(arms) if (arm.prefill_chunk_tokens, arm.draft_tokens) == (128, 4)
    )
    arbiter.policy_changed()
    assert (batch.chunk_tokens, batch.draft_tokens) == (128, 4)
    arbiter.finish(batch, 10 * MS)


def test_a_stream_is_late_by_its_first_token_and_others_by_their_end() -> None:
    arbiter = arbiter_of()
    stream = started(arbiter, DIALOGUE, 0)
    arbiter.report(stream, 300 * MS, 0)
    arbiter.report(stream, 500 * MS, 1)
    arbiter.report(stream, 4 * S, 60)
    arbiter.finish(stream, 5 * S, 3)
    assert arbiter.missed == [0, 0, 0]
    assert arbiter.latency[DIALOGUE].max_ns == 500 * MS
    slow_to_start = started(arbiter, DIALOGUE, 10 * S)
    arbiter.report(slow_to_start, 11 * S, 1)
    arbiter.finish(slow_to_start, 12 * S)
    assert arbiter.missed[DIALOGUE] == 1
    without_tokens = started(arbiter, NAV, 20 * S)
    arbiter.finish(without_tokens, 20 * S + 151 * MS)
    assert arbiter.missed == [1, 1, 0]
    urgent_with_tokens = started(arbiter, NAV, 30 * S)
    arbiter.report(urgent_with_tokens, 30 * S + 10 * MS, 1)
    arbiter.finish(urgent_with_tokens, 30 * S + 152 * MS, 7)
    assert arbiter.missed == [2, 1, 0], "the route is what counts, not its first token"


@pytest.mark.parametrize("frozen", [False, True])
def test_an_arm_that_breaks_the_token_floor_is_left_for_the_safe_one(frozen: bool) -> None:
    arbiter = arbiter_of()
    arbiter.policy.arm = 1
    arbiter.policy_changed()
    arbiter.policy.frozen = frozen
    stream = started(arbiter, DIALOGUE, 0)
    for second in range(1, 5):
        arbiter.report(stream, second * S, 10)
        assert (arbiter.policy.arm, arbiter.floor.entered) == (1, 0), "it may recover for five seconds"
    for second in range(5, 8):
        arbiter.report(stream, second * S, 10)
    assert arbiter.floor.entered == 1
    assert arbiter.policy.arm == (1 if frozen else 0)
    assert arbiter.policy.reverts == (0 if frozen else 1)
    arbiter.finish(stream, 8 * S)
    assert started(arbiter, DIALOGUE, 9 * S).chunk_tokens == arbiter.arm.prefill_chunk_tokens
    arbiter.check()


def test_a_request_of_lower_priority_does_not_end_a_slice() -> None:
    arbiter = arbiter_of()
    dialogue = started(arbiter, DIALOGUE, 0)
    arbiter.submit(BACKGROUND, 900 * MS)
    assert arbiter.report(dialogue, 1000 * MS, 1) == CONTINUE


def test_timeouts_running_and_queued() -> None:
    arbiter = arbiter_of()
    running = started(arbiter, DIALOGUE, 0)
    queued = arbiter.submit(BACKGROUND, 0)
    assert arbiter.tick(19 * S) is None
    assert arbiter.tick(21 * S) is queued
    assert queued.state == REFUSED
    assert "timeout" in queued.why
    arbiter.finish(queued, 21 * S)
    assert arbiter.tick(21 * S) is None
    assert arbiter.report(running, 31 * S) == STOP
    arbiter.finish(running, 31 * S)
    arbiter.check()
    assert arbiter.timeouts == 2


def test_an_overdue_request_is_refused_instead_of_started() -> None:
    arbiter = arbiter_of()
    late = arbiter.submit(DIALOGUE, 0)
    assert arbiter.decide(31 * S) is late
    assert late.state == REFUSED
    arbiter.finish(late, 31 * S)
    assert arbiter.queues.free_slots == len(arbiter.queues.requests)


def test_cancelling_a_queued_request() -> None:
    arbiter = arbiter_of()
    first = started(arbiter, DIALOGUE, 0)
    second = arbiter.submit(DIALOGUE, 1)
    arbiter.finish(second, 2)
    arbiter.finish(first, 3)
    assert arbiter.decide(4) is None
    arbiter.check()


def test_pause_and_resume() -> None:
    arbiter = arbiter_of()
    arbiter.pause(DIALOGUE)
    held = arbiter.submit(DIALOGUE, 0)
    assert arbiter.decide(1) is None
    assert "o3ctl resume" in arbiter.explain(held)
    arbiter.resume(DIALOGUE)
    assert arbiter.decide(2) is held


# --- memory --------------------------------------------------------------------------------------------------------
def turn(arbiter: Arbiter, session: str, now_ns: int, size_mb: int = 30, task: int = DIALOGUE) -> None:
    request = started(arbiter, task, now_ns, session=session, kv_bytes=size_mb * MB)
    arbiter.finish(request, now_ns + MS)
    arbiter.check()


def test_what_can_never_fit_is_refused_at_once() -> None:
    arbiter = arbiter_of(arena_mb=100)
    refused = arbiter.submit(DIALOGUE, 0, session="huge", kv_bytes=101 * MB)
    assert refused.state == REFUSED
    assert "memory" in refused.why


def test_memory_in_use_is_waited_for_not_taken() -> None:
    arbiter = arbiter_of(arena_mb=100, policy={"yielding": False})
    navigation = started(arbiter, NAV, 0, session="route", kv_bytes=80 * MB)
    waiting = arbiter.submit(DIALOGUE, 1, session="talk", kv_bytes=40 * MB)
    assert arbiter.decide(1) is None
    assert "memory" in arbiter.explain(waiting)
    arbiter.finish(navigation, 2)
    assert arbiter.decide(3) is None, "an idle session of a higher priority is not taken either"
    assert arbiter.evict("route", 4) == "evicted"
    assert arbiter.decide(5) is waiting


def test_a_task_over_its_own_budget_evicts_its_own_sessions_only() -> None:
    arbiter = arbiter_of(arena_mb=400)
    turn(arbiter, "talk", 0, 50)
    turn(arbiter, "b1", 1 * S, 60, BACKGROUND)
    turn(arbiter, "b2", 2 * S, 60, BACKGROUND)
    assert set(arbiter.table.sessions) == {"talk", "b2"}


def test_plain_lru_k_starves_new_sessions_and_hybrid_does_not() -> None:
    def newcomer_survives(policy: Any) -> bool:
        arbiter = arbiter_of(arena_mb=100, eviction_policy=policy)
        for second in range(0, 600, 10):  # three conversations of ten minutes hold the arena
            for name in ("old1", "old2", "old3"):
                turn(arbiter, name, second * S)
        turn(arbiter, "new1", 601 * S)
        turn(arbiter, "new2", 602 * S)
        return {"new1", "new2"} <= set(arbiter.table.sessions)

    assert not newcomer_survives("lru_k=3")
    assert newcomer_survives(GOOD["eviction_policy"])


def test_hybrid_without_pressure_is_lru_k() -> None:
    arbiter = arbiter_of(arena_mb=100)
    for second in range(0, 600, 10):
        turn(arbiter, "old", second * S)
    turn(arbiter, "new", 601 * S, 20)
    assert arbiter.tick(602 * S) is None
    assert set(arbiter.table.sessions) == {"old", "new"}
    turn(arbiter, "big", 603 * S, 40)
    arbiter.tick(604 * S)
    assert set(arbiter.table.sessions) == {"new", "big"}, "pressure 0.9 is past the threshold: the old one goes"


def test_eviction_of_a_running_session_waits_for_its_boundary() -> None:
    arbiter = arbiter_of()
    request = started(arbiter, DIALOGUE, 0, session="s", kv_bytes=MB)
    assert arbiter.evict("s", 1) == "at its next boundary"
    assert arbiter.report(request, 2, 1) == STOP
    arbiter.finish(request, 3)
    assert arbiter.evict("s", 4) == "unknown"
    arbiter.check()


def test_evictions_are_announced() -> None:
    gone: list[tuple[str, str]] = []
    config = parse(GOOD).config
    assert config is not None
    arbiter = Arbiter(config, 100 * MB, on_evict=lambda session, task: gone.append((session, task)))
    for index in range(4):
        turn(arbiter, f"s{index}", index * S)
    assert gone == [("s0", "dialogue_task")]


# --- snapshot, copies, histogram -----------------------------------------------------------------------------------
def test_the_snapshot_explains_itself() -> None:
    arbiter = arbiter_of()
    for second in range(5):
        turn(arbiter, "often", second * S)
    turn(arbiter, "once", 6 * S, 10)
    running = started(arbiter, NAV, 7 * S)
    arbiter.submit(DIALOGUE, 7 * S)
    status = snapshot(arbiter, 8 * S)
    assert [candidate.session for candidate in status.eviction_candidates] == ["once", "often"]
    assert [candidate.rank for candidate in status.eviction_candidates] == [0, 1]
    assert "fewer than K" in status.eviction_candidates[0].reason
    dialogue = next(task for task in status.tasks if task.name == "dialogue_task")
    assert dialogue.state == "queued"
    assert "navigation_task" in dialogue.why
    assert status.memory.held_mb == pytest.approx(40)
    assert [lane.name for lane in status.lanes if lane.active] == [
        "navigation_task:1",
        "dialogue_task:2",
        "background_task:1",
    ]
    assert status.decisions[0].task == "navigation_task"
    arbiter.finish(running, 9 * S)
    old = snapshot(arbiter, 300 * S, verbose=False)
    assert old.eviction_candidates == ()


def test_fragmentation_counts_rounding_to_pages() -> None:
    config = parse(GOOD).config
    assert config is not None
    arbiter = Arbiter(config, 100 * MB, page_bytes=MB)
    request = started(arbiter, DIALOGUE, 0, session="s", kv_bytes=MB + MB // 2)
    assert arbiter.ledger.fragmentation == pytest.approx(0.25)
    arbiter.finish(request, 1)


def test_copies_go_in_chunks_with_the_urgent_first() -> None:
    copies = CopyQueue((9, 5), chunk_bytes=4, limit=2)
    slow = copies.submit(1, 10)
    first = copies.next_chunk()
    assert first is not None
    assert (first.offset_bytes, first.size_bytes) == (0, 4)
    fast = copies.submit(0, 5)
    assert copies.submit(0, 1) is None, "bounded"
    taken = [copies.next_chunk() for _ in range(4)]
    assert [(c.ticket, c.size_bytes, c.last) for c in taken if c] == [
        (fast, 4, False),
        (fast, 1, True),
        (slow, 4, False),
        (slow, 2, True),
    ]
    assert copies.next_chunk() is None
    assert copies.queued_bytes == 0
    again = copies.submit(1, 8)
    assert again is not None
    assert copies.cancel(again)
    assert not copies.cancel(again)
    assert copies.next_chunk() is None
    with pytest.raises(ValueError, match="nothing to move"):
        copies.submit(0, 0)


def test_histogram_quantiles_within_a_sixteenth_of_an_octave() -> None:
    histogram = LatencyHistogram()
    assert histogram.quantile_ns(0.5) == 0
    for value in range(1, 100_001):
        histogram.add(value * 1000)
    assert histogram.quantile_ns(0.5) == pytest.approx(50_000_000, rel=0.065)
    assert histogram.quantile_ns(0.99) == pytest.approx(99_000_000, rel=0.065)
    assert histogram.quantile_ns(1.0) == 100_000_000
    histogram.clear()
    histogram.add(0)
    histogram.add(1 << 62)
    assert histogram.quantile_ns(0.5) == 0
    assert histogram.quantile_ns(1.0) == 1 << 62
