"""Text generation for API requests: each in a thread of its own, under leases of its task, cancelled at a token."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from concurrent.futures import ThreadPoolExecutor
from dataclasses import asdict, dataclass, field
from typing import Any, Literal

from cockpit.api.errors import ApiError, invalid
from cockpit.api.sessions import Seat, SessionPool
from cockpit.api.stats import TextStats
from models.engines.base import TokenConstraint
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.sampling import Sampler, Sampling, TokenChance
from models.errors import InputError
from pipeline.dialogue.llm_steps import LlmScheduler, fill

NS_PER_MS = 1e6
Finish = Literal["stop", "length"]


@dataclass(frozen=True, slots=True)
class TextRequest:
    """What is to be generated. prompt: token ids. most_tokens: None for as many as fit. task: the arbiter's name.

    deadline_ns: monotonic; None: none. constraint: a fresh grammar state. session: the dialogue's name, or empty.
    """

    prompt: tuple[int, ...]
    task: str
    most_tokens: int | None = None
    sampling: Sampling = field(default_factory=Sampling)
    stops: tuple[str, ...] = ()
    constraint: TokenConstraint | None = None
    session: str = ""
    deadline_ns: int | None = None


@dataclass(frozen=True, slots=True)
class Piece:
    """Some more text, and the chances of the tokens behind it where they were asked for."""

    text: str
    chances: tuple[TokenChance, ...] = ()


@dataclass(frozen=True, slots=True)
class Finished:
    """The end of an answer. cached_tokens: of the prompt, found computed. tpot_ms: None below two tokens."""

    reason: Finish
    prompt_tokens: int
    cached_tokens: int
    new_tokens: int
    queue_ms: float
    ttft_ms: float
    tpot_ms: float | None


@dataclass(slots=True)
class Generation:
    """One request on its way. `emit` is called by its thread: pieces, then `Finished` or an ApiError, then no more."""

    request: TextRequest
    emit: Callable[[Piece | Finished | ApiError], None]
    arrived_ns: int
    running: bool = False
    _cancelled: threading.Event = field(default_factory=threading.Event)

    def cancel(self) -> None:
        """Stop at the next token; nothing is emitted any more. Safe to call at any time."""
        self._cancelled.set()

    def unwanted(self) -> bool:
        """Cancelled, or too late."""
        return self._cancelled.is_set() or self.late()

    def late(self) -> bool:
        """Whether the deadline has passed."""
        return self.request.deadline_ns is not None and time.monotonic_ns() > self.request.deadline_ns

    def tell(self, message: Piece | Finished | ApiError) -> None:
        """Emit, unless nobody listens any more."""
        if not self._cancelled.is_set():
            self.emit(message)


class TextService:
    """Runs requests on one language model. `submit` may be called from any thread.

    scheduler_of: a new scheduler for a task, used by one thread. most_running: texts and threads; most_waiting: further
    requests that may wait for one, more are refused. parked_bytes: see SessionPool.
    """

    def __init__(
        self,
        model: CausalLM,
        scheduler_of: Callable[[str], LlmScheduler],
        *,
        most_running: int = 4,
        most_waiting: int = 16,
        parked_bytes: int = 0,
    ) -> None:
        self.model = model
        self.pool = SessionPool(model.open_session, most_running, parked_bytes)
        self.stats = TextStats()
        self._scheduler_of = scheduler_of
        self._most = most_running + most_waiting
        self._threads = ThreadPoolExecutor(most_running, thread_name_prefix="api-text")
        self._lock = threading.Lock()
        self._generations: dict[int, Generation] = {}

    def submit(self, request: TextRequest, emit: Callable[[Piece | Finished | ApiError], None]) -> Generation:
        """Start, or queue. Raises ApiError for a prompt that does not fit (400) and when too many wait (429)."""
        room = self.model.context_tokens - len(request.prompt)
        if room < 1:
            raise invalid(
                f"the prompt has {len(request.prompt)} tokens, and this model has room for "
                f"{self.model.context_tokens} with the answer; shorten it, or raise llm.context_tokens in the profile",
                "messages",
                code="context_length_exceeded",
            )
        generation = Generation(request, emit, time.monotonic_ns())
        with self._lock:
            if len(self._generations) >= self._most:
                self.stats.refused(request.task)
                raise ApiError(
                    429, "busy", f"{len(self._generations)} requests run or wait already; try again", retry_after_s=1
                )
            self._generations[id(generation)] = generation
        self._threads.submit(self._run, generation)
        return generation

    @property
    def counts(self) -> tuple[int, int]:
        """Requests that run, and that wait."""
        with self._lock:
            running = sum(generation.running for generation in self._generations.values())
            return running, len(self._generations) - running

    @property
    def active(self) -> int:
        """Requests that run or wait."""
        with self._lock:
            return len(self._generations)

    def shown(self) -> dict[str, Any]:
        """Requests, caches and what was measured per task, for JSON."""
        running, waiting = self.counts
        pool = asdict(self.pool.status())
        names = ("session", "dialogue", "cached_tokens", "busy")
        pool["sessions"] = [dict(zip(names, session, strict=True)) for session in pool["sessions"]]
        return {"running": running, "waiting": waiting, "kv": pool, "tasks": self.stats.shown()}

    def close(self) -> None:
        """Cancel what runs, wait for it, give the caches back."""
        with self._lock:
            for generation in self._generations.values():
                generation.cancel()
        self._threads.shutdown(wait=True, cancel_futures=True)
        self.pool.close()

    def _run(self, generation: Generation) -> None:
        try:
            self._generate(generation)
        except ApiError as error:
            generation.tell(error)
        except InputError as error:
            generation.tell(invalid(str(error)))
        except Exception as error:  # the edge of a request: whatever it was, the others go on
            generation.tell(ApiError(500, "internal", f"{type(error).__name__}: {error}"))
            raise
        finally:
            with self._lock:
                self._generations.pop(id(generation), None)

    def _generate(self, generation: Generation) -> None:
        request = generation.request
        with self.pool.borrow(request.prompt, request.session, generation.unwanted) as seat:
            if seat is None:
                self.stats.stopped(request.task)
                raise _given_up(generation, "")
            generation.running = True
            scheduler = self._scheduler_of(request.task)
            with scheduler.block(generation.unwanted):
                finished = self._answer(generation, seat, scheduler)
                if finished is not None and not scheduler.stopped:
                    self.pool.settle(seat)
            if finished is None:
                self.stats.stopped(request.task)
                raise _given_up(generation, scheduler.stopped)
            generation.tell(finished)

    def _answer(self, generation: Generation, seat: Seat, scheduler: LlmScheduler) -> Finished | None:
        """Prefill and decode; None when it was cut short."""
        request, session = generation.request, seat.session
        most = min(request.most_tokens or session.capacity, session.capacity - len(request.prompt))
        session.expect(len(request.prompt) + most)

        def over() -> bool:
            return generation.unwanted() or bool(scheduler.stopped)

        steps = scheduler.on(session)
        steps.at_prefill()  # copying is work too: in the task's turn, and after what was evicted is forgotten
        start_ns = time.monotonic_ns()
        cached = 0 if over() else self.pool.prepare(seat, request.prompt, steps.at_prefill)
        fill(session, request.prompt, steps, cancelled=over)
        sampler = None if request.sampling.plain else Sampler(self.model.head, request.sampling)
        tokens = session.generate(
            max_new_tokens=most,
            constraint=request.constraint,
            cancelled=over,
            at_boundary=steps.at_token,
            choose=None if sampler is None else sampler.choose,
        )
        self.stats.computed(request.task, len(request.prompt), cached)
        count, first_ns, last_ns = 0, 0, 0
        stream, text = self.model.tokenizer.stream(), _Stops(request.stops)
        for token in tokens:
            piece = Piece(text.push(stream.push(token)), () if sampler is None else sampler.take())
            last_ns = time.monotonic_ns()
            first_ns = first_ns or last_ns
            count += 1
            if piece.text or piece.chances:
                generation.tell(piece)
            if text.found:
                break
        if over():
            return None
        rest = "" if text.found else text.push(stream.finish()) + text.rest()
        if rest:
            generation.tell(Piece(rest))
        finished = Finished(
            reason="length" if count >= most and not text.found else "stop",
            prompt_tokens=len(request.prompt),
            cached_tokens=cached,
            new_tokens=count,
            queue_ms=(start_ns - generation.arrived_ns) / NS_PER_MS,
            ttft_ms=((first_ns or time.monotonic_ns()) - generation.arrived_ns) / NS_PER_MS,
            tpot_ms=(last_ns - first_ns) / NS_PER_MS / (count - 1) if count > 1 else None,
        )
        self.stats.finished(request.task, finished)
        return finished


def _given_up(generation: Generation, stopped: str) -> ApiError:
    if generation.late():
        return ApiError(504, "deadline", "the deadline passed before the answer was whole")
    return ApiError(503, "stopped", stopped or "the request was cancelled", retry_after_s=1)


class _Stops:
    """Holds back what may be the beginning of a stop text, and ends at the first whole one."""

    def __init__(self, stops: tuple[str, ...]) -> None:
        self.found = False
        self._stops = stops
        self._held = ""

    def push(self, text: str) -> str:
        """What may be shown."""
        self._held += text
        ends = [self._held.find(stop) for stop in self._stops if stop in self._held]
        if ends:
            self.found = True
            shown, self._held = self._held[: min(ends)], ""
            return shown
        keep = max((_overlap(self._held, stop) for stop in self._stops), default=0)
        shown, self._held = self._held[: len(self._held) - keep], self._held[len(self._held) - keep :]
        return shown

    def rest(self) -> str:
        """What was held back, at the end of the text."""
        rest, self._held = self._held, ""
        return rest


def _overlap(text: str, stop: str) -> int:
    """Length of the longest end of `text` that begins `stop`."""
    return next((n for n in range(min(len(text), len(stop) - 1), 0, -1) if text.endswith(stop[:n])), 0)
