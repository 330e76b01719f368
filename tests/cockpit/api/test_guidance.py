"""Prompts of navigation through the API and `cockpit send`: who may hand one in, what is refused, what is told."""

from __future__ import annotations

import json
import os
import pwd
from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path
from typing import Any

import pytest

from cockpit.api.app import Services
from cockpit.api.grants import Grants
from cockpit.api.server import ApiServer
from cockpit.cli.serve import send
from cockpit.client import Cockpit, CockpitError
from models.errors import InputError
from pipeline.frames import GuidancePrompt
from pipeline.guidance import GuidanceEnded, PromptOutdated

TASKS = {"navigation_task": 9, "dialogue_task": 5}
ME = pwd.getpwuid(os.getuid()).pw_name


class Guide:
    """Keeps what it is given, or raises `error`."""

    def __init__(self) -> None:
        self.prompts: list[GuidancePrompt] = []
        self.error: Exception | None = None

    def __call__(self, prompt: GuidancePrompt) -> int:
        if self.error is not None:
            raise self.error
        self.prompts.append(prompt)
        return len(self.prompts)


@pytest.fixture
def guide() -> Guide:
    return Guide()


def serving(folder: Path, guide: Guide | None, tasks: list[str]) -> ApiServer:
    services = Services({}, None, Grants(TASKS, {ME: tasks}), dict, guide=guide)
    server = ApiServer.open(services, folder / "api.sock")
    server.start()
    return server


@pytest.fixture
def client(tmp_path: Path, guide: Guide) -> Iterator[Cockpit]:
    server = serving(tmp_path, guide, ["dialogue_task", "navigation_task"])
    yield Cockpit(str(server.path))
    server.stop()


def test_a_prompt_is_taken_with_all_that_was_said_of_it(client: Cockpit, guide: Guide) -> None:
    assert client.guide("In 200 metres turn left", manoeuvre="exit-12", deadline_ms=3000) == 1
    assert client.guide("前方200米左转") == 2
    assert client.guide("Rond-point", language="en") == 3
    first, second, third = guide.prompts
    assert (first.text, first.language, first.manoeuvre) == ("In 200 metres turn left", "en", "exit-12")
    assert first.deadline_ns == first.captured_ns + 3_000_000_000
    assert (second.language, second.manoeuvre, second.deadline_ns) == ("zh", "", None)
    assert third.language == "en"


@pytest.mark.parametrize(
    ("body", "parameter"),
    [
        ({}, "text"),
        ({"text": ""}, "text"),
        ({"text": "x" * 301}, "text"),
        ({"text": 5}, "text"),
        ({"text": "left", "language": "de"}, "language"),
        ({"text": "left", "deadline_ms": 0}, "deadline_ms"),
        ({"text": "left", "manoeuvre": ""}, "manoeuvre"),
        ({"text": "left", "task": "navigation"}, "task"),
    ],
)
def test_bad_bodies_are_refused_by_field(client: Cockpit, guide: Guide, body: dict[str, Any], parameter: str) -> None:
    with pytest.raises(CockpitError) as refused:
        client.ask("POST", "/v1/guidance", body)
    assert refused.value.status == 400
    assert parameter in str(refused.value)
    assert not guide.prompts


@pytest.mark.parametrize(
    ("error", "status", "code"),
    [
        (InputError("nothing that can be spoken"), 400, "invalid_value"),
        (PromptOutdated("too late"), 410, "outdated"),
        (GuidanceEnded("ending"), 503, "stopped"),
    ],
)
def test_what_guidance_refuses_is_told(client: Cockpit, guide: Guide, error: Exception, status: int, code: str) -> None:
    guide.error = error
    with pytest.raises(CockpitError) as refused:
        client.guide("Turn left.")
    assert (refused.value.status, refused.value.code) == (status, code)


def test_only_who_is_granted_navigation_may_guide(tmp_path: Path, guide: Guide) -> None:
    server = serving(tmp_path, guide, ["dialogue_task"])
    try:
        with pytest.raises(CockpitError, match=r"not navigation_task: add it to api\.grants") as refused:
            Cockpit(str(server.path)).guide("Turn left.")
    finally:
        server.stop()
    assert (refused.value.status, refused.value.code) == (403, "not_granted")
    assert not guide.prompts


def test_a_process_without_a_speaker_takes_no_prompt(tmp_path: Path) -> None:
    server = serving(tmp_path, None, ["navigation_task"])
    try:
        with pytest.raises(CockpitError, match="--no-voice") as refused:
            Cockpit(str(server.path)).guide("Turn left.")
    finally:
        server.stop()
    assert (refused.value.status, refused.value.code) == (409, "no_speaker")


def test_send_from_the_shell(client: Cockpit, guide: Guide, tmp_path: Path, capsys: pytest.CaptureFixture[str]) -> None:
    socket = tmp_path / "api.sock"
    send("In 200 metres turn left", socket=socket, guidance=True, manoeuvre="exit-12", deadline_ms=2000)
    assert capsys.readouterr().out == "prompt 1 is taken\n"
    assert replace(guide.prompts[0], captured_ns=0, deadline_ns=None) == GuidancePrompt(
        "In 200 metres turn left", "en", 0, "exit-12"
    )
    send("Now turn left", socket=socket, guidance=True, json=True)
    assert json.loads(capsys.readouterr().out) == {"id": 2}
    with pytest.raises(InputError, match="goes with --guidance"):
        send("hello", socket=socket, manoeuvre="m")
    with pytest.raises(InputError, match="leave --task"):
        send("hello", socket=socket, guidance=True, task="dialogue")
