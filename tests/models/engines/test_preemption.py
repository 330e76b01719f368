"""Runs that are ended for somebody more urgent: which ones, what is counted, and that nobody is starved."""

from __future__ import annotations

import threading
from typing import Any

import numpy as np
import pytest

from models.engines.preemption import MOST_ENDED, RunEnded, RunSwitch, redone, run
from tests.support.waiting import ended, until


def obedient(options: Any) -> str:
    """As a session does: looks at the flag before each node."""
    until(lambda: options.terminate, "the run is ended")
    raise ValueError("Exiting due to terminate flag being set to true.")


def test_a_closed_switch_ends_the_run_of_its_thread_only() -> None:
    switch, other = RunSwitch(), RunSwitch()
    seen: list[Any] = []

    def noted(options: Any) -> str:
        seen.append(options)
        return obedient(options)

    def compute() -> None:
        with switch.over_runs(), other.over_runs():
            try:
                run(noted)
            except RunEnded:
                seen.append("ended")

    thread = threading.Thread(target=compute)
    thread.start()
    until(lambda: seen)
    other.close()
    ended(thread)
    assert seen[1:] == ["ended"]
    assert (switch.ended, other.ended) == (1, 1)
    assert switch.lost_ns > 0
    free = threading.Thread(target=lambda: seen.append(run(lambda options: options)))
    free.start()
    ended(free)
    assert seen[2:] == [None], "a thread under no switch runs without options to end it by"


def test_nothing_begins_while_it_is_closed_and_that_counts_as_no_run() -> None:
    switch = RunSwitch()
    begun: list[int] = []
    switch.close()
    with switch.over_runs():
        with pytest.raises(RunEnded):
            run(lambda _options: begun.append(1))
        switch.open()
        run(lambda _options: begun.append(2))
    assert begun == [2]
    assert (switch.ended, switch.lost_ns) == (0, 0)


def test_after_some_ends_in_a_row_a_run_goes_to_its_end() -> None:
    switch = RunSwitch()
    with switch.over_runs():
        for _ in range(2):
            switch.close()
            for _ in range(MOST_ENDED):
                with pytest.raises(RunEnded):
                    run(lambda _options: "done")
            assert run(lambda _options: "done") == "done"
            switch.open()


def test_a_run_that_fails_by_itself_is_not_taken_for_an_ended_one() -> None:
    switch = RunSwitch()

    def fails(_options: Any) -> None:
        raise ValueError("no such input")

    with switch.over_runs(), pytest.raises(ValueError, match="no such input"):
        run(fails)
    assert switch.ended == 0


def test_a_voice_hands_out_an_empty_chunk_for_each_end_and_then_the_result() -> None:
    results = iter([RunEnded(), RunEnded(), np.ones(3, np.float32)])

    def work() -> Any:
        result = next(results)
        if isinstance(result, Exception):
            raise result
        return result

    def voice() -> Any:
        yield (yield from redone(work))

    assert [chunk.size for chunk in voice()] == [0, 0, 3]
