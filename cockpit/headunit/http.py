"""What a head unit asks besides texts: the stream of events, what the driver does by hand, and the metrics."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator
from contextlib import suppress
from typing import Annotated, Literal, cast

from pydantic import Field, model_validator
from starlette.responses import StreamingResponse
from starlette.types import Receive, Scope, Send

from cockpit.api.errors import ApiError, invalid
from cockpit.api.schema import Body
from cockpit.headunit.cabin import Cabin, NotHere
from cockpit.headunit.forms import TYPES, EventType
from cockpit.headunit.stream import EventStream, Subscription, TooManySubscribers
from models.errors import InputError
from pipeline.channels import Closed
from pipeline.frames import Language

ALIVE_S = 15.0
"""A client that is told nothing for so long is told that the stream is alive."""
SSE, LINES = "text/event-stream", "application/x-ndjson"
_FIELDS = {"talk": "on", "mute": "on", "cancel": None, "language": "language", "volume": "volume", "ask": "text"}


class ControlRequest(Body):
    """POST /v1/control: one thing that the driver does by hand."""

    op: Literal["talk", "mute", "cancel", "language", "volume", "ask"]
    on: bool | None = None
    """Of talk (pressed, let go) and mute."""
    language: Literal["en", "zh", "auto"] | None = None
    """Which one is heard from now on; of `ask`: that of the text, by its letters where it is not given."""
    volume: Annotated[float, Field(ge=0.0, le=1.0, strict=False)] | None = None
    text: Annotated[str, Field(min_length=1, max_length=1000)] | None = None
    """Of `ask`: what the driver would say."""

    @model_validator(mode="after")
    def _of_its_op(self) -> ControlRequest:
        needed = _FIELDS[self.op]
        if needed is not None and getattr(self, needed) is None:
            raise ValueError(f"{self.op} needs {needed}")
        taken = {needed, "language"} if self.op == "ask" else {needed}
        others = [name for name in ("on", "language", "volume", "text") if getattr(self, name) is not None]
        unused = [name for name in others if name not in taken]
        if unused:
            raise ValueError(f"{self.op} takes no {unused[0]}")
        if self.text is not None and not self.text.strip():
            raise ValueError("nothing to ask: text is empty")
        return self


def carry_out(cabin: Cabin, body: ControlRequest, language_of: Language) -> int | None:
    """Do it; the id of the turn that `ask` opens. language_of: the text's, by its letters. Raises ApiError."""
    try:
        if body.op == "talk":
            cabin.talk(bool(body.on))
        elif body.op == "mute":
            cabin.mute(bool(body.on))
        elif body.op == "cancel":
            cabin.cancel()
        elif body.op == "language":
            cabin.use_language(str(body.language))
        elif body.op == "volume":
            cabin.set_volume(cast(float, body.volume))
        else:
            named = None if body.language in (None, "auto") else cast(Language, body.language)
            return cabin.ask(str(body.text).strip(), named or language_of)
    except NotHere as error:
        raise ApiError(409, "not_here", str(error)) from error
    except InputError as error:
        raise ApiError(409, "not_now", str(error)) from error
    except Closed as error:
        raise ApiError(503, "stopped", "the process is ending: nothing was done", retry_after_s=5) from error
    return None


def wanted_types(listed: str | None) -> tuple[EventType, ...]:
    """Of the query `types`: comma-separated, all without it. `dropped` always comes. Raises ApiError."""
    if listed is None:
        return TYPES
    names = [name.strip() for name in listed.split(",") if name.strip()]
    unknown = [name for name in names if name not in TYPES]
    if unknown or not names:
        raise invalid(f"no event {(unknown or [''])[0]!r}; there are {', '.join(TYPES)}", "types")
    return tuple(cast(EventType, name) for name in names)


class EventsResponse(StreamingResponse):
    """The events from now on, until the client hangs up or the process ends.

    lines: one JSON object a line, an empty one to show that it is alive; else server-sent events, with a comment.
    """

    def __init__(self, events: EventStream, types: tuple[EventType, ...], *, words: bool, lines: bool) -> None:
        """On the loop that will send it. Raises ApiError (429)."""
        loop, news = asyncio.get_running_loop(), asyncio.Event()

        def wake() -> None:
            with suppress(RuntimeError):  # the loop has ended, and the client with it
                loop.call_soon_threadsafe(news.set)

        self._events = events
        try:
            self._subscription = events.subscribe(types, words=words, wake=wake)
        except TooManySubscribers as error:
            raise ApiError(429, "too_many_subscribers", str(error), retry_after_s=5) from error
        told = _told(self._subscription, news, lines=lines)
        super().__init__(told, media_type=LINES if lines else SSE, headers={"Cache-Control": "no-store"})

    async def __call__(self, scope: Scope, receive: Receive, send: Send) -> None:
        try:
            await super().__call__(scope, receive, send)
        finally:
            self._events.unsubscribe(self._subscription)


async def _told(subscription: Subscription, news: asyncio.Event, *, lines: bool) -> AsyncIterator[bytes]:
    before, behind, alive = (b"", b"\n", b"\n") if lines else (b"data: ", b"\n\n", b": alive\n\n")
    while True:
        for event in subscription.take():
            yield before + event + behind
        if subscription.ended:
            return
        try:
            async with asyncio.timeout(ALIVE_S):
                await news.wait()
        except TimeoutError:
            yield alive
        news.clear()
