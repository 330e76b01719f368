"""Garbage, half a message, half a sound, hang-ups: told where it can be told, and nobody else is hurt."""

from __future__ import annotations

import json
import socket
import threading
from collections.abc import Iterator
from typing import Any

import pytest

from cockpit.wyoming.events import MOST_LINE_BYTES, MOST_PAYLOAD_BYTES
from tests.support.waiting import LONG_S, until


@pytest.fixture
def raw(served: Any) -> Iterator[socket.socket]:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(LONG_S)
        connection.connect(str(served.server.path))
        yield connection


def line(kind: str, payload: bytes = b"", **data: Any) -> bytes:
    head = {"type": kind, "data": data, **({"payload_length": len(payload)} if payload else {})}
    return json.dumps(head).encode() + b"\n" + payload


def received(connection: socket.socket) -> list[dict[str, Any]]:
    """Every event until the server hangs up; none has a payload."""
    events, file = [], connection.makefile("rb")
    while head := file.readline():
        event = json.loads(head)
        event["data"] = json.loads(file.read(event.get("data_length", 0)) or b"{}")
        events.append(event)
    return events


@pytest.mark.parametrize(
    "garbage",
    [
        b"GET / HTTP/1.1\r\n\r\n",
        b"\x00\xff\xfe\n",
        b"[1, 2]\n",
        b'{"type": 7}\n',
        b'{"data": {}}\n',
        b'{"type": "ping", "data": [1]}\n',
        b'{"type": "ping", "data_length": "many"}\n',
        b'{"type": "ping", "data_length": -4}\n',
        b'{"type": "ping", "data_length": true}\n',
        b'{"type": "ping", "data_length": 2}\nno',
        b'{"type": "audio-chunk", "payload_length": %d}\n' % (MOST_PAYLOAD_BYTES + 1),
        b'{"type": "' + b"x" * (2 * MOST_LINE_BYTES) + b'"}\n',
    ],
)
def test_what_is_no_event_is_told_and_ends_the_connection(raw: socket.socket, garbage: bytes) -> None:
    raw.sendall(garbage)
    events = received(raw)
    assert [event["type"] for event in events] == ["error"]
    assert events[0]["data"]["code"] == "protocol_error"


def test_unknown_events_are_dropped_as_the_protocol_asks(raw: socket.socket) -> None:
    raw.sendall(line("detect", names=["x"]) + line("ping", text="on") + b"{}\n")
    assert [event["type"] for event in received(raw)] == ["pong", "error"]


def test_wrong_fields_are_told_and_the_connection_goes_on(raw: socket.socket) -> None:
    wrong = [
        line("synthesize"),
        line("synthesize", text=7),
        line("synthesize", text="Hi", voice="joe"),
        line("recognize", text=None),
        line("transcribe", language=["en"]),
        line("audio-start", rate="fast", width=2, channels=1),
        line("select-program", name="other"),
    ]
    raw.sendall(b"".join(wrong) + line("ping") + b"end\n")
    assert [event["type"] for event in received(raw)] == ["error"] * len(wrong) + ["pong", "error"]


SOUND: dict[str, Any] = {"rate": 16_000, "width": 2, "channels": 1}


def test_half_a_sound_is_forgotten_with_its_client(served: Any) -> None:
    """The next client is served at once: nothing of the first one is left running."""
    for piece in (
        line("audio-start", **SOUND),
        line("audio-start", **SOUND) + line("audio-chunk", b"\x01" * 999, **SOUND),
        line("audio-start", **SOUND) + line("audio-chunk", b"\x01" * 999, **SOUND)[:-500],
        line("audio-start", **SOUND)[:-9],
    ):
        with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
            connection.connect(str(served.server.path))
            connection.sendall(piece)
    idle(served)
    until(lambda: pong(served), "the next client is served")


