"""The stream of events. Stages leave a note and go on; a thread of its own makes the JSON and hands it to subscribers.

Nothing is kept: who comes late is told the state of now and nothing of what was said before, and nothing is written to
disk. Without subscribers nothing is noted at all.
"""

from __future__ import annotations

import heapq
import itertools
import logging
import math
import threading
import time
from collections import deque
from collections.abc import Callable, Collection
from dataclasses import dataclass, field
from typing import Any

import numpy as np
from numpy.typing import NDArray

from cockpit.headunit.forms import (
    TYPES,
    Event,
    EventType,
    calls_event,
    clause_event,
    error_event,
    transcript_event,
    turn_event,
    without_words,
)
from models.errors import InputError
from pipeline import json_codec
from pipeline.frames import AudioFrame, SpeechFrame, Transcript
from pipeline.turn_log import TurnRecord

log = logging.getLogger("cockpit.headunit")

WAITING = 256
"""Events that may wait for one subscriber; then the oldest go, are counted, and the subscriber is told."""
NOTES = 1024
"""Events that may wait for the thread."""
MOST_SUBSCRIBERS = 16
LOOK_S = 0.05
"""How often the state is looked at while somebody subscribes."""
LEVEL_S = 0.1
_QUIETEST = 1e-5
State = dict[str, Any]


class TooManySubscribers(InputError):
    """MOST_SUBSCRIBERS are there already."""


@dataclass(slots=True)
class Counts:
    """sent: to a subscriber's queue; dropped: from one, or before it, because somebody was too slow."""

    sent: int = 0
    dropped: int = 0


class Subscription:
    """What one client is still to be told. `take` by the client's thread; `wake` is called when there is something."""

    def __init__(self, types: Collection[EventType], *, words: bool, wake: Callable[[], object]) -> None:
        self.types = frozenset(types)
        self.words = words
        self.ended = False
        self._wake = wake
        self._lock = threading.Lock()
        self._waiting: deque[bytes] = deque()
        self._dropped = 0

    def put(self, event: bytes) -> int:
        """Hand over one event; never waits. Returns how many were dropped for it."""
        with self._lock:
            dropped = len(self._waiting) >= WAITING
            if dropped:
                self._waiting.popleft()
                self._dropped += 1
            self._waiting.append(event)
        self._wake()
        return int(dropped)

    def lose(self, count: int) -> None:
        """So many were lost before they got here."""
        with self._lock:
            self._dropped += count

    def take(self) -> list[bytes]:
        """Everything that waits, oldest first, each the JSON of one event. What was dropped is told before it."""
        with self._lock:
            events = list(self._waiting)
            self._waiting.clear()
            dropped, self._dropped = self._dropped, 0
        if dropped:
            events.insert(0, json_codec.dumps({"type": "dropped", "count": dropped}))
        return events

    def end(self) -> None:
        """No more will come."""
        self.ended = True
        self._wake()


@dataclass(order=True, slots=True)
class _Due:
    at_ns: int
    order: int
    frame: SpeechFrame = field(compare=False)


