"""Bulk copies of several lanes: one chunk at a time, the urgent task's first, nothing lost when one fails."""

from __future__ import annotations

import threading
from collections.abc import Callable

import pytest

from cockpit.scheduling.copy_scheduler import CHUNK_BYTES, CopyScheduler
from tests.support.waiting import LONG_S, ended, until

LANES = {"navigation:1": 0, "dialogue:1": 1, "dialogue:2": 1}


@pytest.fixture
def turns() -> CopyScheduler:
    return CopyScheduler(LANES, (9, 5))


def started(work: Callable[[], None]) -> threading.Thread:
    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    return thread


def test_every_byte_is_moved_once_and_in_order(turns: CopyScheduler) -> None:
    moved: list[tuple[int, int]] = []
    turns.copy("dialogue:1", 2 * CHUNK_BYTES + 7, lambda offset, size: moved.append((offset, size)))
    assert moved == [(0, CHUNK_BYTES), (CHUNK_BYTES, CHUNK_BYTES), (2 * CHUNK_BYTES, 7)]
    assert (turns.chunks, turns.waited) == (3, 0)


def test_an_urgent_copy_waits_for_one_chunk_at_most(turns: CopyScheduler) -> None:
    order: list[str] = []
    under_way, go_on = threading.Event(), threading.Event()

    def slow(offset: int, _size: int) -> None:
        order.append(f"dialogue {offset // CHUNK_BYTES}")
        under_way.set()
        assert go_on.wait(LONG_S)

    long = started(lambda: turns.copy("dialogue:1", 4 * CHUNK_BYTES, slow))
    assert under_way.wait(LONG_S)
    urgent = started(
        lambda: turns.copy("navigation:1", 2 * CHUNK_BYTES, lambda o, _: order.append(f"navigation {o // CHUNK_BYTES}"))
    )
    until(lambda: len(turns._queue._transfers) == 2)
    go_on.set()
    for thread in (long, urgent):
        ended(thread)
    assert order == ["dialogue 0", "navigation 0", "navigation 1", "dialogue 1", "dialogue 2", "dialogue 3"]
    assert turns.waited >= 1


def test_chunks_never_overlap(turns: CopyScheduler) -> None:
    busy = threading.Lock()
    overlaps: list[int] = []

    def move(offset: int, _size: int) -> None:
        if not busy.acquire(blocking=False):
            overlaps.append(offset)
            return
        threading.Event().wait(0.0005)
        busy.release()

    lanes = [*LANES] * 3
    threads = [started(lambda lane=lane: turns.copy(lane, 7 * CHUNK_BYTES, move)) for lane in lanes]  # type: ignore[misc]
    for thread in threads:
        ended(thread)
    assert not overlaps
    assert turns.chunks == 7 * len(lanes)
    assert turns._queue.queued_bytes == 0


def test_a_copy_that_fails_leaves_the_way_free(turns: CopyScheduler) -> None:
    under_way, go_on = threading.Event(), threading.Event()
    failures: list[str] = []

    def fail(_offset: int, _size: int) -> None:
        under_way.set()
        assert go_on.wait(LONG_S)
        raise OSError("the bus is gone")

    def broken() -> None:
        with pytest.raises(OSError, match="bus"):
            turns.copy("dialogue:1", 9 * CHUNK_BYTES, fail)
        failures.append("seen")

    first = started(broken)
    assert under_way.wait(LONG_S)
    others = [started(lambda: turns.copy("dialogue:2", 3 * CHUNK_BYTES, lambda *_: None)) for _ in range(4)]
    go_on.set()
    for thread in (first, *others):
        ended(thread)
    assert failures == ["seen"]
    turns.copy("navigation:1", 1, lambda *_: None)


def test_more_transfers_than_the_queue_holds_wait() -> None:
    turns = CopyScheduler(LANES, (9, 5), limit=2)
    threads = [started(lambda: turns.copy("dialogue:1", CHUNK_BYTES + 1, lambda *_: None)) for _ in range(12)]
    for thread in threads:
        ended(thread)
    assert turns.chunks == 24


def test_an_unknown_lane_is_an_error(turns: CopyScheduler) -> None:
    with pytest.raises(KeyError):
        turns.copy("nowhere", 5, lambda *_: None)
