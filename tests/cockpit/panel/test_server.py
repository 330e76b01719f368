"""The page's server: who gets what, under which policy, and what it hands on."""

from __future__ import annotations

import json
import os
import signal
import subprocess
import sys
import threading
from collections.abc import Iterator
from pathlib import Path

import httpx2 as httpx
import pytest

from cockpit.panel.app import FILES, MOST_BYTES
from tests.support.headunit.panel import TOKEN, ServedPanel
from tests.support.paths import ROOT
from tests.support.waiting import until


@pytest.fixture
def http(served: ServedPanel) -> Iterator[httpx.Client]:
    with httpx.Client(base_url=served.origin, timeout=60) as made:
        yield made


AUTHORISED = {"Authorization": f"Bearer {TOKEN}"}


def test_every_file_is_served_under_a_policy_that_allows_only_this_page(http: httpx.Client) -> None:
    for name in FILES:
        answer = http.get(f"/{name}")
        assert answer.status_code == 200
        policy = answer.headers["content-security-policy"]
        assert policy.startswith("default-src 'none'; script-src 'self'")
        assert "unsafe" not in policy
        assert answer.headers["x-content-type-options"] == "nosniff"
        assert answer.headers["cache-control"] == "no-store"
        assert TOKEN not in answer.text
    for outside in ("/../app.py", "/app.py", "/%2e%2e/app.py", "/static/panel.js"):
        assert http.get(outside).status_code == 404


def test_the_bundle_fetches_nothing_from_elsewhere() -> None:
    static = ROOT / "cockpit" / "panel" / "static"
    assert {path.name for path in static.iterdir()} == set(FILES.values())
    for path in static.iterdir():
        text = path.read_text(encoding="utf-8").replace("http://www.w3.org/2000/svg", "")
        assert "http:" not in text, path
        assert "https:" not in text, path
        assert "innerHTML" not in text, "what was heard is text, never markup"


@pytest.mark.parametrize("sent", [{}, {"Authorization": "Bearer wrong"}, {"Authorization": TOKEN}])
def test_nothing_is_handed_on_without_the_token(http: httpx.Client, sent: dict[str, str]) -> None:
    assert http.get("/v1/status", headers=sent).status_code == 401
    assert http.post("/v1/control", headers=sent, json={"op": "cancel"}).status_code == 401
    assert http.get(f"/v1/events?token={TOKEN}", headers=sent).status_code == 401


def test_a_foreign_name_for_this_server_is_refused(http: httpx.Client) -> None:
    answer = http.get("/", headers={"Host": "evil.example"})
    assert answer.status_code == 421
    assert http.get("/v1/status", headers={**AUTHORISED, "Host": "evil.example:80"}).status_code == 421


def test_what_the_page_needs_is_handed_on_and_nothing_else(http: httpx.Client) -> None:
    assert http.get("/v1/status", headers=AUTHORISED).json()["object"] == "status"
    done = http.post("/v1/control", headers=AUTHORISED, json={"op": "cancel"})
    assert done.json()["state"] == "idle"
    refused = http.post("/v1/control", headers=AUTHORISED, json={"op": "volume", "volume": 0.5})
    assert (refused.status_code, refused.json()["error"]["code"]) == (409, "not_here")
    for path in ("/v1/chat/completions", "/v1/guidance", "/v1/audio/speech"):
        assert http.post(path, headers=AUTHORISED, json={}).status_code == 404
    too_much = http.post("/v1/audio/transcriptions", headers=AUTHORISED, content=b"0" * (MOST_BYTES + 1))
    assert too_much.status_code == 413


def test_events_come_as_they_happen_and_end_with_the_page(http: httpx.Client, served: ServedPanel) -> None:
    wanted = {**AUTHORISED, "Accept": "application/x-ndjson"}
    with http.stream("GET", "/v1/events?types=state,turn", headers=wanted) as answer:
        lines = answer.iter_lines()
        assert json.loads(next(lines))["type"] == "state"
        served.chain.cabin.ask("Turn on the rear defroster.", "en")
        until(lambda: json.loads(next(lines))["type"] == "turn")
        assert served.chain.events.subscribers == 1
    until(lambda: served.chain.events.subscribers == 0)


def test_a_signal_ends_the_command_at_once_and_quietly_while_a_page_follows(served: ServedPanel) -> None:
    command = [sys.executable, "-m", "cockpit", "panel", "--socket", str(served.api.path)]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(command, stdout=subprocess.PIPE, stderr=subprocess.PIPE, text=True, env=environment)
    hanging = threading.Timer(60, process.kill)
    hanging.start()
    try:
        assert process.stdout is not None
        origin, _, token = process.stdout.readline().strip().partition("/#token=")
        with (
            httpx.Client(base_url=origin, headers={"Authorization": f"Bearer {token}"}, timeout=60) as http,
            http.stream("GET", "/v1/events") as answer,
        ):
            lines = answer.iter_lines()
            assert next(lines)
            process.send_signal(signal.SIGTERM)
            assert [line for line in lines if line.startswith("data:")] == []
        _, complained = process.communicate()
        assert complained == "cockpit: stopped by SIGTERM\n"
        assert process.returncode == 128 + signal.SIGTERM
    finally:
        process.kill()
        process.wait()
        hanging.cancel()


def test_without_a_car_the_page_is_told_what_to_do(tmp_path: Path) -> None:
    """The command itself, with a token of the integrator's."""
    (tmp_path / "token").write_text("sixteen-letters-or-more\n")
    (tmp_path / "token").chmod(0o600)
    command = [sys.executable, "-m", "cockpit", "panel", "--socket", str(tmp_path / "none.sock")]
    environment = {**os.environ, "PYTHONPATH": str(ROOT), "PYTHONUNBUFFERED": "1"}
    process = subprocess.Popen(
        [*command, "--token-file", str(tmp_path / "token")], stdout=subprocess.PIPE, text=True, env=environment
    )
    hanging = threading.Timer(60, process.kill)
    hanging.start()
    try:
        assert process.stdout is not None
        address = process.stdout.readline().strip()
        origin, _, token = address.partition("/#token=")
        assert token == "sixteen-letters-or-more"
        answer = httpx.get(f"{origin}/v1/status", headers={"Authorization": f"Bearer {token}"}, timeout=60)
        assert answer.status_code == 503
        assert "is `cockpit serve` running?" in answer.json()["error"]["message"]
    finally:
        process.send_signal(signal.SIGTERM)
        assert process.wait(60) == 128 + signal.SIGTERM
        hanging.cancel()
        assert process.stdout is not None
        process.stdout.close()
