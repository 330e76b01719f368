"""Requests of the page, handed on to the API: one connection to its socket for each, as HTTP/1.0, streamed."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Mapping
from dataclasses import dataclass
from pathlib import Path

_HEAD_BYTES = 64 * 1024
_ANSWER_S = 130.0
"""How long the API may take until it begins to answer."""
_PIECE = 64 * 1024


class NotReachable(Exception):
    """Nobody answers on the API's socket, or what answers is no HTTP."""


@dataclass(slots=True, eq=False)
class Answer:
    """status and kind of the answer; `body` is read piece by piece and must be closed."""

    status: int
    content_type: str
    _reader: asyncio.StreamReader
    _writer: asyncio.StreamWriter

    async def body(self) -> AsyncIterator[bytes]:
        """Until the API hangs up."""
        try:
            while piece := await self._reader.read(_PIECE):
                yield piece
        finally:
            self.close()

    def close(self) -> None:
        self._writer.close()


async def ask(path: Path, method: str, target: str, headers: Mapping[str, str], body: bytes) -> Answer:
    """Send one request. target: path and query, as they are to be sent. Raises NotReachable."""
    try:
        reader, writer = await asyncio.open_unix_connection(str(path), limit=_HEAD_BYTES)
    except OSError as error:
        raise NotReachable(f"no answer on {path} ({error.strerror}): is `cockpit serve` running?") from error
    lines = [f"{method} {target} HTTP/1.0", "Host: cockpit", f"Content-Length: {len(body)}"]
    lines += [f"{name}: {value}" for name, value in headers.items()]
    try:
        writer.write("\r\n".join([*lines, "", ""]).encode("latin-1") + body)
        async with asyncio.timeout(_ANSWER_S):
            await writer.drain()
            head = await reader.readuntil(b"\r\n\r\n")
        status, content_type = _read(head)
    except (OSError, TimeoutError, ValueError, asyncio.IncompleteReadError, asyncio.LimitOverrunError) as error:
        writer.close()
        raise NotReachable(f"{path} gave no whole answer ({type(error).__name__}): see the journal") from error
    except BaseException:
        writer.close()
        raise
    return Answer(status, content_type, reader, writer)


def _read(head: bytes) -> tuple[int, str]:
    """Raises ValueError."""
    first, *rest = head.decode("latin-1").split("\r\n")
    fields = {name.strip().lower(): value.strip() for name, _, value in (line.partition(":") for line in rest)}
    return int(first.split()[1]), fields.get("content-type", "application/json")
