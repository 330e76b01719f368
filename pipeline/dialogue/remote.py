"""Free talk answered by a server outside the car, where its words come in time; else by the model in the car.

Commands, navigation and tools never come here. Nobody waits for the server longer than it usually takes: when its
first words are later than 95 of 100 were, the model in the car begins too, and who has a word first answers. After
failures in a row the server is left alone for a while.
"""

from __future__ import annotations

import logging
import queue
import threading
import time
from collections import deque
from collections.abc import Callable, Generator, Iterator, Mapping, Sequence
from dataclasses import asdict, dataclass, field
from typing import Any, Protocol

from pipeline.dialogue.talk import AnswerCut, Words

log = logging.getLogger("pipeline.dialogue.remote")

Messages = Sequence[Mapping[str, str]]
_KEPT = 100
_ENOUGH = 8
"""So many first words must have been seen before their 95th of a hundred says anything."""
_LOOK_S = 0.01


class ServerFailed(Exception):
    """The server cannot be reached, refuses, or breaks off. The text says why, without what was asked."""


class TalkServer(Protocol):
    """A server of chat completions."""

    host: str

    def close(self) -> None: ...

    def stream(self, messages: Messages, most_tokens: int, wait_s: float) -> Generator[str]:
        """Pieces of the answer. wait_s: the longest wait for the next one. Closing the iterator hangs up.

        Raises ServerFailed, and AnswerCut at the server's own limit.
        """
        ...


@dataclass(frozen=True, slots=True)
class RemoteLimits:
    """deadline_s: first words after this are of no use, nor are later ones after such a pause. failures: in a row that
    leave the server alone for rest_s.
    """

    deadline_s: float = 1.5
    failures: int = 3
    rest_s: float = 30.0


@dataclass(slots=True)
class RemoteCounts:
    """asked: requests sent. answered: spoken from the server. overtaken: the model in the car was first. failed: no
    answer by the deadline, or an error. cut: broken off while it was spoken. left_alone: not asked after failures.
    """

    asked: int = 0
    answered: int = 0
    overtaken: int = 0
    failed: int = 0
    cut: int = 0
    left_alone: int = 0


class _Call:
    """One request, read by a thread of its own."""

    def __init__(self, source: Generator[str], deadline_s: float, ended: Callable[[float | None, str], None]) -> None:
        self._source = source
        self._deadline_s = deadline_s
        self._ended = ended
        self._pieces: queue.SimpleQueue[str | AnswerCut | None] = queue.SimpleQueue()
        self._began = time.monotonic()
        self._closed = threading.Event()
        self.arrived = threading.Event()
        """Its first words are there."""
        self.over = threading.Event()
        """There will be none."""
        threading.Thread(target=self._run, name="remote-talk", daemon=True).start()

    def _run(self) -> None:
        first_s, reason = None, ""
        try:
            for piece in self._source:
                if first_s is None and piece.strip():
                    first_s = time.monotonic() - self._began
                    self.arrived.set()
                self._pieces.put(piece)
                if self._closed.is_set():  # it lost; how long it took was still worth knowing
                    break
            reason = "" if self.arrived.is_set() else "an answer without words"
            self._pieces.put(None)
        except AnswerCut as cut:
            self._pieces.put(cut)
        except ServerFailed as error:
            reason = str(error)
            self._pieces.put(AnswerCut(reason, failed=True))
        except Exception as error:  # the edge of a thread: the turn goes on without it
            log.exception("the request to the server failed")
            reason = type(error).__name__
            self._pieces.put(AnswerCut(reason, failed=True))
        finally:
            self.over.set()
            self._source.close()
            self._ended(first_s, reason)

    def wait(self, seconds: float, over: Callable[[], bool]) -> bool:
        """Whether first words came within `seconds`."""
        end = time.monotonic() + seconds
        while not (self.arrived.is_set() or self.over.is_set() or over()) and time.monotonic() < end:
            self.arrived.wait(_LOOK_S)
        return self.arrived.is_set()

    def pieces(self, over: Callable[[], bool]) -> Iterator[str]:
        """The answer. Raises AnswerCut where it breaks off or pauses too long."""
        last = time.monotonic()
        while not over():
            try:
                piece = self._pieces.get(timeout=_LOOK_S)
            except queue.Empty:
                if time.monotonic() - last > self._deadline_s:
                    raise AnswerCut("the server's answer stopped", failed=True) from None
                continue
            if piece is None:
                return
            if isinstance(piece, AnswerCut):
                raise piece
            last = time.monotonic()
            yield piece

    def close(self) -> None:
        self._closed.set()