class EventStream:
    """An Observer of the chain. `watch` once the chain is there, `close` before it ends."""

    def __init__(self) -> None:
        self.counts = Counts()
        self._subscriptions: tuple[Subscription, ...] = ()
        self._lock = threading.Lock()
        self._notes: deque[Event | _Due] = deque()
        self._due: list[_Due] = []
        self._order = itertools.count()
        self._lost = 0
        self._levels: deque[NDArray[np.float32]] = deque(maxlen=16)
        self._levels_wanted = False
        self._level_at_s = 0.0
        self._news = threading.Event()
        self._state: Callable[[], State] = dict
        self._is_cut: Callable[[SpeechFrame], bool] = lambda _frame: False
        self._is_held_up: Callable[[], bool] = bool
        self._told: State = {}
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="events", daemon=True)

    def watch(
        self, state: Callable[[], State], is_cut: Callable[[SpeechFrame], bool], is_held_up: Callable[[], bool]
    ) -> None:
        """Begin. state: the process as it is now. is_cut: whether a clause will not sound any more. is_held_up: whether
        replies stand still for something else that sounds.
        """
        self._state, self._is_cut, self._is_held_up = state, is_cut, is_held_up
        self._thread.start()

    def close(self) -> None:
        """Subscribers are told that nothing more comes. Safe to call twice."""
        self._ended = True
        self._news.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)
        with self._lock:
            subscriptions, self._subscriptions = self._subscriptions, ()
        for subscription in subscriptions:
            subscription.end()

    @property
    def subscribers(self) -> int:
        return len(self._subscriptions)

    @property
    def dropped(self) -> int:
        """Events that some subscriber lost because it was too slow."""
        return self.counts.dropped

    def subscribe(
        self, types: Collection[EventType] = TYPES, *, words: bool, wake: Callable[[], object]
    ) -> Subscription:
        """From now on; the first event is the state. words: whether the client may know what is heard, said and done.

        wake: called from the stream's thread when something waits. Raises TooManySubscribers.
        """
        made = Subscription(types, words=words, wake=wake)
        with self._lock:
            if len(self._subscriptions) >= MOST_SUBSCRIBERS:
                raise TooManySubscribers(f"{MOST_SUBSCRIBERS} clients follow the events already; end one of them")
            self._send(_stamped({"type": "state", **self._state()}), (made,))
            self._subscriptions = (*self._subscriptions, made)
            self._levels_wanted = any("level" in each.types for each in self._subscriptions)
        if self._ended:
            made.end()
        self._news.set()
        return made

    def unsubscribe(self, subscription: Subscription) -> None:
        with self._lock:
            self._subscriptions = tuple(each for each in self._subscriptions if each is not subscription)
            self._levels_wanted = any("level" in each.types for each in self._subscriptions)
        self._news.set()  # what was noted for it is forgotten

    # --- as an observer: on the stages' threads --------------------------------------------------------------------
    def hears(self, frame: AudioFrame) -> None:
        if self._levels_wanted and len(frame.samples):
            self._levels.append(frame.samples)  # measured on the stream's thread, and forgotten there

    def heard(self, transcript: Transcript) -> None:
        if self._subscriptions:
            self._note(transcript_event(transcript))

    def acted(self, record: TurnRecord) -> None:
        if self._subscriptions:
            self._note(calls_event(record))

    def sounds(self, frame: SpeechFrame, out_ns: int) -> None:
        if self._subscriptions:
            self._note(_Due(out_ns, next(self._order), frame))

    def failed(self, stage: str, turn_id: int, error: Exception) -> None:
        if self._subscriptions:
            self._note(error_event(stage, turn_id, error))

    def ended(self, record: TurnRecord) -> None:
        if self._subscriptions:
            self._note(turn_event(record))

    def _note(self, note: Event | _Due) -> None:
        if len(self._notes) >= NOTES:
            self._lost += 1
            return
        self._notes.append(note if isinstance(note, _Due) else _stamped(note))
        self._news.set()

    # --- the thread ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        while not self._ended:
            self._news.wait(self._wait_s() if self._subscriptions else None)
            self._news.clear()
            try:
                self._step(self._subscriptions)
            except Exception:  # the edge of this thread: what is shown of the car must not end with one event
                log.exception("an event could not be told")

    def _wait_s(self) -> float:
        """Until something has to be looked at: the state, or a clause that begins to sound before that."""
        left_s = (self._due[0].at_ns - time.monotonic_ns()) / 1e9 if self._due else 0.0
        return min(LOOK_S, left_s) if left_s > 0 else LOOK_S  # past: held up by a prompt that sounds

    def _step(self, subscriptions: tuple[Subscription, ...]) -> None:
        self._tell_lost(subscriptions)
        while self._notes:
            note = self._notes.popleft()
            if isinstance(note, _Due):
                heapq.heappush(self._due, note)
            else:
                self._send(note, subscriptions)
        if not subscriptions:  # nobody: nothing is kept for whoever comes next
            self._due.clear()
            self._levels.clear()
            return
        self._tell_clauses(subscriptions)
        self._tell_state(subscriptions)
        self._tell_level(subscriptions)

    def _tell_lost(self, subscriptions: tuple[Subscription, ...]) -> None:
        lost, self._lost = self._lost, 0
        if lost:
            self.counts.dropped += lost
            for subscription in subscriptions:
                subscription.lose(lost)

    def _tell_clauses(self, subscriptions: tuple[Subscription, ...]) -> None:
        """Those that begin to sound now. While replies stand still for a prompt, so do they."""
        if not self._due or self._is_held_up():
            return
        now_ns = time.monotonic_ns()
        while self._due and self._due[0].at_ns <= now_ns:
            frame = heapq.heappop(self._due).frame
            if not self._is_cut(frame):
                self._send(_stamped(clause_event(frame)), subscriptions)

    def _tell_state(self, subscriptions: tuple[Subscription, ...]) -> None:
        state = self._state()
        if state != self._told:
            self._told = state
            self._send(_stamped({"type": "state", **state}), subscriptions)

    def _tell_level(self, subscriptions: tuple[Subscription, ...]) -> None:
        now_s = time.monotonic()
        if not self._levels or now_s - self._level_at_s < LEVEL_S:
            return
        self._level_at_s = now_s
        heard = np.concatenate([self._levels.popleft() for _ in range(len(self._levels))])
        rms, peak = math.sqrt(float(np.mean(np.square(heard)))), float(np.abs(heard).max())
        level = {"rms_db": _db(rms), "peak_db": _db(peak)}
        self._send(_stamped({"type": "level", **level}), subscriptions)

    def _send(self, event: Event, subscriptions: tuple[Subscription, ...]) -> None:
        """Once as it is and once without words, as far as somebody wants it."""
        made: dict[bool, bytes] = {}
        for subscription in subscriptions:
            if event["type"] not in subscription.types:
                continue
            words = subscription.words
            if words not in made:
                made[words] = json_codec.dumps(event if words else without_words(event))
            self.counts.dropped += subscription.put(made[words])
            self.counts.sent += 1


def _stamped(event: Event) -> Event:
    """With the time of day, in seconds."""
    return {"type": event["type"], "at_s": round(time.time(), 3), **event}


def _db(amplitude: float) -> float:
    """Below full scale, at least -100."""
    return round(20 * math.log10(max(amplitude, _QUIETEST)), 1)
