"""Channels: policies, counters, closing, many threads, hop cost. Turns: generations, ids."""

from __future__ import annotations

import threading
import time

import numpy as np
import pytest
from numpy.typing import NDArray

from pipeline.channels import Channel, ChannelCounts, Closed, Policy
from pipeline.turns import Generations, TurnIds
from tests.support.waiting import LONG_S, ended


@pytest.mark.parametrize(
    ("policy", "kept", "answers"),
    [("drop_oldest", [2, 3], [True, True, False, False]), ("drop_newest", [0, 1], [True, True, False, False])],
)
def test_a_full_channel_drops_what_its_policy_says(policy: Policy, kept: list[int], answers: list[bool]) -> None:
    channel: Channel[int] = Channel("test", 2, policy)
    assert [channel.put(item) for item in range(4)] == answers
    assert channel.counts.dropped == 2
    assert channel.counts.high_water == 2
    assert channel.drain() == kept


def test_block_waits_for_room() -> None:
    channel: Channel[int] = Channel("test", 1, "block")
    channel.put(1)
    with pytest.raises(TimeoutError, match="stayed full"):
        channel.put(2, timeout_s=0.01)
    taker = threading.Timer(0.02, channel.get)
    taker.start()
    assert channel.put(2, timeout_s=LONG_S)
    taker.join()
    assert channel.counts == ChannelCounts(put=2, got=1, dropped=0, high_water=1)


def test_get_times_out() -> None:
    channel: Channel[int] = Channel("test", 1)
    start_s = time.monotonic()
    with pytest.raises(TimeoutError, match="nothing came"):
        channel.get(0.02)
    assert time.monotonic() - start_s >= 0.02


def test_close_hands_out_the_rest_and_wakes_waiters() -> None:
    channel: Channel[int] = Channel("test", 2)
    channel.put(7)
    channel.close()
    channel.close()
    assert channel.closed
    assert channel.get() == 7
    with pytest.raises(Closed):
        channel.get()
    with pytest.raises(Closed):
        channel.put(8)


@pytest.mark.parametrize("full", [True, False])
def test_close_wakes_a_blocked_thread(full: bool) -> None:
    channel: Channel[int] = Channel("test", 1)
    outcomes: list[type[BaseException]] = []

    def wait() -> None:
        try:
            channel.put(2) if full else channel.get()
        except Closed:
            outcomes.append(Closed)

    if full:
        channel.put(1)
    thread = threading.Thread(target=wait)
    thread.start()
    time.sleep(0.02)  # most likely it waits by now; where it does not yet, the answer is the same
    channel.close()
    ended(thread)
    assert outcomes == [Closed]


def test_nothing_is_lost_or_doubled_between_threads() -> None:
    channel: Channel[int] = Channel("test", 3)
    taken: list[list[int]] = [[], []]

    def take(into: list[int]) -> None:
        try:
            while True:
                into.append(channel.get())
        except Closed:
            return

    def give(start: int) -> None:
        for item in range(start, start + 500):
            channel.put(item)

    takers = [threading.Thread(target=take, args=(part,)) for part in taken]
    givers = [threading.Thread(target=give, args=(start,)) for start in (0, 500)]
    for thread in takers + givers:
        thread.start()
    for thread in givers:
        thread.join()
    channel.close()
    for thread in takers:
        thread.join()
    assert sorted(taken[0] + taken[1]) == list(range(1000))
    assert channel.counts.high_water <= 3


@pytest.mark.parametrize(("capacity", "policy"), [(0, "block"), (1, "sometimes")])
def test_a_channel_without_room_or_policy_is_refused(capacity: int, policy: Policy) -> None:
    with pytest.raises(ValueError, match="channel test"):
        Channel("test", capacity, policy)


def test_a_hop_copies_nothing_and_costs_less_than_100_us_of_this_thread() -> None:
    """The thread's own CPU time, so that a busy machine changes nothing; a copy of 64 MB would take 100 times as long.

    What a hop takes on the wall, P50 and P99, is measured by `python -m benchmarks serialise`.
    """
    channel: Channel[NDArray[np.uint8]] = Channel("test", 2)
    message = np.zeros(64 << 20, np.uint8)
    begin_ns = time.thread_time_ns()
    for _ in range(200):
        channel.put(message)
        assert channel.get() is message
    assert (time.thread_time_ns() - begin_ns) / 200 < 100_000


def test_a_waiting_reader_sleeps_until_it_is_woken() -> None:
    channel: Channel[int] = Channel("test", 1)
    used_ns: list[int] = []

    def take() -> None:
        begin_ns = time.thread_time_ns()
        channel.get()
        used_ns.append(time.thread_time_ns() - begin_ns)

    reader = threading.Thread(target=take)
    reader.start()
    time.sleep(0.3)
    channel.put(1)
    reader.join()
    assert used_ns[0] < 30_000_000  # a reader that polls or spins would have used most of the 300 ms


def test_generations_make_older_messages_stale() -> None:
    generations = Generations()
    sent = generations.current
    assert not generations.is_stale(sent)
    assert generations.bump() == sent + 1
    assert generations.is_stale(sent)
    assert not generations.is_stale(generations.current)


def test_turn_ids_are_unique_across_threads() -> None:
    ids = TurnIds()
    seen: list[int] = []
    threads = [threading.Thread(target=lambda: seen.extend(ids.next() for _ in range(200))) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert sorted(seen) == list(range(1, 801))
