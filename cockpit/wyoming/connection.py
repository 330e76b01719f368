"""One client of the Wyoming server: its events in, answers out, one request after another.

Events are read beside the work, so that a client that hangs up ends what runs for it. The work itself runs in threads
of the server, under the leases and turns of `cockpit.api.speech` and on the chain's own understanding thread.
"""

from __future__ import annotations

import asyncio
import contextlib
import logging
import threading
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping
from concurrent.futures import Future
from dataclasses import dataclass
from typing import Any, TypeVar

from wyoming.asr import Transcript
from wyoming.error import Error
from wyoming.event import Event, Eventable, async_write_event
from wyoming.handle import Handled, NotHandled
from wyoming.intent import Entity, Intent, IntentsStart, IntentsStop, NotRecognized
from wyoming.ping import Pong
from wyoming.tts import SynthesizeStopped

from cockpit.api.errors import ApiError
from cockpit.api.grants import Client, Grants
from cockpit.api.schema import Placed
from cockpit.api.speech import SpeechService
from cockpit.text_turns import TextAnswer
from cockpit.wyoming.events import MOST_LINE_BYTES, ProtocolError, read_event
from cockpit.wyoming.info import PROGRAM, Loaded
from cockpit.wyoming.recording import Recording
from cockpit.wyoming.speaking import SpokenText, written_in
from models.errors import InputError
from pipeline.channels import Closed
from pipeline.frames import Language

log = logging.getLogger("cockpit.wyoming")

LINGER_S = 2.0
MOST_TEXT = 4_000
"""Characters of one text to speak or to understand."""
WAITING_EVENTS = 8
T = TypeVar("T")
Ask = Callable[[str, Language, bool], "Future[TextAnswer]"]
"""(text, language, whether to act): see Runtime.ask_for_text."""


@dataclass(frozen=True, slots=True)
class WyomingServices:
    """What the events are answered from. handle: whether commands act on the car."""

    loaded: Loaded
    speech: SpeechService
    grants: Grants
    ask: Ask
    handle: bool


class _Gone(Exception):
    """The client hung up."""


class _Refused(Exception):
    """A request that is answered by an error event. code: a stable word for programs."""

    def __init__(self, message: str, code: str = "invalid_request") -> None:
        super().__init__(message)
        self.code = code


