"""`/v1/events` and `/v1/control` over the real socket: both forms of the stream, who may know words, who may act."""

from __future__ import annotations

import json
import os
import threading
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from cockpit.api.app import Services
from cockpit.api.errors import ApiError
from cockpit.api.grants import Client, Grants
from cockpit.api.server import ApiServer
from cockpit.client import Cockpit, CockpitError
from cockpit.headunit import http as headunit_http
from cockpit.headunit.stream import MOST_SUBSCRIBERS
from cockpit.profile.load import load_profile
from cockpit.telemetry.metrics import Metrics
from cockpit.telemetry.process_status import process_status
from pipeline.audio.lasting import DeviceEvents, LastingSpeaker
from tests.support.fake_chain import RecordingSink, utterance
from tests.support.headunit.followed_chain import Chain
from tests.support.waiting import until

TOKEN = "a-token-of-the-tests"


@pytest.fixture
def metrics() -> Metrics:
    return Metrics()


@pytest.fixture
def chain(metrics: Metrics) -> Iterator[Chain]:
    made = Chain(RecordingSink(), observer=metrics)
    yield made
    made.close()


@pytest.fixture
def server(chain: Chain, metrics: Metrics, tmp_path: Path) -> Iterator[ApiServer]:
    status = process_status(chain.runtime, None, "car", load_profile("cpu").profile, dict)
    services = Services(
        {}, None, Grants({}, {"*": ["x"]}), dict,
        cabin=chain.cabin, events=chain.events, metrics=metrics.text, status=status,
    )  # fmt: skip
    made = ApiServer.open(services, tmp_path / "api.sock", port=0, token=TOKEN)
    made.start()
    yield made
    chain.events.close()
    made.stop()


@pytest.fixture
def client(server: ApiServer) -> Cockpit:
    return Cockpit(str(server.path))


def over_tcp(server: ApiServer) -> httpx.Client:
    """The holder of the token, whom the profile names nowhere."""
    return httpx.Client(base_url=f"http://127.0.0.1:{server.port}", headers={"Authorization": f"Bearer {TOKEN}"})


def test_a_head_unit_asks_and_follows_what_becomes_of_it(client: Cockpit, chain: Chain) -> None:
    followed = client.events()
    assert next(followed)["state"] == "idle"
    answer = client.control("ask", text="Turn on the rear defroster.")
    told: list[dict[str, Any]] = []
    while not {"turn", "clause"} <= {event["type"] for event in told}:
        told.append(next(followed))
    assert answer["turn_id"] == told[-1]["turn_id"]
    by_type = {event["type"]: event for event in told}
    assert by_type["transcript"]["text"] == "Turn on the rear defroster."
    assert by_type["calls"]["calls"][0]["result"]["status"] == "done"
    followed.close()  # type: ignore[attr-defined]
    until(lambda: chain.events.subscribers == 0)


def test_the_same_as_server_sent_events_and_only_the_types_that_are_wanted(server: ApiServer, client: Cockpit) -> None:
    transport = httpx.HTTPTransport(uds=str(server.path))
    with (
        httpx.Client(transport=transport, base_url="http://cockpit", timeout=60) as http,
        http.stream("GET", "/v1/events?types=state,turn") as answer,
    ):
        assert answer.headers["content-type"].startswith("text/event-stream")
        lines = answer.iter_lines()
        first = next(lines)
        assert json.loads(first.removeprefix("data: "))["type"] == "state"
        assert next(lines) == ""
        client.control("ask", text="把后除霜打开", language="zh")
        types = []
        while "turn" not in types:
            line = next(lines)
            types += [json.loads(line.removeprefix("data: "))["type"]] if line else []
        assert set(types) <= {"state", "turn"}


def test_without_news_a_client_hears_that_the_stream_lives(
    server: ApiServer, chain: Chain, monkeypatch: pytest.MonkeyPatch
) -> None:
    monkeypatch.setattr(headunit_http, "ALIVE_S", 0.05)
    with over_tcp(server) as http, http.stream("GET", "/v1/events?types=error") as answer:
        assert next(answer.iter_lines()) == ": alive"


def test_a_client_that_is_not_named_sees_no_words_and_controls_nothing(server: ApiServer, client: Cockpit) -> None:
    with over_tcp(server) as http, http.stream("GET", "/v1/events?types=transcript,turn") as answer:
        client.control("ask", text="Turn on the rear defroster.")
        said = ""
        for line in answer.iter_lines():
            said += line
            if '"turn"' in line:
                break
        assert "defroster" not in said
        assert "transcript" in said
        refused = http.post("/v1/control", json={"op": "cancel"})
        assert refused.status_code == 403
        assert "api.control" in refused.json()["error"]["message"]
    assert http.is_closed


