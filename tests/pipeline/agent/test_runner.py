"""Tools beside each other: each in its own time, none in another's way, results kept where that is allowed."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator
from typing import Any

import pytest

from models.errors import InputError
from pipeline.agent.runner import ToolRunner
from pipeline.agent.tools import AgentCall, AgentTool, Toolset

PARAMETERS = {"type": "object", "properties": {"n": {"type": "integer"}}, "additionalProperties": False}
LONG_S = 60.0
"""Longer than any of these tests: only an event ends a call, or its own short limit."""


def tool(name: str, run: Callable[[Any], Any], **more: Any) -> AgentTool:
    return AgentTool(name, {"en": name, "zh": name}, "", PARAMETERS, run, **more)


class _Held:
    """A tool that runs until it is let go."""

    def __init__(self) -> None:
        self.began = threading.Semaphore(0)
        self.go = threading.Event()
        self.calls = 0

    def __call__(self, arguments: Any) -> dict[str, int]:
        self.calls += 1
        self.began.release()
        self.go.wait(LONG_S)
        return {"n": arguments.get("n", 0)}


@pytest.fixture
def held() -> Iterator[_Held]:
    made = _Held()
    yield made
    made.go.set()


@pytest.fixture
def runner_of() -> Iterator[Callable[..., ToolRunner]]:
    made: list[ToolRunner] = []

    def build(*tools: AgentTool, **more: Any) -> ToolRunner:
        made.append(ToolRunner(Toolset(tools), **{"timeout_s": LONG_S, **more}))
        return made[-1]

    yield build
    for runner in made:
        runner.close()


def calls(name: str, *numbers: int) -> list[AgentCall]:
    return [AgentCall(name, {"n": number}) for number in numbers]


def test_independent_calls_run_beside_each_other(runner_of: Any) -> None:
    """Each waits for the other: one after the other they would never end."""
    together = threading.Barrier(3, timeout=LONG_S)

    def meet(arguments: Any) -> dict[str, int]:
        together.wait()
        return {"n": arguments["n"]}

    runner = runner_of(tool("a", meet), tool("b", meet))
    outcomes = runner.run([*calls("a", 1, 2), *calls("b", 3)])
    assert [outcome.result for outcome in outcomes] == [{"n": 1}, {"n": 2}, {"n": 3}]


def test_no_more_than_max_parallel(runner_of: Any) -> None:
    lock, running, most = threading.Lock(), 0, 0

    def count(arguments: Any) -> dict[str, int]:
        nonlocal running, most
        with lock:
            running += 1
            most = max(most, running)
        threading.Event().wait(0.01)
        with lock:
            running -= 1
        return {}

    runner = runner_of(tool("a", count), max_parallel=2)
    assert len(runner.run(calls("a", *range(8)))) == 8
    assert most <= 2


def test_a_slow_tool_is_given_up_and_the_others_are_not(runner_of: Any, held: _Held) -> None:
    runner = runner_of(tool("slow", held, timeout_s=0.05), tool("quick", dict), max_parallel=1)
    slow, quick = runner.run([*calls("slow", 1), *calls("quick", 2)])
    assert (slow.status, quick.status) == ("timed_out", "done")
    again, other = runner.run([*calls("slow", 1), *calls("quick", 3)])
    assert (again.status, other.status) == ("busy", "done")
    assert held.calls == 1
    held.go.set()
    for _ in range(1000):  # until the abandoned call has ended
        if runner.run(calls("slow", 1))[0].status == "done":
            break
        threading.Event().wait(0.01)
    assert runner.run(calls("slow", 1))[0].status == "done"


def test_many_stuck_tools_leave_room_for_another(runner_of: Any, held: _Held) -> None:
    stuck = [tool(f"stuck{i}", held, timeout_s=0.02) for i in range(6)]
    runner = runner_of(*stuck, tool("quick", dict), max_parallel=2)
    outcomes = runner.run([call for one in stuck for call in calls(one.name, 1)])
    assert {outcome.status for outcome in outcomes} == {"timed_out"}
    assert runner.run(calls("quick", 1))[0].status == "done"


def test_cancelling_drops_all_of_it(runner_of: Any, held: _Held) -> None:
    stop = threading.Event()
    runner = runner_of(tool("slow", held), tool("quick", dict))
    asked = []

    def cancelled() -> bool:
        asked.append(1)
        if held.began.acquire(blocking=False):
            stop.set()
        return stop.is_set()

    assert runner.run([*calls("quick", 1), *calls("slow", 1)], cancelled=cancelled) is None
    assert runner.run(calls("quick", 1))[0].status == "done"


def test_a_tool_that_fails_is_told_apart(runner_of: Any) -> None:
    def fail(arguments: Any) -> dict[str, int]:
        raise OSError("no route to host")

    runner = runner_of(tool("bad", fail), tool("list", lambda _: [1]), tool("big", lambda _: {"x": "y" * 20000}))
    bad, unknown, wrong, odd, big = runner.run(
        [*calls("bad", 1), *calls("gone", 1), AgentCall("bad", {"n": "x"}), *calls("list", 1), *calls("big", 1)]
    )
    assert {outcome.status for outcome in (bad, unknown, wrong, odd, big)} == {"failed"}
    assert "no route to host" in bad.reason
    assert "gone" in unknown.reason
    assert "16 KiB" in odd.reason == big.reason


def test_results_are_used_again_until_their_time_is_over(runner_of: Any) -> None:
    now_ns, called = 0, 0

    def count(arguments: Any) -> dict[str, int]:
        nonlocal called
        called += 1
        return {"n": called}

    runner = runner_of(
        tool("kept", count, ttl_s=10.0), tool("fresh", count), ttl_s={"fresh": 1.0}, clock_ns=lambda: now_ns
    )
    first, second = (runner.run(calls("kept", 1))[0] for _ in range(2))
    assert (first.result, second.result, second.cached) == ({"n": 1}, {"n": 1}, True)
    assert not runner.run(calls("kept", 2))[0].cached, "other arguments are another call"
    assert not runner.run(calls("fresh", 1))[0].cached
    assert runner.run(calls("fresh", 1))[0].cached, "the profile's time goes before the tool's"
    now_ns = 11_000_000_000
    assert not runner.run(calls("kept", 1))[0].cached


def test_what_acts_is_never_from_a_cache_and_only_done_when_confirmed(runner_of: Any) -> None:
    answers = [{"confirmed": True}, {"confirmed": True}, {"confirmed": False}, {}]
    act = tool("act", lambda _: answers.pop(0), acts=True, words={"en": ("act",), "zh": ("行动",)})
    runner = runner_of(act)
    statuses = [runner.run(calls("act", 1))[0].status for _ in range(4)]
    assert statuses == ["done", "done", "failed", "failed"]
    with pytest.raises(InputError, match="acts"):
        tool("act", dict, acts=True, ttl_s=1.0, words={"en": ("act",)})
    with pytest.raises(InputError, match="words"):
        tool("act", dict, acts=True)
    with pytest.raises(InputError, match="acts"):
        runner_of(act, ttl_s={"act": 5.0})


def test_equal_calls_run_once_and_a_closed_runner_none(runner_of: Any) -> None:
    called: list[Any] = []

    def note(arguments: Any) -> dict[str, int]:
        called.append(arguments)
        return {}

    runner = runner_of(tool("a", note))
    assert [outcome.status for outcome in runner.run(calls("a", 1, 1, 1))] == ["done"] * 3
    assert len(called) == 1
    runner.close()
    assert runner.run(calls("a", 2))[0].status == "failed"


@pytest.mark.parametrize("name", ["navigate_to", "Big", "", "a b", "set_window"])
def test_names_that_no_tool_can_have(name: str) -> None:
    with pytest.raises(InputError, match="no name"):
        tool(name, dict)
    with pytest.raises(InputError, match="two tools"):
        Toolset([tool("a", dict), tool("a", dict)])
