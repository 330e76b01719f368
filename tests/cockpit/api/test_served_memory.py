"""Texts of API requests under the arbiter: shown as candidates, evicted by an operator, given back at once."""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, replace
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import pytest
from typer.testing import CliRunner

from cockpit.api.service import Api, open_api
from cockpit.assemble import Assembly
from cockpit.cli.o3ctl import app
from cockpit.client import Cockpit
from cockpit.profile.load import load_profile
from cockpit.scheduling.engine_turns import EngineTurns
from cockpit.scheduling.service import SchedulingPlan, SchedulingService, open_service
from models.engines.llm.causal_lm import CausalLM
from tests.support.arbiter_config import patient
from tests.support.paths import short_folder
from tests.support.waiting import LONG_S, until

QUESTION = "Why is the sky blue?"
PARTS = SimpleNamespace(guidance=None, dialogue=SimpleNamespace(remote=None))


@dataclass(frozen=True)
class Served:
    """A process with an API and a control socket, but without speech."""

    api: Api
    control: Path
    service: SchedulingService

    def ctl(self, *words: str) -> str:
        result = CliRunner().invoke(app, [*words, "--socket", str(self.control)], env={"COLUMNS": "200"})
        assert result.exit_code == 0, result.output
        return result.output

    def status(self) -> dict[str, Any]:
        shown: dict[str, Any] = json.loads(self.ctl("status", "--verbose", "--json"))
        return shown

    def ask(self, name: str) -> str:
        return Cockpit(str(self.api.server.path), 300.0).chat(QUESTION, max_tokens=6, session=name)


@pytest.fixture(scope="module")
def served(model_dir: Callable[[str], Path]) -> Iterator[Served]:
    loaded = load_profile("cpu")
    assert loaded.arbiter is not None
    lm = CausalLM.load(model_dir("smollm2-135m-instruct-f32"), context_tokens=256)
    with short_folder() as folder:
        service = open_service(SchedulingPlan(patient(loaded.arbiter), folder / "o3.sock"), "cpu")
        engines = SimpleNamespace(
            model=lm, background=lm, recogniser=None, voices={}, asr_turns=EngineTurns(), tts_turns=EngineTurns()
        )
        assembly = SimpleNamespace(engines=engines, placements=SimpleNamespace(llm=None), service=service, parts=PARTS)
        api = open_api(loaded.profile, cast(Assembly, assembly), folder / "api.sock")
        yield Served(api, folder / "o3.sock", service)
        api.close()
        service.close()


def test_texts_of_requests_are_candidates_and_eviction_gives_their_memory_back(served: Served) -> None:
    expected = served.ask("a")
    [candidate] = [item for item in served.status()["status"]["eviction_candidates"] if item["uses"]]
    assert candidate["session"].startswith("api-")
    assert candidate["task"] == "dialogue_task"
    text = served.api.texts[0]
    assert 0 < candidate["bytes"] < text.pool.status().sessions[0][2] * text.model.open_session().bytes_of(1) * 4
    assert text.pool.status().cached_tokens > 0
    assert "evicted" in served.ctl("evict", candidate["session"])
    until(lambda: text.pool.status().cached_tokens == 0)
    assert text.pool.status().parked.bytes == 0
    assert served.status()["status"]["eviction_candidates"] == []
    assert served.ask("a") == expected


def test_what_the_api_counts_stands_in_the_status_and_in_top(served: Served) -> None:
    served.ask("b")
    reply = served.status()
    counted = reply["api"]["models"]["qwen2.5-coder-0.5b-instruct"]
    assert counted["tasks"]["dialogue_task"]["decode_tokens"] > 0
    [task] = [task for task in reply["status"]["tasks"] if task["name"] == "dialogue_task"]
    assert task["tokens"] > 0
    assert 0 < task["tpot"]["p50_ms"] <= task["tpot"]["p95_ms"] <= task["tpot"]["p99_ms"]
    assert task["queue"]["p50_ms"] <= task["queue"]["p99_ms"]
    assert task["p50_ms"] <= task["p95_ms"] <= task["p99_ms"]
    shown = served.ctl("top", "--once")
    assert "dialogue_task" in shown
    assert "0 running, 0 waiting" in shown
    assert "batch: up to 4 of 4 texts" in shown
    assert counted["batch"]["steps"] > 0
    assert counted["decoder"] == "onnxruntime"
    assert counted["tasks"]["dialogue_task"]["prefill_ms"]["p99"] > 0


def test_a_long_background_text_is_sliced_where_a_short_request_waits(served: Served) -> None:
    """The short one is answered in its midst; the long one waits at a token and says what it says alone."""
    path, long = str(served.api.server.path), {"task": "background", "max_tokens": 150}
    alone = Cockpit(path, LONG_S).chat("Count from one to forty in words.", **long)
    dispatcher = served.service.dispatcher
    gate = dispatcher.gates[dispatcher.arbiter.task_index["background_task"]]
    waits = gate.waits
    for _ in range(6):  # the long one may be over before the short one comes
        going = Cockpit(path, LONG_S).chat_stream("Count from one to forty in words.", **long)
        said = [next(going)]
        rest = ThreadPoolExecutor(1).submit(list, going)
        assert Cockpit(path, LONG_S).chat(QUESTION, task="dialogue", max_tokens=2)
        in_its_midst = not rest.done()
        assert "".join([*said, *rest.result(LONG_S)]) == alone
        if in_its_midst:
            break
    assert in_its_midst
    assert gate.waits > waits


def test_dozens_of_sessions_are_served_while_the_arbiter_evicts(model_dir: Callable[[str], Path]) -> None:
    """Their caches are more than the task's memory: the oldest go, everybody is answered, and o3ctl shows it."""
    loaded = load_profile("cpu")
    assert loaded.arbiter is not None
    config = patient(loaded.arbiter)
    small = replace(config.tasks["dialogue_task"], memory_budget_mb=24)
    config = replace(config, tasks={**config.tasks, "dialogue_task": small})
    lm = CausalLM.load(model_dir("smollm2-135m-instruct-f32"), context_tokens=256)
    with short_folder() as folder:
        service = open_service(SchedulingPlan(config, folder / "o3.sock"), "cpu")
        engines = SimpleNamespace(
            model=lm, background=lm, recogniser=None, voices={}, asr_turns=EngineTurns(), tts_turns=EngineTurns()
        )
        assembly = SimpleNamespace(engines=engines, placements=SimpleNamespace(llm=None), service=service, parts=PARTS)
        api = open_api(loaded.profile, cast(Assembly, assembly), folder / "api.sock")
        crowd = Served(api, folder / "o3.sock", service)
        try:
            with ThreadPoolExecutor(6) as clients:
                answers = list(clients.map(crowd.ask, [f"dialogue-{number}" for number in range(24)]))
            memory = crowd.status()["status"]["memory"]
            candidates = crowd.status()["status"]["eviction_candidates"]
            open_texts = api.texts[0].pool.status()
        finally:
            api.close()
            service.close()
    assert len(set(answers)) == 1
    assert open_texts.open == 24
    assert memory["evictions"] >= 8
    assert memory["held_mb"] <= 24
    assert 0 < len(candidates) < 16
    assert open_texts.bytes <= 24 << 20
