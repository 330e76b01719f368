"""The page's server: its own files for everybody on this machine, the API's answers for who has the token."""

from __future__ import annotations

import hmac
from collections.abc import Awaitable, Callable
from importlib.resources import files
from pathlib import Path

from starlette.applications import Starlette
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route
from starlette.types import Receive, Scope, Send

from cockpit.panel.proxy import Answer, NotReachable, ask
from pipeline import json_codec

HANDED_ON = {
    "/v1/events": "GET",
    "/v1/status": "GET",
    "/v1/control": "POST",
    "/v1/audio/transcriptions": "POST",
}
"""What the page may ask of the API; nothing else is handed on."""
FILES = {
    "": "index.html",
    "panel.css": "panel.css",
    "panel.js": "panel.js",
    "drive.js": "drive.js",
    "engineer.js": "engineer.js",
    "words.js": "words.js",
    "icon.svg": "icon.svg",
}
_KINDS = {"html": "text/html", "css": "text/css", "js": "text/javascript", "svg": "image/svg+xml"}
MOST_BYTES = 32 << 20
_SAFE = {
    "Content-Security-Policy": "default-src 'none'; script-src 'self'; style-src 'self'; connect-src 'self'; "
    "img-src 'self'; base-uri 'none'; form-action 'none'; frame-ancestors 'none'",
    "Cross-Origin-Opener-Policy": "same-origin",
    "Cross-Origin-Resource-Policy": "same-origin",
    "Referrer-Policy": "no-referrer",
    "X-Content-Type-Options": "nosniff",
    "Cache-Control": "no-store",
}


class Panel:
    """socket: the API's. token: what the page has to send. hosts: what a browser may call this server."""

    def __init__(self, socket: Path, token: str, hosts: frozenset[str]) -> None:
        self._socket = socket
        self._token = token
        self._hosts = hosts
        self._open: set[Answer] = set()
        self._files = {
            name: (files("cockpit.panel").joinpath("static", file).read_bytes(), _KINDS[file.rpartition(".")[2]])
            for name, file in FILES.items()
        }

    def application(self) -> Starlette:
        """The ASGI application."""
        routes = [Route(f"/{name}", self._checked(self._file), methods=["GET"]) for name in self._files]
        routes += [Route(path, self._checked(self._handed_on), methods=[method]) for path, method in HANDED_ON.items()]
        return Starlette(routes=routes)

    def _checked(self, answer: Callable[[Request], Awaitable[Response]]) -> Callable[[Request], Awaitable[Response]]:
        """A foreign name for this server is another page's, whose name was made to lead here (DNS rebinding)."""

        async def checked(request: Request) -> Response:
            if request.headers.get("host", "") not in self._hosts:
                return _refused(421, "misdirected", "open the page by the address that `cockpit panel` printed")
            response = await answer(request)
            response.headers.update(_SAFE)
            return response

        return checked

    async def _file(self, request: Request) -> Response:
        content, kind = self._files[request.url.path.lstrip("/")]
        return Response(content, media_type=kind)

    async def _handed_on(self, request: Request) -> Response:
        given = request.headers.get("authorization", "")
        if not hmac.compare_digest(given.encode(), f"Bearer {self._token}".encode()):
            return _refused(401, "unauthorized", "open the page by the whole address that `cockpit panel` printed")
        try:
            body = await _body(request)
        except ClientDisconnect:
            return _refused(499, "client_gone", "the page has gone")
        if body is None:
            return _refused(413, "too_large", f"more than {MOST_BYTES >> 20} MiB are not handed on")
        target = request.url.path + (f"?{request.url.query}" if request.url.query else "")
        kept = {name: request.headers[name] for name in ("content-type", "accept") if name in request.headers}
        try:
            answer = await ask(self._socket, request.method, target, kept, body)
        except NotReachable as error:
            return _refused(503, "unreachable", str(error))
        return _HandedOn(answer, self._open)

    def close(self) -> None:
        """End what is handed on, so that the server need not cut it off."""
        for answer in tuple(self._open):
            answer.close()


class _HandedOn(StreamingResponse):
    """An answer of the API as it comes. Its connection goes with it, also when the page went before it was read."""

    def __init__(self, answer: Answer, still_open: set[Answer]) -> None:
        self._answer = answer
        self._open = still_open
        self._open.add(answer)
        super().__init__(answer.body(), answer.status, {"Content-Type": answer.content_type})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._open.discard(self._answer)
            self._answer.close()


async def _body(request: Request) -> bytes | None:
    """None where it is too large."""
    data = bytearray()
    async for part in request.stream():
        data += part
        if len(data) > MOST_BYTES:
            return None
    return bytes(data)


def _refused(status: int, code: str, message: str) -> Response:
    """In the form of the API's errors."""
    body = json_codec.dumps({"error": {"message": message, "type": "panel", "param": None, "code": code}})
    return Response(body, status, dict(_SAFE), "application/json")