class Connection:
    """Serves one client until it hangs up, sends what is no event, or the server stops."""

    def __init__(
        self, services: WyomingServices, client: Client, reader: asyncio.StreamReader, writer: asyncio.StreamWriter
    ) -> None:
        self._services = services
        self._client = client
        self._reader = reader
        self._writer = writer
        self._events: asyncio.Queue[Event | ProtocolError | None] = asyncio.Queue(WAITING_EVENTS)
        self._gone = threading.Event()
        self._left = asyncio.Event()
        self._wanted: dict[str, Any] = {}
        self._recording: Recording | None = None
        self._spoken: SpokenText | None = None
        self._handlers: Mapping[str, Callable[[Event], Awaitable[None]]] = {
            "describe": self._describe,
            "ping": self._ping,
            "select-program": self._select,
            "transcribe": self._transcribe,
            "audio-start": self._audio_start,
            "audio-chunk": self._audio_chunk,
            "audio-stop": self._audio_stop,
            "synthesize": self._synthesize,
            "synthesize-start": self._synthesize_start,
            "synthesize-chunk": self._synthesize_chunk,
            "synthesize-stop": self._synthesize_stop,
            "recognize": self._recognize,
            "transcript": self._handle,
        }

    async def serve(self) -> None:
        """Until the end of the connection; never raises for what a client may do."""
        reading = asyncio.create_task(self._read())
        try:
            while (event := await self._events.get()) is not None:
                if isinstance(event, ProtocolError):
                    raise _Refused(str(event), "protocol_error") from event
                await self._answer(event)
        except _Refused as refused:
            await self.refuse(str(refused), refused.code)
        except (_Gone, ConnectionError):
            pass
        finally:
            self._leave()
            reading.cancel()

    async def refuse(self, message: str, code: str) -> None:
        """Say why nothing more is served, then read on for a while: a client that still writes would find the
        connection broken before it has read the reason.
        """
        with contextlib.suppress(_Gone, ConnectionError, TimeoutError):
            async with asyncio.timeout(LINGER_S):
                await self._tell(_Refused(message, code))
                self._writer.write_eof()
                while await self._reader.read(MOST_LINE_BYTES):
                    pass

    async def _read(self) -> None:
        """Events to the queue, until the client hangs up."""
        try:
            while (event := await read_event(self._reader)) is not None:
                await self._events.put(event)
        except ProtocolError as error:
            await self._events.put(error)
            return
        self._leave()
        await self._events.put(None)

    def _leave(self) -> None:
        self._gone.set()
        self._left.set()

    async def _answer(self, event: Event) -> None:
        """One event; what cannot be answered is told, and the connection goes on."""
        handler = self._handlers.get(event.type)
        if handler is None:
            log.debug("event %.40s is not served, and dropped as the protocol asks", event.type)
            return
        try:
            await handler(event)
        except _Refused as refused:
            await self._tell(refused)
        except InputError as error:
            await self._tell(_Refused(str(error)))
        except ApiError as error:
            await self._tell(_Refused(error.message, error.code))
        except Closed:
            await self._tell(_Refused("Cockpit is stopping", "stopped"))

    async def _tell(self, refused: _Refused) -> None:
        await self._send(Error(str(refused), refused.code))

    async def _send(self, message: Eventable) -> None:
        if self._gone.is_set():
            raise _Gone
        await async_write_event(message.event(), self._writer)

    def _task(self) -> str:
        """The task that this client's requests run as. Raises _Refused where it is granted none."""
        try:
            return self._services.grants.place(Placed(), self._client).task
        except ApiError as error:
            raise _Refused(error.message, error.code) from error

    async def _unless_gone(self, work: Awaitable[T]) -> T:
        """The result of `work`. Raises _Gone as soon as the client hangs up; `work` is cancelled then."""
        working = asyncio.ensure_future(work)
        leaving = asyncio.ensure_future(self._left.wait())
        try:
            await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
            if not working.done():
                raise _Gone
            return await working
        finally:
            working.cancel()
            leaving.cancel()

    # --- about the server --------------------------------------------------------------------------------------------
    async def _describe(self, event: Event) -> None:
        await self._send(self._services.loaded.info(handle=self._services.handle))

    async def _ping(self, event: Event) -> None:
        await self._send(Pong(event.data.get("text")))

    async def _select(self, event: Event) -> None:
        if event.data.get("name") != PROGRAM:
            raise _Refused(f"no program {str(event.data.get('name'))[:40]!r}; this server has {PROGRAM}")

    # --- recognition -------------------------------------------------------------------------------------------------
    async def _transcribe(self, event: Event) -> None:
        """What the next sound is to be recognised as."""
        self._recording = None
        name, known = event.data.get("name"), self._services.loaded.asr
        if name not in (None, known):
            raise _Refused(f"no model {str(name)[:40]!r}; this process has {known}", "model_not_found")
        self._wanted = {"language": self._language(event.data.get("language"))}

    async def _audio_start(self, event: Event) -> None:
        self._recording = None
        self._recording = Recording(event.data)

    async def _audio_chunk(self, event: Event) -> None:
        if self._recording is None:
            return  # the rest of a sound that was refused, or of none: audio-stop says so
        try:
            self._recording.push(event.data, event.payload or b"")
        except InputError:
            self._recording = None
            raise

    async def _audio_stop(self, event: Event) -> None:
        recording, self._recording = self._recording, None
        wanted, self._wanted = self._wanted, {}
        if recording is None:
            raise _Refused("audio-stop without a sound that was taken; begin with audio-start")
        task = self._task()
        samples = recording.whole()
        language: Language | None = wanted.get("language")
        work = asyncio.to_thread(self._services.speech.transcribe, samples, language, self._gone.is_set, task)
        heard = await self._unless_gone(work)
        await self._send(Transcript(heard.text, language=heard.language))

    def _language(self, asked: Any) -> Language | None:
        """`zh` of `zh-CN`; None for None. Raises _Refused."""
        if asked is None:
            return None
        begins = str(asked).replace("_", "-").split("-")[0].lower()
        for language in self._services.speech.languages:
            if language == begins:
                return language
        known = ", ".join(self._services.speech.languages)
        raise _Refused(f"language {str(asked)[:40]!r} is not served here: {known}", "invalid_value")

    # --- voices ------------------------------------------------------------------------------------------------------
    async def _synthesize(self, event: Event) -> None:
        if self._spoken is not None:
            return  # the whole text once more, for servers that cannot stream
        text = _text(event)
        spoken = self._opened(event)
        await self._play(spoken.push(text))
        await self._play(spoken.close())
        if not spoken.started:
            raise _Refused("text holds nothing that can be spoken", "invalid_value")

    async def _synthesize_start(self, event: Event) -> None:
        self._spoken = None
        self._spoken = self._opened(event)

    async def _synthesize_chunk(self, event: Event) -> None:
        if self._spoken is None:
            raise _Refused("synthesize-chunk without a synthesize-start that was taken")
        try:
            await self._play(self._spoken.push(_text(event)))
        except (InputError, ApiError):
            self._spoken = None
            raise

    async def _synthesize_stop(self, event: Event) -> None:
        spoken, self._spoken = self._spoken, None
        if spoken is None:
            raise _Refused("synthesize-stop without a synthesize-start that was taken")
        await self._play(spoken.close())
        await self._send(SynthesizeStopped())

    async def _play(self, events: AsyncIterator[Eventable]) -> None:
        async for event in events:
            await self._send(event)

    def _opened(self, event: Event) -> SpokenText:
        """A text in the voice that is asked for. Raises _Refused."""
        task = self._task()
        if event.data.get("text_format") not in (None, "text"):
            raise _Refused("only plain text is spoken: text_format text", "invalid_value")
        return SpokenText(self._services.speech, self._voice(event.data.get("voice")), task, self._gone.is_set)

    def _voice(self, asked: Any) -> Language | None:
        """The language of the voice asked for; None where the text is to say. Raises _Refused."""
        if asked is None:
            return None
        if not isinstance(asked, dict):
            raise _Refused("voice is an object with a name or a language", "invalid_value")
        name, speaker = asked.get("name"), asked.get("speaker")
        language = self._language(asked.get("language"))
        if speaker is not None:
            raise _Refused("the voices here have one speaker each: leave speaker out", "invalid_value")
        if name is None:
            return language
        known = self._services.loaded.voice_names()
        if name not in known:
            raise _Refused(f"no voice {str(name)[:40]!r}; this process has {', '.join(known)}", "model_not_found")
        if language is not None and language not in known[name]:
            raise _Refused(f"{name} speaks {', '.join(known[name])}, not {language}", "invalid_value")
        return language or (known[name][0] if len(known[name]) == 1 else None)

    # --- commands ----------------------------------------------------------------------------------------------------
    async def _recognize(self, event: Event) -> None:
        """What the words mean; nothing is done."""
        answer = await self._asked(event, act=False)
        meant = [call for call in answer.calls if call.name != "refuse"]
        refused = [call.arguments for call in answer.calls if call.name == "refuse"]
        context = {"acted": False, **({"refused": refused} if refused else {})}
        if answer.outcome != "answered" or not meant:
            await self._send(NotRecognized(context={**context, "outcome": answer.outcome}))
            return
        intents = [
            Intent(call.name, [Entity(name, value) for name, value in call.arguments.items()], context=context)
            for call in meant
        ]
        if len(intents) == 1:
            await self._send(intents[0])
            return
        for message in (IntentsStart(context), *intents, IntentsStop(context)):
            await self._send(message)

    async def _handle(self, event: Event) -> None:
        """Do what the words mean, and say whether anything was done."""
        if not self._services.handle:
            raise _Refused("commands do not act on the car here: the profile says so (wyoming.handle)", "not_granted")
        answer = await self._asked(event, act=True)
        calls = [
            {
                "name": result.call.name,
                "arguments": result.call.arguments,
                "status": result.status,
                "value": result.value,
                "reason": result.reason,
            }
            for result in answer.results
        ]
        context = {"acted": answer.acted, "outcome": answer.outcome, "calls": calls}
        undone = calls and not any(call["status"] == "done" for call in calls)
        kind = NotHandled if undone or answer.outcome != "answered" else Handled
        await self._send(kind(answer.reply or None, context))

    async def _asked(self, event: Event, *, act: bool) -> TextAnswer:
        self._task()
        text = _text(event).strip()
        if not any(sign.isalnum() for sign in text):
            raise _Refused("text holds no word", "invalid_value")
        language = self._language(event.data.get("language")) or written_in(text)
        coming = await self._unless_gone(asyncio.to_thread(self._ask_now, text, language, act))
        try:
            return await self._unless_gone(asyncio.wrap_future(coming))
        except asyncio.CancelledError:
            if coming.cancelled():  # by the chain, which ends
                raise Closed from None
            raise
        finally:
            coming.cancel()

    def _ask_now(self, text: str, language: Language, act: bool) -> Future[TextAnswer]:
        """In a thread: the chain may have many turns waiting. Nothing is done for a client that left meanwhile."""
        coming = self._services.ask(text, language, act)
        if self._gone.is_set():
            coming.cancel()
        return coming


def _text(event: Event) -> str:
    text = event.data.get("text")
    if not isinstance(text, str) or len(text) > MOST_TEXT:
        raise _Refused(f"text is to be up to {MOST_TEXT} characters", "invalid_value")
    return text