@dataclass(slots=True)
class RemoteTalk:
    """One server for one dialogue's free talk; `words` is called by the dialogue's thread.

    history: whether earlier free talk goes with a question.
    """

    server: TalkServer
    most_tokens: int
    limits: RemoteLimits = RemoteLimits()
    history: bool = False
    counts: RemoteCounts = field(default_factory=RemoteCounts)
    _first_s: deque[float] = field(default_factory=lambda: deque(maxlen=_KEPT))
    _in_a_row: int = 0
    _asleep_until: float = 0.0
    _lock: threading.Lock = field(default_factory=threading.Lock)

    @property
    def hedge_s(self) -> float:
        """The wait for first words after which the model in the car begins too."""
        with self._lock:
            seen = sorted(self._first_s)
        if len(seen) < _ENOUGH:
            return self.limits.deadline_s / 2
        return min(seen[int(0.95 * (len(seen) - 1))], self.limits.deadline_s)

    def close(self) -> None:
        """Close the connection."""
        self.server.close()

    def shown(self) -> dict[str, Any]:
        """Counts, and the waits in ms, for JSON."""
        with self._lock:
            asleep = time.monotonic() < self._asleep_until
        waits = {"hedge_ms": self.hedge_s * 1e3, "deadline_ms": self.limits.deadline_s * 1e3}
        return {"host": self.server.host, **asdict(self.counts), **waits, "left_alone_now": asleep}

    def words(self, messages: Messages, own: Words, over: Callable[[], bool]) -> Iterator[str]:
        """The answer to `messages`: the server's or that of `own`, the model in the car. Raises AnswerCut."""
        with self._lock:
            asleep = time.monotonic() < self._asleep_until
        if asleep:
            self.counts.left_alone += 1
            yield from own(over)
            return
        self.counts.asked += 1
        sent = sum(len(message["content"]) for message in messages)
        log.info("free talk to %s: %d messages, %d characters", self.server.host, len(messages), sent)
        source = self.server.stream(messages, self.most_tokens, self.limits.deadline_s)
        call = _Call(source, self.limits.deadline_s, self._learn)
        try:
            if not call.wait(self.hedge_s, over):
                overtaken = False
                for piece in self._first_of(call, own, over):
                    overtaken = overtaken or bool(piece.strip())
                    yield piece
                if overtaken:
                    self.counts.overtaken += 1
                    return
            if over():
                return
            yield from self._of_the_server(call, over)
        finally:
            call.close()

    def _first_of(self, call: _Call, own: Words, over: Callable[[], bool]) -> Iterator[str]:
        """The words of the model in the car, unless the server has its first ones before it."""
        won = False

        def stop() -> bool:
            return over() or (not won and call.arrived.is_set())

        for piece in own(stop):
            if not won and call.arrived.is_set():
                return
            won = won or bool(piece.strip())
            yield piece

    def _of_the_server(self, call: _Call, over: Callable[[], bool]) -> Iterator[str]:
        begun = False
        try:
            for piece in call.pieces(over):
                self.counts.answered += not begun
                begun = True
                yield piece
        except AnswerCut as error:
            if error.failed and begun:
                self.counts.cut += 1
                log.warning("%s broke off: %s", self.server.host, error)
            raise

    def _learn(self, first_s: float | None, reason: str) -> None:
        """At the end of a request, by its thread: how long first words took, and why it failed (empty: it did not)."""
        limits = self.limits
        if not reason and first_s is not None and first_s > limits.deadline_s:
            reason = f"first words after {first_s:.1f} s"
        with self._lock:
            if first_s is not None:
                self._first_s.append(first_s)
            if not reason:
                self._in_a_row = 0
                return
            self.counts.failed += 1
            self._in_a_row += 1
            if self._in_a_row >= limits.failures:
                self._asleep_until = time.monotonic() + limits.rest_s
                self._in_a_row = limits.failures - 1  # one more failure afterwards, and it rests again
        log.warning("no answer from %s: %s", self.server.host, reason)
