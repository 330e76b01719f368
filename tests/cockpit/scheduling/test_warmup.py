"""Warm-up at start and at wake-up, through the arbiter's own lanes."""

from __future__ import annotations

import threading

from cockpit.scheduling.warmup import STALE_NS, WarmUps
from tests.support.dispatchers import dispatcher_of
from tests.support.waiting import LONG_S, ended


class Clock:
    now_ns = 0

    def __call__(self) -> int:
        return self.now_ns


def test_every_task_runs_its_warmup_requests_the_urgent_last() -> None:
    dispatcher = dispatcher_of()
    order: list[str] = []
    warm_ups = WarmUps(
        dispatcher,
        dispatcher.arbiter.config.tasks,
        {name: order.append for name in ("navigation_task", "dialogue_task")},
        clock_ns=Clock(),
    )
    warm_ups.at_start()
    assert [lane.partition(":")[0] for lane in order] == ["dialogue_task"] * 3 + ["navigation_task"] * 5
    assert set(order) <= {lane.name for lane in dispatcher.arbiter.lanes}
    dispatcher.arbiter.check()


def test_wake_up_warms_only_what_went_cold_and_only_once_at_a_time() -> None:
    dispatcher = dispatcher_of()
    clock = Clock()
    go, runs = threading.Event(), []

    def slow(_lane: str) -> None:
        runs.append(1)
        assert go.wait(LONG_S)

    warm_ups = WarmUps(dispatcher, dispatcher.arbiter.config.tasks, {"dialogue_task": slow}, clock_ns=clock)
    go.set()
    warm_ups.at_start()
    assert warm_ups.at_wake() is None, "still warm"
    clock.now_ns = STALE_NS
    warm_ups.ran("dialogue_task")
    clock.now_ns += STALE_NS - 1
    assert warm_ups.at_wake() is None, "a real request kept it warm"
    clock.now_ns += 1
    go.clear()
    thread = warm_ups.at_wake()
    assert thread is not None
    assert warm_ups.at_wake() is None, "one at a time"
    go.set()
    ended(thread)
    assert len(runs) == 6
    assert warm_ups.at_wake() is None


def test_a_refusal_ends_the_warm_up_quietly() -> None:
    dispatcher = dispatcher_of(latency_sla="10ms", timeout="20ms")
    dispatcher.pause("dialogue_task")
    warm_ups = WarmUps(dispatcher, dispatcher.arbiter.config.tasks, {"dialogue_task": lambda _lane: None})
    warm_ups.at_start()
    assert warm_ups.requests == 0
