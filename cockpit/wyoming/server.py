"""The Wyoming server's sockets and its thread: clients beside the voice chain, which never waits for them."""

from __future__ import annotations

import asyncio
import logging
import socket
import threading
from concurrent.futures import ThreadPoolExecutor
from contextlib import suppress
from pathlib import Path

from cockpit.api.grants import Client
from cockpit.unix_socket import listening, listening_on_loopback, peer_of
from cockpit.wyoming.connection import Connection, WyomingServices
from cockpit.wyoming.events import MOST_LINE_BYTES
from models.errors import StartupError

log = logging.getLogger("cockpit.wyoming")

_STOP_S = 10.0
_TICK_S = 0.5


class WyomingServer:
    """Serves until `stop`. path: of the unix socket, port: on loopback; None without one."""

    def __init__(
        self, services: WyomingServices, path: Path | None, sockets: list[socket.socket], connections: int
    ) -> None:
        self.path = path
        self.port = next((int(made.getsockname()[1]) for made in sockets if made.family == socket.AF_INET), None)
        self._services = services
        self._sockets = sockets
        self._most = connections
        self._serving: set[asyncio.Task[None]] = set()
        self._loop: asyncio.AbstractEventLoop | None = None
        self._ended: asyncio.Event | None = None
        self._started = threading.Event()
        self._thread = threading.Thread(target=self._run, name="wyoming", daemon=True)
        self.ticks = 0
        """Grows while its loop turns."""

    @classmethod
    def open(
        cls,
        services: WyomingServices,
        path: Path | None,
        *,
        group: str | None = None,
        port: int | None = None,
        connections: int = 16,
    ) -> WyomingServer:
        """Bind the socket (0660, `group`), the loopback port (0: any free one), or both; `start` serves.

        connections: clients that may be connected at once. Raises StartupError naming what is in the way.
        """
        sockets: list[socket.socket] = []
        try:
            if path is not None:
                sockets.append(listening(path, "wyoming.socket", group))
            if port is not None:
                sockets.append(listening_on_loopback(port, "wyoming.port"))
            return cls(services, path, sockets, connections)
        except BaseException:
            for made in sockets:
                made.close()
            if sockets and path is not None:
                path.unlink(missing_ok=True)
            raise

    @property
    def addresses(self) -> tuple[str, ...]:
        """Where clients find it, as they name it."""
        unix = () if self.path is None else (f"unix://{self.path}",)
        return unix if self.port is None else (*unix, f"tcp://127.0.0.1:{self.port}")

    @property
    def clients(self) -> int:
        """How many are connected."""
        return len(self._serving)

    def start(self) -> None:
        """Returns once clients are served. Raises StartupError."""
        self._thread.start()
        while not self._started.wait(0.1):
            if not self._thread.is_alive():
                self.stop()
                raise StartupError("the Wyoming server did not start; the journal says why")

    def stop(self) -> None:
        """Take no more clients, end those that are connected, remove the socket. Safe to call twice."""
        if self._loop is not None and self._ended is not None and self._thread.is_alive():
            self._loop.call_soon_threadsafe(self._ended.set)
        if self._thread.ident is not None:
            self._thread.join(_STOP_S)
        for made in self._sockets:
            made.close()
        if self.path is not None:
            self.path.unlink(missing_ok=True)

    def _run(self) -> None:
        try:
            asyncio.run(self._serve())
        except Exception:
            log.exception("the Wyoming server has ended")

    async def _serve(self) -> None:
        self._loop, self._ended = asyncio.get_running_loop(), asyncio.Event()
        self._loop.set_default_executor(ThreadPoolExecutor(self._most, thread_name_prefix="wyoming"))
        servers = [await self._listen(made) for made in self._sockets]
        self._started.set()
        while not self._ended.is_set():
            self.ticks += 1
            with suppress(TimeoutError):
                await asyncio.wait_for(self._ended.wait(), _TICK_S)
        for server in servers:
            server.close()
        for task in list(self._serving):
            task.cancel()
        await asyncio.gather(*self._serving, return_exceptions=True)

    async def _listen(self, made: socket.socket) -> asyncio.Server:
        if made.family == socket.AF_UNIX:
            return await asyncio.start_unix_server(self._connected, sock=made, limit=MOST_LINE_BYTES)
        return await asyncio.start_server(self._connected, sock=made, limit=MOST_LINE_BYTES)

    async def _connected(self, reader: asyncio.StreamReader, writer: asyncio.StreamWriter) -> None:
        task = asyncio.current_task()
        assert task is not None
        peer: socket.socket = writer.get_extra_info("socket")
        client = Client(peer_of(peer)[0] if peer.family == socket.AF_UNIX else None)
        connection = Connection(self._services, client, reader, writer)
        try:
            if len(self._serving) >= self._most:
                await connection.refuse(f"{self._most} clients are connected already: try again", "busy")
                return
            self._serving.add(task)
            await connection.serve()
        except asyncio.CancelledError:
            pass  # the server stops
        except Exception:
            log.exception("a Wyoming client's connection failed")
        finally:
            self._serving.discard(task)
            writer.close()
