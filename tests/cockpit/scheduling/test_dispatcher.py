"""Leases: real threads around the arbiter, in the right order, yielding and coming back."""

from __future__ import annotations

import threading
import time
from copy import deepcopy
from typing import Any

import pytest

from cockpit.arbiter.arbiter import Arbiter
from cockpit.profile.orchestration import parse
from cockpit.scheduling.dispatcher import Dispatcher, Lease, Refused
from models.engines.preemption import RunEnded, run
from pipeline.trace import NullTracer
from tests.support.arbiter_config import GOOD
from tests.support.dispatchers import dispatcher_of
from tests.support.waiting import ended, until


class Talker:
    """A dialogue that generates a token every half millisecond until told to end."""

    def __init__(self, dispatcher: Dispatcher, session: str = "s") -> None:
        self.dispatcher = dispatcher
        self.session = session
        self.tokens = 0
        self.end = False
        self.stopped = ""
        self.granted = False
        self.thread = threading.Thread(target=self._run, daemon=True)
        self.thread.start()

    def _run(self) -> None:
        with self.dispatcher.lease("dialogue_task", session=self.session, kv_bytes=1 << 20) as lease:
            self.granted = True
            while not self.end and lease.boundary(1):
                self.tokens += 1
                time.sleep(0.0005)
            self.stopped = lease.stopped


def test_navigation_ends_the_run_that_the_dialogue_is_in_and_it_is_done_again() -> None:
    dispatcher = dispatcher_of(latency_sla="30s")
    runs: list[Any] = []

    def compute(options: Any) -> None:
        runs.append(options)
        if len(runs) == 1:
            until(lambda: options.terminate, "navigation ends the run")
            raise ValueError("terminated")

    def talk() -> None:
        lease = Lease(dispatcher, "dialogue_task")
        lease.take(redoes=True)
        try:
            while True:
                try:
                    run(compute)
                    break
                except RunEnded:
                    lease.boundary(0)
        finally:
            lease.give_back()
        run(runs.append)

    thread = threading.Thread(target=talk)
    thread.start()
    until(lambda: runs)
    with dispatcher.lease("navigation_task"):
        until(lambda: dispatcher.gates[1].parked == 1)
        assert len(runs) == 1
    ended(thread)
    assert len(runs) == 3
    assert runs[2] is None, "a thread that holds nothing is not under the task's switch"
    navigation, dialogue = dispatcher.status().tasks
    assert (navigation.preempted, dialogue.preempted) == (0, 1)
    assert dialogue.redone_ms > 0


def test_what_is_to_report_once_is_not_ended() -> None:
    dispatcher = dispatcher_of(latency_sla="30s")
    lease = Lease(dispatcher, "dialogue_task")
    lease.take(session="s", kv_bytes=1 << 20, redoes=True)
    assert dispatcher.evict("s") == "at its next boundary"
    assert lease.gate.closed
    assert run(lambda _options: "done") == "done"
    lease.give_back()


def test_navigation_parks_the_dialogue_and_it_comes_back() -> None:
    dispatcher = dispatcher_of(latency_sla="30s")
    talker = Talker(dispatcher)
    until(lambda: talker.tokens > 5)
    with dispatcher.lease("navigation_task") as lease:
        assert lease.lane == "navigation_task:1"
        assert lease.prefill_chunk_tokens == 256
        until(lambda: dispatcher.gates[1].parked == 1)
        held = talker.tokens
        time.sleep(0.05)
        assert talker.tokens == held
        assert [task.state for task in dispatcher.status().tasks] == ["running", "yielding"]
    until(lambda: talker.tokens > held + 5)
    talker.end = True
    ended(talker.thread)
    dispatcher.arbiter.check()
    assert dispatcher.gates[1].holders == 0
    assert dispatcher.arbiter.table.sessions["s"].pins == 0


def test_a_long_talker_gives_a_short_one_its_lane() -> None:
    dispatcher = dispatcher_of(latency_sla="50ms")
    long = Talker(dispatcher, "long")
    until(lambda: long.granted)
    short = Talker(dispatcher, "short")
    until(lambda: short.granted)
    short.end = True
    ended(short.thread)
    before = long.tokens
    until(lambda: long.tokens > before)
    long.end = True
    ended(long.thread)
    dispatcher.arbiter.check()


def test_refusals_and_stops_say_why() -> None:
    dispatcher = dispatcher_of(latency_sla="30s")
    with pytest.raises(Refused, match="memory"), dispatcher.lease("dialogue_task", session="x", kv_bytes=1 << 40):
        pass
    with pytest.raises(KeyError), dispatcher.lease("cooking_task"):
        pass
    talker = Talker(dispatcher, "s")
    until(lambda: talker.tokens > 0)
    assert dispatcher.evict("s") == "at its next boundary"
    ended(talker.thread)
    assert "evicted" in talker.stopped
    assert dispatcher.evict("s") == "unknown"


