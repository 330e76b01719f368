"""A batch under the arbiter: it makes room for its own task's other requests, and each text stands for itself."""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator
from types import SimpleNamespace
from typing import Any, cast

import pytest

from cockpit.arbiter.status import DraftStatus
from cockpit.scheduling.batch_lease import BatchLease, BatchMember
from cockpit.scheduling.dispatcher import Dispatcher, Refused
from cockpit.scheduling.llm_lease import EvictedSessions, TaskLane
from models.engines.llm.session import LmSession
from tests.support.dispatchers import dispatcher_of
from tests.support.waiting import until

TASK = "dialogue_task"
MIB = 1 << 20


class Session:
    """What a lease sees of a text."""

    def __init__(self, name: str, kv_mib: int) -> None:
        self.name = name
        self.kv_bytes = kv_mib * MIB
        self.forgotten = 0
        self.drafted = 0
        self.accepted = 0

    def forget(self) -> None:
        self.forgotten += 1


class Rig:
    """One batch of the dialogue task. Its arena holds 100 MiB."""

    def __init__(self, **dialogue: Any) -> None:
        self.dispatcher: Dispatcher = dispatcher_of(**dialogue)
        self.evicted = EvictedSessions()
        self.dispatcher.arbiter.memory._on_evict = self.evicted.note
        lane = cast(TaskLane, SimpleNamespace(enter=lambda *_: None, step_aside=lambda: None, leave=lambda: None))
        self.lease = BatchLease(self.dispatcher, TASK, lane, self.evicted)

    def drafts(self) -> DraftStatus | None:
        return next(task.drafts for task in self.dispatcher.status().tasks if task.name == TASK)

    def join(self, session: Session) -> BatchMember | None:
        return self.lease.join(cast(LmSession, session), time.monotonic_ns())


@pytest.fixture
def rig() -> Iterator[Rig]:
    made = Rig()
    assert made.lease.wait(bool)
    yield made
    made.lease.give_back()  # or runs of this thread would end by its switch for ever


def test_another_request_of_the_task_goes_at_the_next_boundary(rig: Rig) -> None:
    order: list[str] = []

    def spoken_turn() -> None:
        with rig.dispatcher.lease(TASK):
            order.append("turn")
            time.sleep(0.05)
            order.append("turn over")

    turn = threading.Thread(target=spoken_turn)
    turn.start()
    until(lambda: rig.lease.gate.closed)
    assert order == []  # not before the boundary
    assert rig.lease.boundary(4)
    order.append("batch")
    turn.join()
    assert order == ["turn", "turn over", "batch"]
    assert not rig.lease.gate.closed
    for _ in range(100):
        assert rig.lease.boundary(4)
    rig.lease.give_back()
    rig.dispatcher.arbiter.check()


def test_a_batch_outlives_the_time_of_a_request_but_its_texts_do_not() -> None:
    rig = Rig(timeout="1s")
    assert rig.lease.wait(bool)
    member = rig.join(Session("a", 1))
    assert member is not None
    late = time.monotonic() + 1.2
    while time.monotonic() < late:
        assert rig.lease.boundary(1)
        time.sleep(0.01)
    assert "timeout" in member.report(16)
    member.leave()
    fresh = rig.join(Session("b", 1))
    assert fresh is not None
    assert fresh.report(16) == ""
    fresh.leave()
    rig.lease.give_back()


def test_a_text_whose_prompt_outlasts_the_timeout_is_stopped_before_its_first_token() -> None:
    rig = Rig(timeout="1s")
    assert rig.lease.wait(bool)
    arrived_ns = time.monotonic_ns() - 2_000_000_000
    member = rig.lease.join(cast(LmSession, Session("a", 1)), arrived_ns)
    assert member is not None
    assert "timeout" in member.report(0)
    member.leave()
    rig.lease.give_back()
    rig.dispatcher.arbiter.check()


def test_memory_of_texts_that_run_is_kept_and_of_idle_ones_taken(rig: Rig) -> None:
    idle, running, third = Session("idle", 40), Session("running", 40), Session("third", 40)
    first = rig.join(idle)
    assert first is not None
    first.leave()
    second = rig.join(running)
    assert second is not None
    assert rig.join(third) is not None  # in the place of the idle one
    assert rig.evicted.take("idle")
    assert rig.join(Session("fourth", 40)) is None  # both others run
    assert second.report(16) == ""
    second.leave()
    assert rig.join(Session("fourth", 40)) is not None
    with pytest.raises(Refused, match="more memory"):
        rig.join(Session("huge", 200))
    rig.dispatcher.arbiter.check()


def test_a_text_that_grows_books_more_or_is_told_to_wait(rig: Rig) -> None:
    small, other = Session("small", 10), Session("other", 60)
    member, beside = rig.join(small), rig.join(other)
    assert member is not None
    assert beside is not None
    small.kv_bytes = 30 * MIB
    assert member.grow()
    small.kv_bytes = 60 * MIB
    assert not member.grow()
    beside.leave()
    assert member.grow()  # the other one is idle now, and goes
    assert rig.evicted.take("other")
    member.leave()
    rig.lease.give_back()
    rig.dispatcher.arbiter.check()
    assert not rig.dispatcher.arbiter.table.sessions["small"].pins


def test_an_evicted_text_stops_alone(rig: Rig) -> None:
    one, two = Session("one", 1), Session("two", 1)
    first, second = rig.join(one), rig.join(two)
    assert first is not None
    assert second is not None
    assert rig.dispatcher.evict("one") == "at its next boundary"
    assert "evicted" in first.report(1)
    assert second.report(1) == ""
    assert rig.lease.boundary(2)
    first.leave()
    assert one.forgotten == 1
    second.leave()
    assert two.forgotten == 0


def test_a_paused_task_lets_nobody_in_and_those_inside_go_on(rig: Rig) -> None:
    member = rig.join(Session("inside", 1))
    assert member is not None
    rig.dispatcher.pause(TASK)
    assert rig.join(Session("outside", 1)) is None
    assert member.report(16) == ""
    assert rig.lease.boundary(16)
    rig.dispatcher.resume(TASK)
    assert rig.join(Session("outside", 1)) is not None


def test_each_text_is_measured_from_its_arrival(rig: Rig) -> None:
    arbiter = rig.dispatcher.arbiter
    index = arbiter.task_index[TASK]
    arrived_ns = time.monotonic_ns() - 300_000_000
    member = rig.lease.join(cast(LmSession, Session("a", 1)), arrived_ns)
    assert member is not None
    for _ in range(4):
        member.report(1)
        assert rig.lease.boundary(1)
    member.leave()
    assert arbiter.latency[index].count == 1
    assert arbiter.latency[index].max_ns >= 300_000_000
    assert arbiter.waited[index].max_ns >= 300_000_000
    rig.lease.give_back()
    assert arbiter.latency[index].count == 1  # the batch itself is nobody's request
    assert arbiter.tokens[index] == 4


def test_what_a_text_drafts_is_counted_for_its_task(rig: Rig) -> None:
    text = Session("api-1", 10)
    text.drafted = text.accepted = 50  # under another task
    member = rig.join(text)
    assert member is not None
    assert rig.drafts() is None
    text.drafted, text.accepted = 56, 53
    member.report(16)
    text.drafted, text.accepted = 60, 54
    member.leave()
    shown = rig.drafts()
    assert shown is not None
    assert (shown.offered, shown.accepted, shown.acceptance) == (10, 4, 0.4)
    rig.lease.give_back()
