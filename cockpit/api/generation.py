"""One request for text on its way: what was asked, what goes back piece by piece, and where it must stop."""

from __future__ import annotations

import threading
import time
from collections.abc import Callable
from dataclasses import dataclass, field
from typing import Literal

from cockpit.api.errors import ApiError
from models.engines.base import TokenConstraint
from models.engines.llm.sampling import Sampling, TokenChance

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


def given_up(generation: Generation, stopped: str) -> ApiError:
    """What a request that is cut short is told. stopped: why, where it was not its own deadline or client."""
    if generation.late():
        return ApiError(504, "deadline", "the deadline passed before the answer was whole")
    return ApiError(503, "stopped", stopped or "the request was cancelled", retry_after_s=1)


class StopTexts:
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
