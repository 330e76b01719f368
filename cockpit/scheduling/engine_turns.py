"""Who uses a speech engine: the voice chain and API requests share one recogniser and one voice of each language.

An engine has one user at a time. The chain is the urgent one: a request gives its engine up at the next step of the
model and starts anew when the chain is done, so that a person who speaks waits for one step at most. A voice also
changes hands between two chunks of a clause: then guidance comes first.
"""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager

from models.engines.base import Audio, Hypothesis, SpeechRecognizer, Voice, never_cancelled

Cancelled = Callable[[], bool]


class EngineTurns:
    """Who uses one engine. Thread-safe."""

    def __init__(self) -> None:
        self.wanted = False
        """Whether the chain waits for the engine: whoever else has it gives it up."""
        self._lock = threading.Lock()
        self._nobody_first = threading.Event()
        self._nobody_first.set()

    @contextmanager
    def first(self) -> Iterator[None]:
        """For guidance: nobody else takes the engine before it."""
        self._nobody_first.clear()
        try:
            with self._lock:
                self._nobody_first.set()
                yield
        finally:
            self._nobody_first.set()

    @contextmanager
    def urgent(self) -> Iterator[None]:
        """For the chain."""
        self._nobody_first.wait()
        self.wanted = True
        try:
            with self._lock:
                self.wanted = False
                yield
        finally:
            self.wanted = False

    @contextmanager
    def patient(self, cancelled: Cancelled) -> Iterator[bool]:
        """For the others: True when the engine is theirs, False when `cancelled` meanwhile."""
        while not cancelled():
            self._nobody_first.wait(0.1)
            if not self.wanted and self._nobody_first.is_set() and self._lock.acquire(timeout=0.1):
                try:
                    yield True
                finally:
                    self._lock.release()
                return
        yield False


class ChainRecognizer:
    """The chain's side of a recogniser that it shares. See models.engines.base.SpeechRecognizer."""

    def __init__(self, engine: SpeechRecognizer, turns: EngineTurns) -> None:
        self._engine = engine
        self._turns = turns

    def transcribe(
        self,
        samples: Audio,
        *,
        languages: Sequence[str],
        hotwords: Sequence[str] = (),
        cancelled: Cancelled = never_cancelled,
    ) -> Hypothesis:
        with self._turns.urgent():
            return self._engine.transcribe(samples, languages=languages, hotwords=hotwords, cancelled=cancelled)

    def warm_up(self) -> None:
        with self._turns.urgent():
            self._engine.warm_up()


class ChainVoice:
    """The chain's side of a voice that it shares, taken for each chunk. See models.engines.base.Voice."""

    def __init__(self, engine: Voice, turns: EngineTurns) -> None:
        self.sample_rate_hz = engine.sample_rate_hz
        self._engine = engine
        self._turns = turns

    def synthesise(self, text: str) -> Iterator[Audio]:
        yield from _chunks(self._engine, text, self._turns.urgent)

    def warm_up(self) -> None:
        with self._turns.urgent():
            self._engine.warm_up()


class GuidanceVoice:
    """Guidance's side of a voice that it shares. See models.engines.base.Voice."""

    def __init__(self, engine: Voice, turns: EngineTurns) -> None:
        self.sample_rate_hz = engine.sample_rate_hz
        self._engine = engine
        self._turns = turns

    def synthesise(self, text: str) -> Iterator[Audio]:
        yield from _chunks(self._engine, text, self._turns.first)

    def warm_up(self) -> None:
        with self._turns.first():
            self._engine.warm_up()


def _chunks(engine: Voice, text: str, turn: Callable[[], AbstractContextManager[None]]) -> Iterator[Audio]:
    """A clause on a voice that others may use between two chunks: nobody waits for whoever plays them."""
    chunks = iter(engine.synthesise(text))
    while True:
        with turn():
            chunk = next(chunks, None)
        if chunk is None:
            return
        yield chunk
