"""A client of the API that a head-unit program can copy: one file, the standard library only.

    cockpit = Cockpit("/run/cockpit/api.sock")
    print(cockpit.chat("How do I change a tyre?"))
    for piece in cockpit.chat_stream("Tell me about Munich", task="dialogue", session="front-seat"):
        print(piece, end="", flush=True)
    wav = cockpit.speech("In 200 metres turn left", language="en")
    for event in cockpit.events(types="state,transcript,clause"):  # until you stop
        print(event["type"], event)
    cockpit.control("talk", on=True)  # push-to-talk; also cancel, mute, language, volume, ask
    cockpit.guide("In 200 metres turn left", manoeuvre="exit-12", deadline_ms=3000)  # aloud, in the car

A `CockpitError` says what the server said: `status` of HTTP, `code` for programs, and a text for people.
"""

from __future__ import annotations

import http.client
import json
import socket
import uuid
from collections.abc import Iterator, Mapping, Sequence
from typing import Any


class CockpitError(Exception):
    """A refused request, or no answer at all (status 0)."""

    def __init__(self, status: int, code: str, message: str) -> None:
        super().__init__(message)
        self.status = status
        self.code = code


class _UnixConnection(http.client.HTTPConnection):
    def __init__(self, path: str, timeout_s: float) -> None:
        super().__init__("cockpit", timeout=timeout_s)
        self._path = path

    def connect(self) -> None:
        self.sock = socket.socket(socket.AF_UNIX, socket.SOCK_STREAM)
        self.sock.settimeout(self.timeout)
        self.sock.connect(self._path)


class Cockpit:
    """path: of the API's socket. timeout_s: the longest wait for the next bytes. One thread uses it at a time."""

    def __init__(self, path: str, timeout_s: float = 60.0) -> None:
        self._path = path
        self._timeout_s = timeout_s

    def chat(self, said: str | Sequence[Mapping[str, Any]], **fields: Any) -> str:
        """The answer to one text, or to whole messages. fields: as OpenAI has them, and task, session, deadline_ms."""
        answer = self.ask("POST", "/v1/chat/completions", {"messages": _messages(said), **fields})
        return str(answer["choices"][0]["message"]["content"] or "")

    def chat_stream(self, said: str | Sequence[Mapping[str, Any]], **fields: Any) -> Iterator[str]:
        """The same, piece by piece. Stop iterating (or close it) to cancel the answer."""
        response = self._send("POST", "/v1/chat/completions", {"messages": _messages(said), "stream": True, **fields})
        with response:
            for line in response:
                data = line.strip().removeprefix(b"data: ")
                if not data or data == b"[DONE]":
                    continue
                event = json.loads(data)
                if "error" in event:
                    raise CockpitError(200, str(event["error"]["code"]), str(event["error"]["message"]))
                for choice in event["choices"]:
                    yield choice["delta"].get("content") or ""

    def speech(self, text: str, **fields: Any) -> bytes:
        """The text as a WAV file."""
        with self._send("POST", "/v1/audio/speech", {"input": text, **fields}) as response:
            return response.read()

    def transcribe(self, wav: bytes, *, language: str | None = None) -> str:
        """What is said in a WAV file."""
        boundary = uuid.uuid4().hex
        fields = {} if language is None else {"language": language}
        parts = [f'Content-Disposition: form-data; name="{name}"\r\n\r\n{value}' for name, value in fields.items()]
        file = 'Content-Disposition: form-data; name="file"; filename="said.wav"\r\nContent-Type: audio/wav\r\n\r\n'
        head = "".join(f"--{boundary}\r\n{part}\r\n" for part in parts) + f"--{boundary}\r\n{file}"
        body = head.encode() + wav + f"\r\n--{boundary}--\r\n".encode()
        kind = f"multipart/form-data; boundary={boundary}"
        with self._send("POST", "/v1/audio/transcriptions", body, kind=kind) as response:
            return str(json.loads(response.read())["text"])

    def guide(
        self, text: str, *, language: str | None = None, manoeuvre: str | None = None, deadline_ms: int | None = None
    ) -> int:
        """Speak a prompt of navigation in the car, over whatever else is said; returns its id at once. It is dropped
        where it cannot begin before the deadline, or a newer one for the same manoeuvre comes.
        """
        fields = {"text": text, "language": language, "manoeuvre": manoeuvre, "deadline_ms": deadline_ms}
        body = {name: value for name, value in fields.items() if value is not None}
        return int(self.ask("POST", "/v1/guidance", body)["id"])

    def events(self, types: str | None = None) -> Iterator[dict[str, Any]]:
        """What happens, from now on, beginning with the state; see docs/headunit.md. Stop iterating to hang up.

        types: those wanted, comma-separated. Ends with the server.
        """
        path = "/v1/events" if types is None else f"/v1/events?types={types}"
        with self._send("GET", path, None, accept="application/x-ndjson") as response:
            for line in response:
                if line.strip():
                    yield json.loads(line)

    def control(self, op: str, **fields: Any) -> dict[str, Any]:
        """What the driver does by hand: talk and mute (on), cancel, language, volume, ask (text). The new state."""
        return dict(self.ask("POST", "/v1/control", {"op": op, **fields}))

    def ask(self, method: str, path: str, body: Mapping[str, Any] | None = None) -> Any:
        """Any request with a JSON answer, such as ask("GET", "/health")."""
        with self._send(method, path, body) as response:
            return json.loads(response.read())

    def _send(
        self,
        method: str,
        path: str,
        body: Mapping[str, Any] | bytes | None,
        accept: str = "*/*",
        kind: str = "application/json",
    ) -> http.client.HTTPResponse:
        connection = _UnixConnection(self._path, self._timeout_s)
        headers = {"Content-Type": kind, "Connection": "close", "Accept": accept}
        try:
            sent = body if body is None or isinstance(body, bytes) else json.dumps(body)
            connection.request(method, path, sent, headers)
            response = connection.getresponse()
        except OSError as error:
            connection.close()
            raise CockpitError(0, "unreachable", f"no answer on {self._path} ({error}): is Cockpit running?") from error
        if not 200 <= response.status < 300:
            with response:
                raise _refusal(response.status, response.read())
        return response


def _messages(said: str | Sequence[Mapping[str, Any]]) -> list[Mapping[str, Any]]:
    return [{"role": "user", "content": said}] if isinstance(said, str) else list(said)


def _refusal(status: int, body: bytes) -> CockpitError:
    try:
        error = json.loads(body)["error"]
        return CockpitError(status, str(error["code"]), str(error["message"]))
    except (ValueError, KeyError, TypeError):
        return CockpitError(status, "unknown", body.decode(errors="replace")[:200])
