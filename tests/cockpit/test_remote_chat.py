"""A server of chat completions over HTTP: what is sent, what is taken, and what counts as a failure."""

from __future__ import annotations

import json
import threading
from collections.abc import Iterator
from http.server import BaseHTTPRequestHandler, ThreadingHTTPServer
from pathlib import Path
from typing import Any

import pytest

from cockpit.profile.language_models import DialogueLlmSection, RemoteSection
from cockpit.remote_chat import ChatServer, open_remote
from models.errors import StartupError
from pipeline.dialogue.remote import ServerFailed
from pipeline.dialogue.talk import AnswerCut

MESSAGES = [{"role": "user", "content": "What is a comet? 彗星"}]


class Handler(BaseHTTPRequestHandler):
    """Answers with the server's `body` and `status`, noting what was asked."""

    server: Listening

    def do_POST(self) -> None:
        length = int(self.headers["Content-Length"])
        self.server.asked.append((self.path, dict(self.headers), json.loads(self.rfile.read(length))))
        self.send_response(self.server.status)
        self.send_header("Content-Type", "text/event-stream")
        self.end_headers()
        self.wfile.write(self.server.body)
        self.wfile.flush()
        self.server.pause.wait(20)

    def log_message(self, format: str, *args: Any) -> None:
        return None


class Listening(ThreadingHTTPServer):
    daemon_threads = True

    def __init__(self) -> None:
        super().__init__(("127.0.0.1", 0), Handler)
        self.asked: list[tuple[str, dict[str, str], dict[str, Any]]] = []
        self.status, self.body = 200, b""
        self.pause = threading.Event()
        self.pause.set()

    @property
    def url(self) -> str:
        return f"http://127.0.0.1:{self.server_address[1]}/v1"


@pytest.fixture
def listening() -> Iterator[Listening]:
    server = Listening()
    thread = threading.Thread(target=server.serve_forever, args=(0.01,))
    thread.start()
    yield server
    server.pause.set()
    server.shutdown()
    thread.join()
    server.server_close()


def events(*pieces: str, reason: str | None = "stop") -> bytes:
    rows: list[dict[str, Any]] = [{"delta": {"role": "assistant"}, "finish_reason": None}]
    rows += [{"delta": {"content": piece}, "finish_reason": None} for piece in pieces]
    rows += [] if reason is None else [{"delta": {}, "finish_reason": reason}]
    lines = [f"data: {json.dumps({'choices': [row]})}\n\n" for row in rows]
    return "".join([": a comment\n\n", *lines, "data: [DONE]\n\n" if reason else ""]).encode()


def pieces(server: ChatServer, wait_s: float = 10.0) -> str:
    return "".join(server.stream(MESSAGES, 64, wait_s))


def test_an_answer_comes_in_pieces_and_the_token_goes_along(listening: Listening, tmp_path: Path) -> None:
    listening.body = events("A comet ", "is 冰。")
    file = tmp_path / "token"
    file.write_text("sixteen-or-more-characters\n")
    file.chmod(0o600)
    remote = open_remote(RemoteSection(url=listening.url, model="big", token_file=file), 64)
    assert remote is not None
    assert "".join(remote.server.stream(MESSAGES, 64, 10.0)) == "A comet is 冰。"
    ((path, headers, body),) = listening.asked
    assert path == "/v1/chat/completions"
    assert headers["Authorization"] == "Bearer sixteen-or-more-characters"
    assert body == {"model": "big", "messages": MESSAGES, "stream": True, "max_tokens": 64}
    remote.close()


@pytest.mark.parametrize(
    ("status", "body", "why"),
    [
        (500, b"", "HTTP status 500"),
        (302, b"", "HTTP status 302"),
        (200, b"data: {}\n\n", "no chat completion"),
        (200, b"data: [1, 2\n\n", "no chat completion"),
        (200, b'data: {"choices": [{"delta": {"content": 5}}]}\n\n', "no text"),
        (200, b"data: " + b"x" * 70_000 + b"\n\n", "too long"),
        (200, events(*["x" * 1000] * 20), "too long"),
        (200, events("A comet", reason=None), "ended without its end"),
        (200, b"", "ended without its end"),
        (200, b"\xff\xfe\x00data", "ended without its end"),
    ],
)
def test_what_is_no_answer_is_a_failure(listening: Listening, status: int, body: bytes, why: str) -> None:
    listening.status, listening.body = status, body
    server = ChatServer(listening.url, "big", None)
    with pytest.raises(ServerFailed, match=why):
        pieces(server)
    assert "Authorization" not in listening.asked[0][1]
    server.close()


def test_the_limit_of_tokens_is_told_apart(listening: Listening) -> None:
    listening.body = events("A comet", reason="length")
    with pytest.raises(AnswerCut, match="limit of tokens") as caught:
        pieces(ChatServer(listening.url, "big", None))
    assert not caught.value.failed


def test_a_server_that_stops_in_its_midst_is_not_waited_for(listening: Listening) -> None:
    listening.pause.clear()
    listening.body = events("A comet", reason=None)
    with pytest.raises(ServerFailed, match="Timeout"):
        pieces(ChatServer(listening.url, "big", None), wait_s=0.2)


def test_nobody_listens(listening: Listening) -> None:
    server = ChatServer("http://127.0.0.1:9/v1", "big", None)
    with pytest.raises(ServerFailed, match="Connect"):
        pieces(server)


@pytest.mark.parametrize(
    ("url", "why"),
    [
        ("http://llm.example.org/v1", "use https"),
        ("llm.example.org", "no address"),
        ("ftp://llm.example.org/v1", "no address"),
        ("https://me:secret@llm.example.org/v1", "token_file"),
        ("https://llm.example.org/v1?key=1", "no address"),
    ],
)
def test_an_address_that_would_not_do_is_refused(url: str, why: str) -> None:
    with pytest.raises(ValueError, match=why):
        RemoteSection(url=url, model="big")


def test_without_a_server_nothing_is_opened_and_a_token_others_may_read_is_refused(tmp_path: Path) -> None:
    assert open_remote(DialogueLlmSection().remote, 64) is None
    file = tmp_path / "token"
    file.write_text("sixteen-or-more-characters\n")
    file.chmod(0o644)
    with pytest.raises(StartupError, match=r"llm.dialogue.remote.token_file .*chmod 600"):
        open_remote(RemoteSection(url="https://llm.example.org/v1", model="big", token_file=file), 64)
