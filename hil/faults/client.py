"""Clients of the API that misbehave, on its unix socket."""

from __future__ import annotations

import socket
import time
from collections.abc import Iterator
from contextlib import ExitStack, contextmanager
from pathlib import Path
from typing import Literal

from hil.faults.base import Evidence

ClientFault = Literal["never_reads", "garbage", "half_request", "crowd"]
CROWD = 24
"""More than the stream of events takes."""
_ANSWER_S = 5.0
_EVENTS = b"GET /v1/events HTTP/1.1\r\nHost: cockpit\r\nAccept: application/x-ndjson\r\n\r\n"
_HALF = b"POST /v1/chat/completions HTTP/1.1\r\nHost: cockpit\r\nContent-Length: 1000000\r\n\r\n{"
_GARBAGE = b"\x16\x03\x01\x00\xff" + bytes(range(256)) * 8 + b"\r\n\r\n"


@contextmanager
def client(path: Path, kind: ClientFault) -> Iterator[Evidence]:
    """never_reads: follows the events and reads none. garbage: no HTTP at all. half_request: a body that never comes.
    crowd: CROWD clients follow the events at once.
    """
    evidence = Evidence(f"client {kind}")
    with ExitStack() as opened:
        clients = [opened.enter_context(_connected(path)) for _ in range(CROWD if kind == "crowd" else 1)]
        for each in clients:
            each.sendall({"garbage": _GARBAGE, "half_request": _HALF}.get(kind, _EVENTS))
        if kind == "half_request":
            evidence.add(f"{len(_HALF)} bytes of a request are taken, and its body is waited for")
        elif kind == "never_reads":
            evidence.add(f"subscribed: {_status(clients[0])!r}, then read no more")
        else:
            evidence.add(_counted([_status(each) for each in clients]))
        yield evidence


def _connected(path: Path) -> socket.socket:
    made = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
    made.settimeout(_ANSWER_S)
    made.connect(str(path))
    return made


def _status(each: socket.socket) -> str:
    """The first line that is answered; `closed` where the server hangs up."""
    end_s, answer = time.monotonic() + _ANSWER_S, b""
    while b"\r\n" not in answer and time.monotonic() < end_s:
        try:
            part = each.recv(256)
        except TimeoutError:
            return "no answer"
        except OSError:
            return "closed"
        if not part:
            return "closed"
        answer += part
    return answer.partition(b"\r\n")[0].decode(errors="replace")


def _counted(answers: list[str]) -> str:
    return ", ".join(f"{answers.count(one)} x {one}" for one in dict.fromkeys(answers))
