"""A process with a background model of its own, as `cockpit serve` runs it: which model answers, who yields, memory."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import pytest

from cockpit.api.service import open_api
from cockpit.arbiter.config import BACKGROUND, DIALOGUE
from cockpit.assemble import assemble
from cockpit.profile.load import load_profile
from cockpit.runtime import NullSink
from cockpit.scheduling.service import SchedulingPlan
from models.engines.llm.session import LmSession
from models.store.store import Store
from tests.support.waiting import LONG_S, until

QWEN, SMOL = "qwen2.5-coder-0.5b-instruct", "smollm2-135m-instruct"
PROFILE = f"""
extends: cpu
llm:
  dialogue: {{context_tokens: 512}}
  background: {{model: {SMOL}, context_tokens: 512, threads: 1}}
api: {{grants: {{"*": [dialogue_task, background_task]}}}}
"""
TRIES = 6
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Count to forty in words."}]}


@pytest.fixture(scope="module")
def served(tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`client`, `service`; `warmed`: bytes a token of the models that ran while it started."""
    folder = tmp_path_factory.mktemp("two")
    (folder / "two.yaml").write_text(PROFILE, encoding="utf-8")
    store = Store.open()
    store.ensure(SMOL)
    loaded = load_profile(str(folder / "two.yaml"))
    assert loaded.arbiter is not None
    warmed: set[int] = set()
    generate = LmSession.generate

    def noted(session: LmSession, *args: Any, **more: Any) -> Any:
        warmed.add(session.bytes_of(1))
        return generate(session, *args, **more)

    with pytest.MonkeyPatch.context() as patched:
        patched.setattr(LmSession, "generate", noted)
        assembly = assemble(loaded.profile, store, NullSink(), scheduling=SchedulingPlan(loaded.arbiter), api_texts=2)
    api = open_api(loaded.profile, assembly, folder / "api.sock")
    transport = httpx.HTTPTransport(uds=str(folder / "api.sock"))
    with httpx.Client(transport=transport, base_url="http://cockpit", timeout=LONG_S) as client:
        yield SimpleNamespace(client=client, service=assembly.service, assembly=assembly, api=api, warmed=warmed)
    api.close()
    assembly.close()


def ask(served: Any, **fields: Any) -> dict[str, Any]:
    reply = served.client.post("/v1/chat/completions", json=ASKED | {"max_tokens": 2} | fields)
    assert reply.status_code == 200, reply.text
    answer: dict[str, Any] = reply.json()
    return answer


def test_every_model_is_loaded_once_and_warm(served: Any) -> None:
    engines = served.assembly.engines
    assert engines.model is not engines.background
    assert served.warmed == {engines.model.token_bytes, engines.background.token_bytes}


def test_each_task_has_its_model(served: Any) -> None:
    assert ask(served)["model"] == QWEN
    assert ask(served, task="background")["model"] == SMOL


def test_texts_are_in_the_budget_of_their_models_task(served: Any) -> None:
    ask(served, task="dialogue", session="mine")
    ask(served, task="background", session="notes")
    owners = {item.session: item.task for item in served.service.dispatcher.status(verbose=True).eviction_candidates}
    models = {text.model: text.pool.status().sessions for text in served.api.texts}
    of_talk = [name for name, _, cached, _ in models[served.assembly.engines.model] if cached]
    of_own = [name for name, _, cached, _ in models[served.assembly.engines.background] if cached]
    assert {owners[name] for name in of_talk} == {DIALOGUE}
    assert {owners[name] for name in of_own} == {BACKGROUND}


def test_the_background_model_yields_at_a_token_and_goes_on_with_the_same_words(served: Any) -> None:
    alone = ask(served, task="background", max_tokens=96)["choices"][0]["message"]["content"]
    dispatcher = served.service.dispatcher
    gate = dispatcher.gates[dispatcher.arbiter.task_index[BACKGROUND]]
    parked = 0
    for _ in range(TRIES):  # a text may end before the lane is asked for
        text = Streamed(served.client)
        assert text.going.wait(LONG_S)
        with dispatcher.lease(DIALOGUE):
            until(lambda text=text: gate.parked == 1 or not text.is_alive(), "the background text is parked or over")  # type: ignore[misc]
            parked = gate.parked
        text.join(LONG_S)
        assert not text.is_alive()
        assert text.said == alone
        if parked:
            break
    assert parked == 1


class Streamed(threading.Thread):
    """A background text on its way. going: its first words have come."""

    def __init__(self, client: httpx.Client) -> None:
        super().__init__(daemon=True)
        self.said = ""
        self.going = threading.Event()
        self._client = client
        self.start()

    def run(self) -> None:
        body = ASKED | {"max_tokens": 96, "task": "background", "stream": True}
        with self._client.stream("POST", "/v1/chat/completions", json=body) as reply:
            for line in reply.iter_lines():
                if line.startswith("data: {"):
                    (choice,) = json.loads(line.removeprefix("data: "))["choices"]
                    self.said += choice["delta"].get("content") or ""
                if self.said:
                    self.going.set()


def test_memory_was_planned_for_both(served: Any, tmp_path: Path) -> None:
    names = [model["id"] for model in served.client.get("/v1/models").json()["data"]]
    assert names == [QWEN, SMOL]
    assert list(served.api.services.stats()["models"]) == names
