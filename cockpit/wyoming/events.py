"""Events from a client that may send anything: what is no event, or too large, is refused before it is kept.

The format is that of `wyoming.event`: a JSON line, then as many bytes of JSON data and of payload as the line says. The
package's own reader takes any length that a client names.
"""

from __future__ import annotations

import asyncio
from typing import Any

import orjson
from wyoming.event import Event

MOST_LINE_BYTES = 64 << 10
MOST_DATA_BYTES = 256 << 10
MOST_PAYLOAD_BYTES = 1 << 20
"""Half a minute of 16-bit sound at 16 kHz; clients send a tenth of a second at a time."""
REST_S = 30.0
"""An event whose line has come and whose rest takes longer is given up."""


class ProtocolError(Exception):
    """What came is no event, and nobody can say where the next one begins: the connection ends."""


async def read_event(reader: asyncio.StreamReader) -> Event | None:
    """The next event, None when the client has hung up, in the midst of one too. Raises ProtocolError.

    reader: its limit must be MOST_LINE_BYTES.
    """
    try:
        line = await reader.readline()
        if not line.endswith(b"\n"):
            return None
        head = _object(line, "a line")
        async with asyncio.timeout(REST_S):
            data = await reader.readexactly(_length(head, "data_length", MOST_DATA_BYTES))
            payload = await reader.readexactly(_length(head, "payload_length", MOST_PAYLOAD_BYTES))
    except (asyncio.IncompleteReadError, ConnectionError):
        return None
    except TimeoutError as error:
        raise ProtocolError(f"an event did not arrive within {REST_S:g} s") from error
    except ValueError as error:  # of readline: no end of line within the limit
        raise ProtocolError(f"a line ends within {MOST_LINE_BYTES} bytes") from error
    kind, fields = head.get("type"), head.get("data") or {}
    if not isinstance(kind, str) or not isinstance(fields, dict):
        raise ProtocolError("an event has a type, a text, and data, an object")
    if data:
        fields = fields | _object(data, "data")
    return Event(kind, fields, payload or None)


def _object(text: bytes, what: str) -> dict[str, Any]:
    try:
        read = orjson.loads(text)
    except orjson.JSONDecodeError as error:
        raise ProtocolError(f"{what} is no JSON: {error}") from error
    if not isinstance(read, dict):
        raise ProtocolError(f"{what} is no JSON object")
    return read


def _length(head: dict[str, Any], name: str, most: int) -> int:
    length = head.get(name)
    if length is None:
        return 0
    if isinstance(length, bool) or not isinstance(length, int) or not 0 <= length <= most:
        raise ProtocolError(f"{name} is to be 0 to {most}, not {str(length)[:40]}")
    return length
