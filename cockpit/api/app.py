"""The routes: HTTP bodies in, task requests to the services, JSON and server-sent events out."""

from __future__ import annotations

import asyncio
import threading
import time
import uuid
from collections.abc import AsyncIterator, Awaitable, Callable, Mapping, Sequence
from concurrent.futures import ThreadPoolExecutor
from dataclasses import dataclass, field
from functools import partial
from typing import Any, TypeVar

from pydantic import BaseModel, ValidationError
from starlette.applications import Starlette
from starlette.datastructures import UploadFile
from starlette.exceptions import HTTPException
from starlette.requests import ClientDisconnect, Request
from starlette.responses import Response, StreamingResponse
from starlette.routing import Route

from cockpit.api import chat
from cockpit.api.errors import ApiError, invalid, of_validation
from cockpit.api.generation import Finished, Piece, TextRequest
from cockpit.api.grants import NS_PER_MS, Client, Grants, Placement
from cockpit.api.message_stream import MessageStream, sent_events
from cockpit.api.schema import (
    ChatRequest,
    CompletionRequest,
    DetokenizeRequest,
    Generated,
    GuidanceRequest,
    Placed,
    SpeechRequest,
    TokenizeRequest,
)
from cockpit.api.speech import SpeechService, pcm16, samples_of, wav_of
from cockpit.api.text import TextService
from cockpit.arbiter.config import NAVIGATION
from cockpit.headunit.cabin import Cabin
from cockpit.headunit.http import LINES, ControlRequest, EventsResponse, carry_out, wanted_types
from cockpit.headunit.stream import EventStream
from models.engines.base import Audio
from models.engines.llm.sampling import Sampling, TokenChance
from models.engines.llm.tokenizer import TextTokenizer
from models.errors import InputError
from pipeline import json_codec
from pipeline.dialogue.remote import RemoteTalk
from pipeline.frames import GuidancePrompt, Language
from pipeline.guidance import GuidanceEnded, PromptOutdated

MOST_BODY_BYTES = 4 << 20
MOST_UPLOAD_BYTES = 64 << 20
BODY_S = 30.0
"""A body that takes longer to arrive is given up."""
SPEECH_THREADS = 16
"""Recordings and texts to be spoken that are at work or wait for their turn; more wait for a thread."""
B = TypeVar("B", bound=BaseModel)
T = TypeVar("T")
Answer = Callable[[Request], Awaitable[Response]]


def _nobody(_request: Request) -> Client:
    raise ApiError(403, "not_granted", "this server was not told who its clients are")


@dataclass(frozen=True, slots=True)
class Services:
    """What the routes answer from. texts: language models by name, the first being the default. health: what
    `/health` adds about the process. client_of: who sent a request.
    """

    texts: Mapping[str, TextService]
    speech: SpeechService | None
    grants: Grants
    health: Callable[[], Mapping[str, Any]]
    client_of: Callable[[Request], Client] = field(default=_nobody)
    roles: Mapping[str, Sequence[str]] = field(default_factory=dict)
    """Model -> what it does: requests of a task whose role another model than the first has go there."""
    guide: Callable[[GuidancePrompt], int] | None = None
    """Speaks a prompt of guidance and returns its id; None where nobody would hear it."""
    remote: RemoteTalk | None = None
    """The server that free talk may go to."""
    decided: Callable[[], Mapping[str, int]] | None = None
    """How many turns were decided by what; None where there are no turns."""
    cabin: Cabin | None = None
    """The voice chain, for `/v1/control`; None where there is none."""
    events: EventStream | None = None
    metrics: Callable[[str], tuple[bytes, str]] | None = None
    """What `/metrics` answers for an Accept header, with its content type."""
    status: Callable[[], Mapping[str, Any]] | None = None
    """What `/v1/status` adds to the state: for an engineer, and without words."""
    started_s: int = field(default_factory=lambda: int(time.time()))

    def stats(self) -> dict[str, Any]:
        """What `/v1/stats` and `o3ctl status --json` show of the language models, by name, and of turns."""
        shown: dict[str, Any] = {"models": {name: service.shown() for name, service in self.texts.items()}}
        if self.decided is not None:
            shown["turns"] = {"decided_by": dict(self.decided())}
        return shown if self.remote is None else shown | {"remote": self.remote.shown()}

    def text(self, model: str | None, task: str = "") -> tuple[str, TextService]:
        """A language model by name or by role; without either, the one for `task` (the arbiter's name). Raises ApiError
        (404).
        """
        wanted = task.removesuffix("_task") if model is None else model
        name = next((name for name, roles in self.roles.items() if wanted in roles), wanted)
        if model is None and name not in self.texts:
            name = next(iter(self.texts))
        service = self.texts.get(name)
        if service is None:
            there = ", ".join(self._described(known) for known in self.texts)
            raise ApiError(404, "model_not_found", f"no model {model!r}; this process has {there}", "model")
        return name, service

    def _described(self, name: str) -> str:
        roles = ", ".join(self.roles.get(name, ()))
        return f"{name} ({roles})" if roles else name


