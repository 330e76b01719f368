"""The API's socket and its thread: an ASGI server beside the voice chain, which never waits for it."""

from __future__ import annotations

import asyncio
import hmac
import logging
import socket
import threading
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import replace
from pathlib import Path

import uvicorn
from starlette.requests import Request
from uvicorn.protocols.http.h11_impl import H11Protocol

from cockpit.api.app import Services, application
from cockpit.api.errors import ApiError
from cockpit.api.grants import Client
from cockpit.unix_socket import listening, listening_on_loopback, peer_of
from models.errors import StartupError

log = logging.getLogger("cockpit.api")

_UNIX_CLIENT = "unix-user"
"""How a connection's peer is named in its requests, with the user's number in place of a port."""
_BACKLOG = 128
_KEEP_ALIVE_S = 30
_START_S = 30.0
_STOP_S = 10.0


class _PeerProtocol(H11Protocol):
    """HTTP/1.1 whose client is the unix user at the other end, as the kernel tells it."""

    def connection_made(self, transport: asyncio.Transport) -> None:  # type: ignore[override]
        super().connection_made(transport)
        peer: socket.socket | None = transport.get_extra_info("socket")
        if peer is not None and peer.family == socket.AF_UNIX:
            self.client = (_UNIX_CLIENT, peer_of(peer)[0])


class _Server(uvicorn.Server):
    """Counts the turns of its loop: ten a second while it is well."""

    ticks = 0

    async def on_tick(self, counter: int) -> bool:
        self.ticks += 1
        return await super().on_tick(counter)


class ApiServer:
    """Serves until `stop`. `path`: of the socket; `port`: of the loopback port, None without one."""

    def __init__(
        self,
        path: Path,
        port: int | None,
        sockets: list[socket.socket],
        server: _Server,
        speech_threads: ThreadPoolExecutor,
        *,
        own: bool = True,
    ) -> None:
        """own: whether the socket's file goes with the server. speech_threads: of its application."""
        self.path = path
        self._own = own
        self.port = port
        self._sockets = sockets
        self._server = server
        self._speech_threads = speech_threads
        self._thread = threading.Thread(target=self._serve, name="api", daemon=True)

    @classmethod
    def open(
        cls,
        services: Services,
        path: Path,
        *,
        group: str | None = None,
        port: int | None = None,
        token: str | None = None,
        given: socket.socket | None = None,
    ) -> ApiServer:
        """Bind the socket (0660, `group`) and, with a token, a loopback port (0: any free one).

        given: a socket that listens on `path` already; its file stays when the server stops.

        Raises StartupError naming what is in the way.
        """
        if port is not None and not token:
            raise StartupError("api.port needs api.token_file: over loopback every program of this machine could ask")
        sockets = [given or listening(path, "api.socket", group)]
        own = given is None
        try:
            if port is not None:
                sockets.append(listening_on_loopback(port, "api.port"))
        except BaseException:
            _close(path if own else None, sockets)
            raise
        served = replace(services, client_of=_client_of(token))
        app = application(served)
        config = uvicorn.Config(
            app,
            http=_PeerProtocol,
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            date_header=False,
            timeout_keep_alive=_KEEP_ALIVE_S,
            backlog=_BACKLOG,
            timeout_graceful_shutdown=2,
        )
        bound = None if port is None else int(sockets[1].getsockname()[1])
        return cls(path, bound, sockets, _Server(config), app.state.speech_threads, own=own)

    @property
    def ticks(self) -> int:
        """Grows while its loop turns."""
        return self._server.ticks

    def start(self) -> None:
        """Returns once requests are taken. Raises StartupError."""
        self._thread.start()
        deadline = threading.Event()
        for _ in range(int(_START_S / 0.02)):
            if self._server.started:
                return
            if not self._thread.is_alive():
                break
            deadline.wait(0.02)
        self.stop()
        raise StartupError(f"the API on {self.path} did not start; the journal says why")

    def stop(self) -> None:
        """Take no more requests, end those that run, remove the socket. Safe to call twice."""
        self._server.should_exit = True
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)
        _close(self.path if self._own else None, self._sockets)

    def _serve(self) -> None:
        try:
            asyncio.run(self._server.serve(sockets=self._sockets))
        except Exception:
            log.exception("the API on %s has ended", self.path)
        finally:
            self._speech_threads.shutdown(wait=False, cancel_futures=True)


def _client_of(token: str | None) -> Callable[[Request], Client]:
    """Who sent a request. Raises ApiError (401) over loopback without the token."""

    def client(request: Request) -> Client:
        peer = request.client
        if peer is not None and peer.host == _UNIX_CLIENT:
            return Client(peer.port)
        given = request.headers.get("authorization", "")
        if token is None or not hmac.compare_digest(given.encode(), f"Bearer {token}".encode()):
            raise ApiError(401, "unauthorized", "send the token of api.token_file as `Authorization: Bearer ...`")
        return Client(None)

    return client


def _close(path: Path | None, sockets: list[socket.socket]) -> None:
    for made in sockets:
        made.close()
    if path is not None:
        path.unlink(missing_ok=True)
