"""Two language models behind one API: which requests each answers, and what is said of them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from cockpit.api.app import Services
from cockpit.api.grants import Grants
from cockpit.api.server import ApiServer
from cockpit.api.text import TextService
from models.engines.llm.causal_lm import CausalLM

QWEN, SMOL = "qwen2.5-coder-0.5b-instruct", "smollm2-135m-instruct"
ASKED: dict[str, Any] = {"messages": [{"role": "user", "content": "Say hello."}], "max_tokens": 2}


@pytest.fixture(scope="module")
def client(model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[httpx.Client]:
    path = tmp_path_factory.mktemp("roles") / "api.sock"
    texts = {
        name: TextService(CausalLM.load(model_dir(name), context_tokens=256), most_running=1) for name in (QWEN, SMOL)
    }
    grants = Grants({"dialogue_task": 5, "background_task": 2}, {"*": ["dialogue_task", "background_task"]})
    services = Services(texts, None, grants, dict, roles={QWEN: ("dialogue",), SMOL: ("background",)})
    server = ApiServer.open(services, path)
    server.start()
    with httpx.Client(transport=httpx.HTTPTransport(uds=str(path)), base_url="http://cockpit", timeout=120) as made:
        yield made
    server.stop()
    for text in texts.values():
        text.close()


def test_models_are_listed_with_their_roles(client: httpx.Client) -> None:
    listed = client.get("/v1/models").json()["data"]
    assert [(model["id"], model["roles"]) for model in listed] == [(QWEN, ["dialogue"]), (SMOL, ["background"])]
    assert client.get("/v1/models/background").json()["id"] == SMOL


@pytest.mark.parametrize(
    ("fields", "answers"),
    [
        ({}, QWEN),
        ({"task": "background"}, SMOL),
        ({"task": "background_task", "model": QWEN}, QWEN),
        ({"task": "background", "model": "dialogue"}, QWEN),
        ({"model": SMOL}, SMOL),
        ({"model": "background"}, SMOL),
        ({"priority": 2}, SMOL),
    ],
)
def test_a_request_is_answered_by_the_model_it_names_or_that_of_its_task(
    client: httpx.Client, fields: dict[str, Any], answers: str
) -> None:
    reply = client.post("/v1/chat/completions", json=ASKED | fields).json()
    assert reply["model"] == answers
    old = client.post("/v1/completions", json={"prompt": "Hello", "max_tokens": 1, **fields}).json()
    assert old["model"] == answers


def test_tokens_are_those_of_the_model(client: httpx.Client) -> None:
    ids = [client.post("/tokenize", json={"content": "dashboard", "model": name}).json() for name in (QWEN, SMOL)]
    assert ids[0] != ids[1]
    assert ids[1] == client.post("/tokenize", json={"content": "dashboard", "model": "background"}).json()


@pytest.mark.parametrize("path", ["/v1/chat/completions", "/tokenize"])
def test_an_unknown_model_is_a_404_that_names_those_there_are(client: httpx.Client, path: str) -> None:
    body = {"content": "x"} if path == "/tokenize" else ASKED
    reply = client.post(path, json={**body, "model": "gpt-4"})
    error = reply.json()["error"]
    assert (reply.status_code, error["code"], error["param"]) == (404, "model_not_found", "model")
    assert f"'gpt-4'; this process has {QWEN} (dialogue), {SMOL} (background)" in error["message"]
