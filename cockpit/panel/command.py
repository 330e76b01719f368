"""`cockpit panel`: the page on loopback, until a signal ends it."""

from __future__ import annotations

import asyncio
import os
import secrets
import socket as socket_module
from pathlib import Path
from typing import Annotated

import typer
import uvicorn

from cockpit.panel.app import Panel
from cockpit.scheduling.control_socket import default_socket
from cockpit.token_file import read_token
from cockpit.unix_socket import listening_on_loopback


def panel(
    port: Annotated[int, typer.Option("--port", help="On 127.0.0.1; 0: any free one.", min=0, max=65_535)] = 0,
    socket: Annotated[
        Path | None, typer.Option("--socket", help="The API's socket, where it is not where `serve` puts it by itself.")
    ] = None,
    token_file: Annotated[
        Path | None, typer.Option("--token-file", help="File with the page's token; without it, a new one each time.")
    ] = None,
) -> None:
    """Show a running `cockpit serve` in a browser: the driver's view and the engineer's, on loopback only.

    The address is printed; its last part is a token that only this process knows. What the page may see and do is what
    this process's user may, see docs/headunit.md. Ctrl-C ends it.
    """
    token = secrets.token_urlsafe(24) if token_file is None else read_token(token_file, "--token-file")
    path = socket or Path(os.environ.get("COCKPIT_API_SOCKET", default_socket().with_name("api.sock")))
    listener = listening_on_loopback(port, "--port")
    try:
        bound = int(listener.getsockname()[1])
        hosts = frozenset(f"{name}:{bound}" for name in ("127.0.0.1", "localhost"))
        served = Panel(path, token, hosts)
        config = uvicorn.Config(
            served.application(),
            http="h11",
            ws="none",
            lifespan="off",
            log_config=None,
            access_log=False,
            server_header=False,
            timeout_graceful_shutdown=1,
        )
        typer.echo(f"http://127.0.0.1:{bound}/#token={token}")
        asyncio.run(_Server(config, served).serve(sockets=[listener]))
    finally:
        listener.close()


class _Server(uvicorn.Server):
    """Streams end first when it does: it waits for none and cuts none off."""

    def __init__(self, config: uvicorn.Config, panel: Panel) -> None:
        super().__init__(config)
        self._panel = panel

    async def shutdown(self, sockets: list[socket_module.socket] | None = None) -> None:
        self._panel.close()
        await super().shutdown(sockets)