def application(services: Services) -> Starlette:
    """The ASGI application."""
    routes = _Routes(services)
    app = Starlette(
        routes=[
            Route("/v1/chat/completions", _answered(services, routes.chat), methods=["POST"]),
            Route("/v1/completions", _answered(services, routes.completion), methods=["POST"]),
            Route("/v1/audio/transcriptions", _answered(services, routes.transcription), methods=["POST"]),
            Route("/v1/audio/speech", _answered(services, routes.speech), methods=["POST"]),
            Route("/v1/guidance", _answered(services, routes.guidance), methods=["POST"]),
            Route("/v1/events", _answered(services, routes.events), methods=["GET"]),
            Route("/v1/control", _answered(services, routes.control), methods=["POST"]),
            Route("/v1/models", _answered(services, routes.models), methods=["GET"]),
            Route("/v1/models/{name}", _answered(services, routes.model), methods=["GET"]),
            Route("/tokenize", _answered(services, routes.tokenize), methods=["POST"]),
            Route("/detokenize", _answered(services, routes.detokenize), methods=["POST"]),
            Route("/v1/stats", _answered(services, routes.stats), methods=["GET"]),
            Route("/v1/status", _answered(services, routes.status), methods=["GET"]),
            Route("/metrics", _answered(services, routes.metrics), methods=["GET"]),
            Route("/health", _answered(services, routes.health), methods=["GET"]),
        ],
        exception_handlers={HTTPException: _http_error},  # type: ignore[dict-item]
    )
    app.state.speech_threads = routes.speech_threads
    return app