def test_who_may_know_words_and_who_may_act() -> None:
    me, stranger, token = Client(os.getuid()), Client(65_533), Client(None)
    closed = Grants({}, {})
    assert closed.may_know_words(me)
    assert not closed.may_know_words(stranger)
    assert not closed.may_know_words(token)
    named = Grants({}, {}, words=["token"], control=["65533"])
    assert named.may_know_words(token)
    named.require_control(stranger)
    with pytest.raises(ApiError, match="token control nothing"):
        named.require_control(token)
    everybody = Grants({}, {}, words=["*"], control=["*"])
    assert everybody.may_know_words(stranger)
    everybody.require_control(token)


@pytest.mark.parametrize(
    ("body", "status", "said"),
    [
        ({"op": "talk"}, 400, "talk needs on"),
        ({"op": "cancel", "on": True}, 400, "cancel takes no on"),
        ({"op": "volume", "volume": 1.5}, 400, "volume"),
        ({"op": "ask", "text": ""}, 400, "text"),
        ({"op": "ask", "text": "   "}, 400, "nothing to ask"),
        ({"op": "fly"}, 400, "op"),
        ({"op": "volume", "volume": 0.5}, 409, "no speaker"),
        ({"op": "language", "language": "zh", "text": "x"}, 400, "language takes no text"),
    ],
)
def test_what_cannot_be_done_is_refused_with_its_reason(
    client: Cockpit, body: dict[str, Any], status: int, said: str
) -> None:
    with pytest.raises(CockpitError, match=said) as refused:
        client.ask("POST", "/v1/control", body)
    assert refused.value.status == status


def test_what_is_done_by_hand_is_in_the_answer_and_in_the_process(client: Cockpit, chain: Chain) -> None:
    assert client.control("language", language="zh")["language"] == "zh"
    assert chain.runtime.parts.asr.languages == ("zh",)
    client.control("mute", on=True)
    chain.runtime.listen(utterance())
    assert chain.runtime.wait_idle()
    assert chain.runtime.turn_log.closed() == []
    assert client.control("cancel")["muted"] is True
    with pytest.raises(CockpitError, match="unmute"):
        client.control("talk", on=True)


def test_the_volume_is_the_speakers() -> None:
    speaker = LastingSpeaker(None, DeviceEvents(lambda reason: None, lambda name: None))
    speaker.set_volume(0.25)
    assert speaker.volume == 0.25


def test_an_unknown_type_or_parameter_is_refused(client: Cockpit) -> None:
    with pytest.raises(CockpitError, match="no event 'lvel'; there are state"):
        next(client.events("state,lvel"))
    with pytest.raises(CockpitError, match="no such parameter"):
        client.ask("GET", "/v1/events?from=3")


def test_one_client_too_many_is_told_so(client: Cockpit, chain: Chain) -> None:
    for _ in range(MOST_SUBSCRIBERS):
        chain.follow()
    with pytest.raises(CockpitError) as refused:
        next(client.events())
    assert refused.value.status == 429


def test_the_stream_ends_with_the_process(client: Cockpit, server: ApiServer, chain: Chain) -> None:
    rest: list[dict[str, Any]] = []
    followed = client.events()
    next(followed)
    reader = threading.Thread(target=lambda: rest.extend(followed))
    reader.start()
    chain.events.close()
    server.stop()
    reader.join(60)
    assert not reader.is_alive()


def test_metrics_and_status_are_told_without_words(client: Cockpit, server: ApiServer, chain: Chain) -> None:
    client.control("ask", text="Turn on the rear defroster.")
    until(chain.runtime.turn_log.closed)
    with over_tcp(server) as http:
        metrics = http.get("/metrics")
        assert metrics.headers["content-type"].startswith("text/plain")
        assert 'cockpit_turns_total{decided_by="rule",outcome="answered",task="vehicle"} 1.0' in metrics.text
        status = http.get("/v1/status")
    told = status.json()
    assert told["profile"]["name"] == "car"
    assert told["profile"]["values"]["device"] == "cpu"
    assert len(told["profile"]["sha256"]) == 64
    assert told["channels"][0]["name"] == "frames"
    assert told["state"] in ("idle", "thinking", "speaking")
    for text in (metrics.text, status.text):
        assert "defroster" not in text


def test_without_a_chain_there_is_nothing_to_follow_or_control(tmp_path: Path) -> None:
    server = ApiServer.open(Services({}, None, Grants({}, {}), dict), tmp_path / "api.sock")
    server.start()
    try:
        client = Cockpit(str(server.path))
        asks: list[Callable[[], object]] = [lambda: client.control("cancel"), lambda: next(client.events())]
        asks += [lambda: client.ask("GET", "/metrics"), lambda: client.ask("GET", "/v1/status")]
        for ask in asks:
            with pytest.raises(CockpitError) as refused:
                ask()
            assert refused.value.status == 404
    finally:
        server.stop()
