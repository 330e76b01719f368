"""Raw sockets: clients that hang up, stall, send half a request or too many. The others never notice."""

from __future__ import annotations

import socket
import stat
from pathlib import Path
from typing import Any

import httpx2 as httpx
import pytest

from cockpit.api.grants import Grants
from cockpit.api.server import ApiServer
from cockpit.token_file import read_token
from models.errors import StartupError
from tests.support.waiting import until

STORY = b'{"messages": [{"role": "user", "content": "Write a very long story."}], "stream": true}'


def connected(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(60)
    made.connect(str(path))
    return made


def request(body: bytes, path: bytes = b"/v1/chat/completions") -> bytes:
    return b"POST %s HTTP/1.1\r\nHost: x\r\nContent-Length: %d\r\n\r\n%s" % (path, len(body), body)


@pytest.mark.parametrize("stream", [True, False])
def test_who_hangs_up_is_cancelled(served: Any, stream: bool) -> None:
    raw = connected(served.path)
    raw.sendall(request(STORY if stream else STORY.replace(b"true", b"false")))
    until(lambda: served.text.active > 0)
    if stream:
        while b'"content"' not in raw.recv(4096):
            pass
    raw.close()
    until(lambda: served.text.active == 0)


def test_requests_beyond_the_limit_are_refused_and_the_others_answered(served: Any, client: httpx.Client) -> None:
    raws = [connected(served.path) for _ in range(4)]
    for raw in raws:
        raw.sendall(request(STORY))
    until(lambda: served.text.active == 4)
    refused = client.post("/v1/chat/completions", json={"messages": [{"role": "user", "content": "x"}]})
    assert (refused.status_code, refused.json()["error"]["code"]) == (429, "busy")
    assert refused.headers["Retry-After"] == "1"
    assert client.get("/health").json()["requests"] == {"qwen": 4}
    for raw in raws:
        raw.close()
    until(lambda: served.text.active == 0)


@pytest.mark.parametrize(
    "sent",
    [
        b"",
        b"\x00" * 100,
        b"GET / HTTP/9.9\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: 100\r\n\r\n{",
        b"POST /v1/chat/completions HTTP/1.1\r\nContent-Length: -1\r\n\r\n",
        b"POST /v1/chat/completions HTTP/1.1\r\nTransfer-Encoding: chunked\r\n\r\nzz\r\n",
        b"GET /" + b"x" * 100_000 + b" HTTP/1.1\r\n\r\n",
    ],
    ids=lambda sent: str(sent)[:30],
)
def test_half_requests_and_noise(served: Any, client: httpx.Client, sent: bytes) -> None:
    with connected(served.path) as raw:
        raw.sendall(sent)
        raw.shutdown(socket.SHUT_WR)
        answer = b""
        while part := raw.recv(4096):
            answer += part
    assert not answer or answer.startswith(b"HTTP/1.1 4")
    assert client.get("/health").status_code == 200


def test_the_socket_is_the_groups_only(served: Any) -> None:
    assert stat.S_IMODE(served.path.stat().st_mode) == 0o660


def test_a_socket_in_use_and_what_is_no_socket(served: Any, tmp_path: Path) -> None:
    services: Any = None
    with pytest.raises(StartupError, match="another Cockpit"):
        ApiServer.open(services, served.path)
    (tmp_path / "file").write_text("mine")
    with pytest.raises(StartupError, match="in the way"):
        ApiServer.open(services, tmp_path / "file")
    assert (tmp_path / "file").read_text() == "mine"
    with pytest.raises(StartupError, match="107 bytes"):
        ApiServer.open(services, tmp_path / ("x" * 120))
    with pytest.raises(StartupError, match="token_file"):
        ApiServer.open(services, tmp_path / "api.sock", port=0)


def test_token_files(tmp_path: Path) -> None:
    file = tmp_path / "token"
    with pytest.raises(StartupError, match="cannot be read"):
        read_token(file, "api.token_file")
    file.write_text("short\n")
    file.chmod(0o600)
    with pytest.raises(StartupError, match="16 characters"):
        read_token(file, "api.token_file")
    file.write_text("sixteen-or-more-characters\n")
    assert read_token(file, "api.token_file") == "sixteen-or-more-characters"
    file.chmod(0o644)
    with pytest.raises(StartupError, match="chmod 600"):
        read_token(file, "api.token_file")


def test_grants_by_user() -> None:
    from cockpit.api.errors import ApiError
    from cockpit.api.grants import Client
    from cockpit.api.schema import Placed

    grants = Grants({"navigation_task": 9, "dialogue_task": 5}, {"root": ["navigation_task"], "*": ["dialogue_task"]})
    assert grants.place(Placed(), Client(0)).task == "navigation_task"
    assert grants.place(Placed(task="dialogue"), Client(None)).task == "dialogue_task"
    with pytest.raises(ApiError, match="not navigation_task"):
        grants.place(Placed(task="navigation_task"), Client(12345))
    with pytest.raises(ApiError, match="grants 12345 no task"):
        Grants({"dialogue_task": 5}, {"root": ["dialogue_task"]}).place(Placed(), Client(12345))
