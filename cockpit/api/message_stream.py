"""The messages of one generation on the event loop, and as server-sent events."""

from __future__ import annotations

import asyncio
from collections import deque
from collections.abc import AsyncIterator, Mapping
from typing import Any

from starlette.responses import StreamingResponse

from cockpit.api.errors import ApiError
from cockpit.api.generation import Finished, Generation, Piece, TextRequest
from cockpit.api.text import TextService
from models.engines.llm.sampling import TokenChance
from pipeline import json_codec


class MessageStream:
    """The messages of one generation on the event loop. A loop that lags is woken once for all that came meanwhile."""

    def __init__(self, service: TextService, request: TextRequest) -> None:
        self._loop = asyncio.get_running_loop()
        self._messages: deque[Piece | Finished | ApiError] = deque()
        self._came = asyncio.Event()
        self._told = False
        self.generation: Generation = service.submit(request, self._emit)

    def _emit(self, message: Piece | Finished | ApiError) -> None:
        """In the thread that generates."""
        self._messages.append(message)
        if not self._told:
            self._told = True
            self._loop.call_soon_threadsafe(self._came.set)

    @property
    def more(self) -> bool:
        """Whether the next message is there already."""
        return bool(self._messages)

    async def __aiter__(self) -> AsyncIterator[Piece | Finished]:
        """Pieces, then `Finished`. Raises ApiError. Whoever stops early must cancel the generation."""
        while True:
            while not self._messages:
                self._came.clear()
                self._told = False  # before the last look: what comes from here on wakes the loop again
                if not self._messages:
                    await self._came.wait()
            message = self._messages.popleft()
            if isinstance(message, ApiError):
                raise message
            yield message
            if isinstance(message, Finished):
                return

    async def whole(self) -> tuple[str, list[TokenChance], Finished]:
        """All of it."""
        text, chances = "", list[TokenChance]()
        async for message in self:
            if isinstance(message, Finished):
                return text, chances, message
            text += message.text
            chances += message.chances
        raise AssertionError("a stream ends with Finished")


def sent_events(chunks: AsyncIterator[Mapping[str, Any]], stream: MessageStream) -> StreamingResponse:
    """Server-sent events. An error in the midst is an event of its own, and the end is `[DONE]` only after success."""

    async def lines() -> AsyncIterator[bytes]:
        written = b""
        try:
            async for chunk in chunks:
                written += b"data: " + json_codec.dumps(chunk) + b"\n\n"
                if not stream.more:
                    yield written
                    written = b""
            yield written + b"data: [DONE]\n\n"
        except ApiError as error:
            yield written + b"data: " + json_codec.dumps(error.body()) + b"\n\n"
        finally:
            stream.generation.cancel()

    return StreamingResponse(lines(), media_type="text/event-stream", headers={"Cache-Control": "no-store"})