def test_a_sound_that_changes_its_format_or_never_ends_is_refused(raw: socket.socket) -> None:
    second = line("audio-chunk", bytes(32_000), **SOUND)
    raw.sendall(
        line("audio-start", **SOUND)
        + line("audio-chunk", bytes(10), rate=8_000, width=2, channels=1)
        + line("audio-stop")
        + line("audio-start", **SOUND)
        + second * 121
        + line("audio-stop")
        + line("audio-start", **SOUND)
        + line("audio-stop")
        + b"end\n"
    )
    told = [event["data"].get("text", "") for event in received(raw)]
    assert "format changes" in told[0]
    assert "more than 120 s" in told[2]
    assert "no sound" in told[4]
    assert len(told) == 6


def idle(served: Any) -> None:
    until(lambda: not served.server.clients, "every connection has ended")


def pong(served: Any) -> bool:
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.settimeout(LONG_S)
        connection.connect(str(served.server.path))
        connection.sendall(line("ping") + b"end\n")
        return [event["type"] for event in received(connection)] == ["pong", "error"]


def test_a_hang_up_ends_the_work(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """The recogniser asks whether it is still wanted, and is told."""
    begun, ended = threading.Event(), threading.Event()

    def transcribe(samples: Any, language: Any, cancelled: Any, *_: Any) -> Any:
        begun.set()
        until(cancelled, "the work is told that nobody waits for it")
        ended.set()
        raise AssertionError("nobody hears this")

    monkeypatch.setattr(served.services.speech, "transcribe", transcribe)
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(served.server.path))
        connection.sendall(line("audio-start", **SOUND) + line("audio-chunk", bytes(32_000), **SOUND))
        connection.sendall(line("audio-stop"))
        assert begun.wait(LONG_S)
    assert ended.wait(LONG_S)
    idle(served)


def test_a_command_of_a_client_that_left_is_not_done(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    """Its turn waits behind another one when the client hangs up."""
    held, go = threading.Event(), threading.Event()
    dialogue = served.runtime.parts.dialogue
    plan = type(dialogue).plan

    def slow(self: Any, text: str, *rest: Any, **more: Any) -> Any:
        if text == "open the sunroof":
            held.set()
            assert go.wait(LONG_S)
        return plan(self, text, *rest, **more)

    monkeypatch.setattr(type(dialogue), "plan", slow)
    first = served.services.ask("open the sunroof", "en", False)
    assert held.wait(LONG_S)
    before = {record.turn_id for record in served.runtime.turn_log.closed()}
    with socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) as connection:
        connection.connect(str(served.server.path))
        connection.sendall(line("transcript", text="lock the doors"))
        until(lambda: len(served.runtime.edges.transcripts), "the command waits for its turn")
    idle(served)
    go.set()
    assert first.result(LONG_S).outcome == "answered"
    served.services.ask("open the window", "en", False).result(LONG_S)
    assert {record.turn_id for record in served.runtime.turn_log.closed()} == before


def test_a_fourth_client_is_told_to_come_back(served: Any) -> None:
    idle(served)
    connections = [socket.socket(socket.AF_UNIX, socket.SOCK_STREAM) for _ in range(4)]
    try:
        for connection in connections[:3]:
            connection.settimeout(LONG_S)
            connection.connect(str(served.server.path))
            connection.sendall(line("ping"))
            connection.recv(1, socket.MSG_PEEK)
        connections[3].connect(str(served.server.path))
        assert received(connections[3])[0]["data"]["code"] == "busy"
    finally:
        for connection in connections:
            connection.close()
    idle(served)
    until(lambda: pong(served), "the next client is served")


def test_a_fault_of_the_chain_is_told_and_costs_that_turn_only(served: Any, monkeypatch: pytest.MonkeyPatch) -> None:
    dialogue = served.runtime.parts.dialogue

    def broken(*_: Any, **__: Any) -> Any:
        raise RuntimeError("a fault")

    with monkeypatch.context() as patched:
        patched.setattr(type(dialogue), "plan", broken)
        answer = served.services.ask("open the sunroof", "en", True).result(LONG_S)
    assert (answer.outcome, answer.acted) == ("failed", False)
    assert answer.reply
    assert served.services.ask("open the sunroof", "en", True).result(LONG_S).acted
    assert [record.failed for record in served.runtime.turn_log.closed()].count("understand") == 1