class _Routes:
    def __init__(self, services: Services) -> None:
        self._services = services
        self.speech_threads = ThreadPoolExecutor(SPEECH_THREADS, "api-speech")
        """Recognition and speech wait for their turns there, so that what is short never waits behind them."""

    async def _spoken(self, work: Callable[..., T], *arguments: Any) -> T:
        return await asyncio.get_running_loop().run_in_executor(self.speech_threads, partial(work, *arguments))

    async def chat(self, request: Request) -> Response:
        body = await _body(request, ChatRequest)
        placement = self._services.grants.place(body, self._services.client_of(request))
        name, service = self._services.text(body.model, placement.task)
        if chat.is_short(body):
            prompt, constraint = chat.prompt_of(body, service.model), None
        else:
            prompt = await asyncio.to_thread(chat.prompt_of, body, service.model)
            constraint = await asyncio.to_thread(chat.constraint_of, body, service.model)
        alternatives = (body.top_logprobs or 0) if body.logprobs else None
        text_request = _text_request(placement, body, prompt, body.most_tokens, alternatives, constraint)
        head = {"id": f"chatcmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}
        stream = MessageStream(service, text_request)
        tokenizer = service.model.tokenizer
        if body.stream:
            return sent_events(_chat_chunks(body, head, stream, tokenizer), stream)
        text, chances, finished = await _unless_gone(request, stream.whole(), stream.generation.cancel)
        content, calls = chat.calls_in(text) if chat.may_call(body) else (text, [])
        message: dict[str, Any] = {"role": "assistant", "content": content if content or not calls else None}
        if calls:
            message["tool_calls"] = calls
        choice = {
            "index": 0,
            "message": message,
            "finish_reason": "tool_calls" if calls else finished.reason,
            "logprobs": {"content": [_chance(c, tokenizer) for c in chances]} if body.logprobs else None,
        }
        return _json({**head, "object": "chat.completion", "choices": [choice], **_usage(finished)})

    async def completion(self, request: Request) -> Response:
        body = await _body(request, CompletionRequest)
        placement = self._services.grants.place(body, self._services.client_of(request))
        name, service = self._services.text(body.model, placement.task)
        tokenizer = service.model.tokenizer
        if isinstance(body.prompt, str):
            prompt = tuple(tokenizer.encode_plain(body.prompt, add_special=True))
        else:
            prompt = _known(body.prompt, tokenizer, "prompt")
        if not prompt:
            raise invalid("an empty prompt cannot be continued; give it some text", "prompt")
        text_request = _text_request(placement, body, prompt, body.max_tokens, body.logprobs, None)
        head = {"id": f"cmpl-{uuid.uuid4().hex}", "created": int(time.time()), "model": name}
        stream = MessageStream(service, text_request)
        if body.stream:
            return sent_events(_completion_chunks(body, head, stream, tokenizer), stream)
        text, chances, finished = await _unless_gone(request, stream.whole(), stream.generation.cancel)
        logprobs = None if body.logprobs is None else _old_logprobs(chances, tokenizer)
        choice = {"index": 0, "text": text, "finish_reason": finished.reason, "logprobs": logprobs}
        return _json({**head, "object": "text_completion", "choices": [choice], **_usage(finished)})

    async def transcription(self, request: Request) -> Response:
        service = self._speech()
        async with request.form(max_files=1, max_fields=8, max_part_size=64 * 1024) as form:
            unknown = set(form) - {"file", "model", "language", "response_format", "temperature", "task"}
            if unknown:
                raise invalid(
                    f"this server knows no field {sorted(unknown)[0]!r}", sorted(unknown)[0], code="unknown_parameter"
                )
            file = form.get("file")
            if not isinstance(file, UploadFile):
                raise invalid("send the recording as the form's file `file`", "file")
            if (file.size or 0) > MOST_UPLOAD_BYTES:
                raise ApiError(413, "too_large", f"recordings over {MOST_UPLOAD_BYTES >> 20} MiB are not taken", "file")
            data = await file.read()
            language = form.get("language")
            placed = _placed(form.get("task"))
            form_of = form.get("response_format", "json")
            if form.get("temperature") not in (None, "0", "0.0"):
                raise invalid("recognition is always at temperature 0", "temperature")
        if form_of not in ("json", "text", "verbose_json"):
            raise invalid(f"response_format {form_of!r} is not served: json, text, verbose_json", "response_format")
        task = self._services.grants.place(placed, self._services.client_of(request)).task
        samples = await self._spoken(samples_of, data)
        gone = threading.Event()
        work = self._spoken(service.transcribe, samples, language or None, gone.is_set, task)
        heard = await _unless_gone(request, work, gone.set)
        if form_of == "text":
            return Response(heard.text + "\n", media_type="text/plain; charset=utf-8")
        answer: dict[str, Any] = {"text": heard.text}
        if form_of == "verbose_json":
            answer |= {
                "task": "transcribe",
                "language": heard.language,
                "duration": len(samples) / 16_000,
                "avg_logprob": heard.avg_logprob,
                "no_speech_prob": heard.no_speech,
            }
        return _json(answer)

    async def speech(self, request: Request) -> Response:
        body = await _body(request, SpeechRequest)
        service = self._speech()
        task = self._services.grants.place(body, self._services.client_of(request)).task
        language = body.language or _language(body.input)
        if language not in service.voices:
            raise invalid(f"no voice for {language!r} here: {', '.join(service.voices)}", "language")
        rate_hz = service.voices[language].sample_rate_hz
        headers = {"X-Sample-Rate": str(rate_hz)}
        gone = threading.Event()
        chunks = service.speak(body.input, language, gone.is_set, task)
        if body.response_format == "wav":
            made = await _unless_gone(request, self._spoken(list, chunks), gone.set)
            return Response(wav_of(made, rate_hz), media_type="audio/wav", headers=headers)
        first = await self._spoken(next, chunks, None)
        return StreamingResponse(self._pcm(first, chunks, gone), media_type="audio/pcm", headers=headers)

    async def _pcm(self, first: Audio | None, chunks: Any, gone: threading.Event) -> AsyncIterator[bytes]:
        try:
            samples = first
            while samples is not None:
                yield pcm16(samples)
                samples = await self._spoken(next, chunks, None)
        finally:
            gone.set()

    async def guidance(self, request: Request) -> Response:
        arrived_ns = time.monotonic_ns()
        body = await _body(request, GuidanceRequest)
        self._services.grants.require(NAVIGATION, self._services.client_of(request))
        if self._services.guide is None:
            raise ApiError(409, "no_speaker", "nobody would hear it: this process runs without voice (--no-voice)")
        deadline_ns = None if body.deadline_ms is None else arrived_ns + body.deadline_ms * NS_PER_MS
        prompt = GuidancePrompt(
            body.text, body.language or _language(body.text), arrived_ns, body.manoeuvre or "", deadline_ns
        )
        try:
            prompt_id = self._services.guide(prompt)
        except PromptOutdated as error:
            raise ApiError(410, "outdated", str(error), "deadline_ms") from error
        except GuidanceEnded as error:
            raise ApiError(503, "stopped", str(error), retry_after_s=5) from error
        except InputError as error:
            raise invalid(str(error), "text") from error
        return _json({"id": prompt_id, "object": "guidance.prompt"}, 202)

    async def events(self, request: Request) -> Response:
        unknown = set(request.query_params) - {"types"}
        if unknown:
            raise invalid("this server knows no such parameter", sorted(unknown)[0], code="unknown_parameter")
        types = wanted_types(request.query_params.get("types"))
        if self._services.events is None:
            raise ApiError(404, "no_events", "this process has no voice chain whose events it could tell")
        words = self._services.grants.may_know_words(self._services.client_of(request))
        lines = LINES in request.headers.get("accept", "")
        return EventsResponse(self._services.events, types, words=words, lines=lines)

    async def control(self, request: Request) -> Response:
        body = await _body(request, ControlRequest)
        self._services.grants.require_control(self._services.client_of(request))
        cabin = self._services.cabin
        if cabin is None:
            raise ApiError(404, "no_voice", "this process has no voice chain to control")
        turn_id = await asyncio.to_thread(carry_out, cabin, body, _language(body.text or ""))
        asked = {} if turn_id is None else {"turn_id": turn_id}
        return _json({**cabin.as_json(), **asked}, 200 if turn_id is None else 202)

    def _speech(self) -> SpeechService:
        if self._services.speech is None:
            raise ApiError(404, "model_not_found", "this process serves no speech")
        return self._services.speech

    async def models(self, request: Request) -> Response:
        return _json({"object": "list", "data": [self._model(name) for name in self._services.texts]})

    async def model(self, request: Request) -> Response:
        name, _ = self._services.text(request.path_params["name"])
        return _json(self._model(name))

    def _model(self, name: str) -> dict[str, Any]:
        context = self._services.texts[name].model.context_tokens
        return {
            "id": name,
            "object": "model",
            "created": self._services.started_s,
            "owned_by": "cockpit",
            "context_tokens": context,
            "roles": list(self._services.roles.get(name, ())),
        }

    async def tokenize(self, request: Request) -> Response:
        body = await _body(request, TokenizeRequest)
        _, service = self._services.text(body.model)
        return _json({"tokens": service.model.tokenizer.encode(body.content, add_special=body.add_special)})

    async def detokenize(self, request: Request) -> Response:
        body = await _body(request, DetokenizeRequest)
        _, service = self._services.text(body.model)
        return _json(
            {"content": service.model.tokenizer.decode(_known(body.tokens, service.model.tokenizer, "tokens"))}
        )

    async def health(self, request: Request) -> Response:
        active = {name: service.active for name, service in self._services.texts.items()}
        return _json({"status": "ok", "requests": active, **self._services.health()})

    async def status(self, request: Request) -> Response:
        if self._services.status is None or self._services.cabin is None:
            raise ApiError(404, "no_voice", "this process has no voice chain to tell of")
        told = await asyncio.to_thread(self._services.status)
        return _json({**self._services.cabin.as_json(), **told, "object": "status"})

    async def metrics(self, request: Request) -> Response:
        if self._services.metrics is None:
            raise ApiError(404, "no_metrics", "this process counts nothing for Prometheus")
        text, kind = await asyncio.to_thread(self._services.metrics, request.headers.get("accept", ""))
        return Response(text, headers={"Content-Type": kind, "Cache-Control": "no-store"})

    async def stats(self, request: Request) -> Response:
        shown = await asyncio.to_thread(self._services.stats)
        return _json({"object": "stats", **shown})


def _text_request(
    placement: Placement,
    body: Generated,
    prompt: tuple[int, ...],
    most_tokens: int | None,
    alternatives: int | None,
    constraint: Any,
) -> TextRequest:
    return TextRequest(
        prompt=prompt,
        task=placement.task,
        most_tokens=most_tokens,
        sampling=Sampling(body.temperature, body.top_p, body.seed, alternatives),
        stops=body.stops,
        constraint=constraint,
        session=body.session or "",
        deadline_ns=placement.deadline_ns,
    )


def _language(text: str) -> Language:
    return "zh" if any("\u3400" <= sign <= "\u9fff" for sign in text) else "en"


def _known(tokens: list[int], tokenizer: TextTokenizer, field_name: str) -> tuple[int, ...]:
    wrong = next((token for token in tokens if not 0 <= token < tokenizer.vocab_size), None)
    if wrong is not None:
        raise invalid(f"token {wrong} is outside 0..{tokenizer.vocab_size - 1}", field_name)
    return tuple(tokens)


def _placed(task: Any) -> Placed:
    """Of a form. Raises ApiError."""
    try:
        return Placed.model_validate({} if task is None else {"task": task})
    except ValidationError as error:
        raise of_validation(error) from error


async def _body(request: Request, kind: type[B]) -> B:
    """The checked body. Raises ApiError."""
    data = bytearray()
    try:
        async with asyncio.timeout(BODY_S):
            async for part in request.stream():
                data += part
                if len(data) > MOST_BODY_BYTES:
                    raise ApiError(413, "too_large", f"bodies over {MOST_BODY_BYTES >> 20} MiB are not taken")
    except TimeoutError as error:
        raise ApiError(408, "timeout", f"the body did not arrive within {BODY_S:g} s") from error
    except ClientDisconnect as error:
        raise ApiError(499, "client_gone", "the client hung up") from error
    try:
        return kind.model_validate_json(bytes(data))
    except ValidationError as error:
        raise of_validation(error) from error


async def _unless_gone(request: Request, work: Any, cancel: Callable[[], None]) -> Any:
    """The result of `work`; when the client hangs up first, `cancel` is called and the request ends."""
    working = asyncio.ensure_future(work)
    leaving = asyncio.ensure_future(_disconnected(request))
    try:
        await asyncio.wait({working, leaving}, return_when=asyncio.FIRST_COMPLETED)
        if not working.done():
            raise ApiError(499, "client_gone", "the client hung up")
        return await working
    finally:
        if not working.done():
            cancel()
            working.cancel()
        leaving.cancel()


async def _disconnected(request: Request) -> None:
    while (await request.receive())["type"] != "http.disconnect":
        pass


async def _chat_chunks(
    body: ChatRequest, head: dict[str, Any], stream: MessageStream, tokenizer: TextTokenizer
) -> AsyncIterator[dict[str, Any]]:
    """Deltas in OpenAI's form. An answer that may hold calls is shown when it is whole: half a call helps nobody."""
    head = {**head, "object": "chat.completion.chunk"}

    def chunk(
        delta: dict[str, Any], reason: str | None = None, chances: tuple[TokenChance, ...] = ()
    ) -> dict[str, Any]:
        choice: dict[str, Any] = {"index": 0, "delta": delta, "finish_reason": reason, "logprobs": None}
        if body.logprobs and chances:
            choice["logprobs"] = {"content": [_chance(c, tokenizer) for c in chances]}
        return {**head, "choices": [choice]}

    yield chunk({"role": "assistant", "content": ""})
    held = ""
    async for message in stream:
        if isinstance(message, Piece):
            if chat.may_call(body):
                held += message.text
            else:
                yield chunk({"content": message.text}, None, message.chances)
            continue
        content, calls = chat.calls_in(held)
        if content:
            yield chunk({"content": content})
        if calls:
            yield chunk({"tool_calls": [{"index": i, **call} for i, call in enumerate(calls)]})
        yield chunk({}, "tool_calls" if calls else message.reason)
        if body.stream_options is not None and body.stream_options.include_usage:
            yield {**head, "choices": [], **_usage(message)}


async def _completion_chunks(
    body: CompletionRequest, head: dict[str, Any], stream: MessageStream, tokenizer: TextTokenizer
) -> AsyncIterator[dict[str, Any]]:
    head = {**head, "object": "text_completion"}
    async for message in stream:
        if isinstance(message, Piece):
            chances = None if body.logprobs is None else _old_logprobs(message.chances, tokenizer)
            yield {**head, "choices": [{"index": 0, "text": message.text, "finish_reason": None, "logprobs": chances}]}
            continue
        yield {**head, "choices": [{"index": 0, "text": "", "finish_reason": message.reason, "logprobs": None}]}
        if body.stream_options is not None and body.stream_options.include_usage:
            yield {**head, "choices": [], **_usage(message)}


def _usage(finished: Finished) -> dict[str, Any]:
    """OpenAI's counts, and this project's times of the request."""
    total = finished.prompt_tokens + finished.new_tokens
    tpot = finished.tpot_ms
    return {
        "usage": {
            "prompt_tokens": finished.prompt_tokens,
            "completion_tokens": finished.new_tokens,
            "total_tokens": total,
            "prompt_tokens_details": {"cached_tokens": finished.cached_tokens},
        },
        "timings": {
            "queue_ms": round(finished.queue_ms, 2),
            "ttft_ms": round(finished.ttft_ms, 2),
            "tpot_ms": None if tpot is None else round(tpot, 2),
        },
    }


def _chance(chance: TokenChance, tokenizer: TextTokenizer) -> dict[str, Any]:
    def one(token: int, logprob: float) -> dict[str, Any]:
        text = tokenizer.decode([token])
        return {"token": text, "logprob": logprob, "bytes": list(text.encode())}

    alternatives = [one(token, logprob) for token, logprob in chance.alternatives]
    return {**one(chance.token, chance.logprob), "top_logprobs": alternatives}


def _old_logprobs(chances: Sequence[TokenChance], tokenizer: TextTokenizer) -> dict[str, Any]:
    """As /v1/completions has them."""
    return {
        "tokens": [tokenizer.decode([chance.token]) for chance in chances],
        "token_logprobs": [chance.logprob for chance in chances],
        "top_logprobs": [{tokenizer.decode([t]): p for t, p in chance.alternatives} for chance in chances],
    }


def _json(value: Mapping[str, Any], status: int = 200, headers: Mapping[str, str] | None = None) -> Response:
    return Response(json_codec.dumps(value), status, headers, "application/json")


def _answered(services: Services, route: Answer) -> Answer:
    """Only for clients that may ask; an ApiError of the route is its answer."""

    async def answer(request: Request) -> Response:
        try:
            services.client_of(request)
            return await route(request)
        except ApiError as error:
            after = {} if error.retry_after_s is None else {"Retry-After": str(error.retry_after_s)}
            return _json(error.body(), error.status, after)

    return answer


async def _http_error(request: Request, error: HTTPException) -> Response:
    """Unknown paths and methods, and forms that are none."""
    if error.status_code == 404:
        return _json(ApiError(404, "not_found", f"no such path: {request.url.path}").body(), 404)
    return _json(ApiError(error.status_code, "invalid_request", str(error.detail)).body(), error.status_code)