def test_a_paused_task_waits_and_times_out_with_its_reason() -> None:
    hasty = dispatcher_of(latency_sla="100ms", timeout="200ms")
    hasty.pause("dialogue_task")
    with pytest.raises(Refused, match="timeout"), hasty.lease("dialogue_task"):
        pass
    dispatcher = dispatcher_of(latency_sla="100ms")
    dispatcher.pause("dialogue_task")
    talker = Talker(dispatcher)
    time.sleep(0.05)
    assert not talker.granted
    dispatcher.resume("dialogue_task")
    until(lambda: talker.granted)
    talker.end = True
    ended(talker.thread)
    dispatcher.arbiter.check()


def test_the_first_token_is_reported_at_once_and_later_ones_together() -> None:
    dispatcher = dispatcher_of()
    with dispatcher.lease("dialogue_task") as lease:
        lease.boundary(0)
        assert lease.request.first_token_ns == 0
        lease.boundary(1)
        assert lease.request.first_token_ns > 0
        assert lease.request.tokens == 1
        lease.boundary(1)
        assert lease.request.tokens == 1
    assert dispatcher.arbiter.latency[1].count == 1


def test_a_lease_carries_the_arms_chunk_and_draft() -> None:
    mapping = deepcopy(GOOD)
    mapping["policy"] = {"prefill_chunk_tokens": [64], "draft_tokens": [3]}
    config = parse(mapping).config
    assert config is not None
    with Dispatcher(Arbiter(config, 100 << 20)).lease("dialogue_task") as lease:
        assert (lease.prefill_chunk_tokens, lease.draft_tokens) == (64, 3)


def test_an_eviction_acts_at_the_very_next_boundary_and_leaves_the_gate_open() -> None:
    dispatcher = dispatcher_of()
    with dispatcher.lease("dialogue_task", session="s", kv_bytes=1) as lease:
        assert lease.boundary(1)
        assert lease.boundary(1)
        assert dispatcher.evict("s") == "at its next boundary"
        assert not lease.boundary(1)
        assert not lease.gate.closed
    with dispatcher.lease("dialogue_task", session="s", kv_bytes=1):
        dispatcher.evict("s")
    with dispatcher.lease("dialogue_task", session="t", kv_bytes=1) as lease:
        assert not lease.gate.closed, "ended before it could report"
        assert lease.boundary(0)


def test_an_error_in_the_body_gives_the_lane_back() -> None:
    dispatcher = dispatcher_of()
    with pytest.raises(ZeroDivisionError), dispatcher.lease("dialogue_task"):
        _ = 1 / 0
    with dispatcher.lease("dialogue_task"):
        pass
    dispatcher.arbiter.check()


def test_many_threads_end_with_nothing_held() -> None:
    dispatcher = dispatcher_of(latency_sla="20ms")
    done: list[str] = []

    def run(task: str, index: int) -> None:
        for turn in range(10):
            with dispatcher.lease(task, session=f"{task}{index}", kv_bytes=1 << 20) as lease:
                for _ in range(5):
                    lease.boundary(1)
            done.append(f"{task}{index}{turn}")

    threads = [
        threading.Thread(target=run, args=(task, index), daemon=True)
        for task in ("navigation_task", "dialogue_task")
        for index in range(4)
    ]
    for thread in threads:
        thread.start()
    for thread in threads:
        ended(thread)
    assert len(done) == 80
    dispatcher.arbiter.check()
    assert dispatcher.arbiter.running_bits == dispatcher.arbiter.yield_bits == 0
    assert all(gate.holders == 0 for gate in dispatcher.gates)


class Spans(NullTracer):
    def __init__(self) -> None:
        super().__init__()
        self.names: list[str] = []

    def record(self, stage: str, turn_id: int, start_ns: int, end_ns: int, name: str = "") -> None:
        assert (stage, turn_id) == ("arbiter", 0)
        assert start_ns <= end_ns
        self.names.append(name)


def test_the_tracer_sees_waits_yields_and_stops_and_no_quiet_step() -> None:
    spans = Spans()
    dispatcher = Dispatcher(dispatcher_of(latency_sla="30s").arbiter, tracer=spans)
    with dispatcher.lease("dialogue_task") as lease:
        for _ in range(64):
            lease.boundary(1)
    assert spans.names == []
    talker = Talker(dispatcher)
    until(lambda: talker.tokens > 5)
    with dispatcher.lease("navigation_task"):
        until(lambda: dispatcher.gates[1].parked == 1)
    until(lambda: any(name == "dialogue_task yield" for name in spans.names))
    dispatcher.evict("s")
    ended(talker.thread)
    assert any(name.startswith("dialogue_task stop: ") for name in spans.names)
    dispatcher.pause("dialogue_task")
    waiting = Talker(dispatcher)
    until(lambda: dispatcher.arbiter.queues.waiting)
    dispatcher.resume("dialogue_task")
    until(lambda: waiting.granted)
    waiting.end = True
    ended(waiting.thread)
    assert any(name.startswith("dialogue_task wait: ") for name in spans.names)
