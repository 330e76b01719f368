"""The hundred tasks: each has an answer that its own grammar allows, and a wrong answer counts as wrong."""

from __future__ import annotations

import json

import pytest

from benchmarks.llm.tasks100 import Task, TaskSet
from pipeline.json_codec import validator

TASKS = TaskSet()


def _answer(task: Task) -> dict[str, object]:
    calls = [{"name": name, "arguments": dict(arguments)} for name, arguments in task.calls]
    return {"calls": calls, "say": "Done."}


def test_a_hundred_tasks_half_of_them_in_each_language() -> None:
    names = [task.name for task in TASKS.tasks]
    assert len(set(names)) == 100
    assert sum("-zh-" in name for name in names) == 50
    assert len({task.messages[-1]["content"] for task in TASKS.tasks}) == 100


@pytest.mark.parametrize("task", TASKS.tasks, ids=lambda task: task.name)
def test_the_right_answer_fits_the_schema_and_counts(task: Task) -> None:
    answer = _answer(task)
    validator(TASKS.schema)(answer)
    assert task.right(json.dumps(answer, ensure_ascii=False))


@pytest.mark.parametrize("task", TASKS.tasks, ids=lambda task: task.name)
def test_one_call_more_or_less_is_wrong(task: Task) -> None:
    answer = _answer(task)
    more = {**answer, "calls": [*answer["calls"], {"name": "media", "arguments": {"action": "pause"}}]}  # type: ignore[misc]
    assert not task.right(json.dumps(more))
    if task.calls:
        assert not task.right(json.dumps({**answer, "calls": []}))
    assert not task.right(json.dumps(answer)[:-3])


def test_another_number_or_place_is_wrong() -> None:
    by_name = {task.name: task for task in TASKS.tasks}
    cold = {"calls": [{"name": "set_temperature", "arguments": {"seat": "driver", "celsius": 20}}], "say": ""}
    assert not by_name["cli-en-01"].right(json.dumps(cold))
    elsewhere = {"calls": [{"name": "navigate_to", "arguments": {"place": "the harbour"}}], "say": ""}
    assert not by_name["nav-en-02"].right(json.dumps(elsewhere))
    as_flag = {"calls": [{"name": "set_window", "arguments": {"seat": "driver", "open_percent": False}}], "say": ""}
    assert not by_name["cli-zh-07"].right(json.dumps(as_flag))


def test_a_part_of_the_tasks_is_spread_over_the_kinds() -> None:
    some = TASKS.some(16)
    assert len(some) == 16
    assert len({task.kind for task in some}) >= 6
