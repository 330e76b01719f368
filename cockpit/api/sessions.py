"""The texts that API requests run on: few caches for many dialogues, and no beginning is computed twice.

A request takes a cache, then brings into it the longest beginning of its prompt that is cached anywhere: in another
text, idle or at work, or parked in host memory. What a named dialogue had in that cache is parked first.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Sequence
from dataclasses import dataclass

from cockpit.api.parked import ParkedStatus, ParkedTexts
from models.engines.llm.batch import TextBatch
from models.engines.llm.session import LmSession
from models.errors import InputError

log = logging.getLogger("cockpit.api.sessions")

LEAST_TOKENS = 16
"""A shorter beginning is computed as fast as it is copied."""


def _nothing() -> None:
    return None


@dataclass(slots=True)
class Seat:
    """One cache. owner: the dialogue that used it last, empty for a request without a name. displaced: the dialogue
    whose text is still in it although another one has it now. shared: length of the beginning that its text and one
    that differs after it have in common.
    """

    session: LmSession
    owner: str = ""
    displaced: str = ""
    shared: int = 0
    busy: bool = True
    used: int = 0


@dataclass(frozen=True, slots=True)
class PoolStatus:
    """The caches now. bytes: what their texts take, without what is stored once for several of them; dropped_tokens,
    dropped_bytes: of the cached ones, what the KV gate left no rows of. sessions: name, dialogue, cached tokens and
    whether a request runs.

    copied: beginnings that came from another text or from host memory. moved: texts brought to the front.
    """

    open: int
    busy: int
    most: int
    cached_tokens: int
    bytes: int
    dropped_tokens: int
    dropped_bytes: int
    copied: int
    moved: int
    sessions: tuple[tuple[str, str, int, bool], ...]
    parked: ParkedStatus


class SessionPool:
    """At most `most` texts, opened when they are first needed. Thread-safe.

    parked_bytes: host memory for what lost its cache and for shared beginnings; 0: none.
    """

    def __init__(self, open_session: Callable[[], LmSession], most: int, parked_bytes: int = 0) -> None:
        self._open_session = open_session
        self._most = most
        self._lock = threading.Lock()
        self._seats: list[Seat] = []
        self._turn = 0
        self._copied = 0
        self._moved = 0
        self.parked = ParkedTexts(parked_bytes)

    def take(self, tokens: Sequence[int], owner: str, most_busy: int | None = None) -> Seat | None:
        """A cache for one request, until `give`; None while there is none, or while `most_busy` are taken.

        A dialogue with a name gets its own back, and must wait for it while another of its requests runs. Others get
        the idle one that shares the longest beginning with `tokens`, a new one while there may be more, and else the
        one that was not used for the longest time. Call `prepare` before it is written to.
        """
        with self._lock:
            if most_busy is not None and sum(seat.busy for seat in self._seats) >= most_busy:
                return None
            seat = self._free(tokens, owner)
            if seat is None:
                return None
            self._turn += 1
            if seat.owner != owner:
                seat.displaced = seat.displaced or seat.owner
            seat.busy, seat.owner, seat.used = True, owner, self._turn
            return seat

    def give(self, seat: Seat) -> None:
        """The request is over; what it cached stays."""
        with self._lock:
            seat.busy = False

    def bring_to_front(self, seat: Seat, batch: TextBatch) -> None:
        """Where runs are shared, in place of the idle text that was used least recently. No more are busy at a time
        than fit in front.
        """
        with self._lock:
            if batch.in_front(seat.session):
                return
            idle = [other for other in self._seats if not other.busy and batch.in_front(other.session)]
            batch.bring_to_front(seat.session, min(idle, key=lambda other: other.used).session)
            self._moved += 1

    def will_share(self, seat: Seat, tokens: Sequence[int]) -> int:
        """How many of `tokens` the cache will need no memory for after `prepare`: they are stored with another text, or
        will be then.
        """
        session = seat.session
        own, shown = session.shares(tokens), session.shown
        donor, theirs = self._donor(seat, tokens)
        parked, kept = self.parked.best(tokens)
        if max(theirs, kept) < own + LEAST_TOKENS:
            return min(own, shown)
        if parked is not None and kept >= theirs:
            return session.body.shareable(min(kept, parked.shared.rows))
        assert donor is not None
        return session.body.shareable(theirs) if donor.exclusive is session.exclusive else min(theirs, donor.shown)

    def prepare(self, seat: Seat, tokens: Sequence[int], at_boundary: Callable[[], None] = _nothing) -> int:
        """Park what another dialogue had in this cache, then copy the longest beginning of `tokens` into it. Returns
        how many tokens of it are cached then. Under the lease of the request, if there is one.
        """
        session = seat.session
        continued = bool(seat.owner) and not seat.displaced
        self._park_displaced(seat)
        own, held = session.shares(tokens), session.cached
        donor, theirs = self._donor(seat, tokens)
        parked, kept = self.parked.best(tokens)
        most = max(theirs, kept)
        lengths = [(own, 0 if continued else held), (theirs, donor.cached if donor is not None else 0)]
        lengths.append((kept, len(parked.tokens) if parked is not None else 0))
        seat.shared = max((count for count, length in lengths if LEAST_TOKENS <= count < length), default=0)
        if most >= own + LEAST_TOKENS:
            try:
                if parked is not None and kept == most:
                    got = session.restore(parked, tokens, at_boundary=at_boundary)
                else:
                    assert donor is not None
                    got = session.adopt(donor, tokens, at_boundary=at_boundary)
                self._copied += got > own
            except InputError as error:  # computed instead
                log.warning("a beginning of %d tokens could not be copied: %s", most, error)
        if seat.owner:
            self.parked.back(seat.owner)
        return session.shares(tokens)

    def settle(self, seat: Seat) -> None:
        """After the answer, still under the lease: what two different texts began with is kept for a third one."""
        session, count = seat.session, seat.shared
        prefix = session.tokens[:count]
        if not count or session.lends(prefix) < count or self.parked.covers(prefix):
            return
        if self.parked.takes(session.bytes_of(count), prefix=True):
            session.share(count)
            self.parked.keep_prefix(session.park(count))

    def forget_evicted(self, was_evicted: Callable[[str], bool]) -> None:
        """Give back the memory of idle texts that the arbiter evicted. was_evicted: asked once for each name."""
        with self._lock:
            for seat in self._seats:
                if not seat.busy and was_evicted(seat.session.name):
                    seat.session.forget()
                    seat.owner = seat.displaced = ""

    def _park_displaced(self, seat: Seat) -> None:
        name, seat.displaced = seat.displaced, ""
        session = seat.session
        if name and session.cached and self.parked.takes(session.bytes_of(session.rows)):
            self.parked.park(name, session.park())

    def _donor(self, own: Seat, tokens: Sequence[int]) -> tuple[LmSession | None, int]:
        """The other text that has most of the beginning cached, and how much."""
        others = [seat.session for seat in list(self._seats) if seat is not own]
        shared = [(session.lends(tokens), session) for session in others]
        count, session = max(shared, key=lambda pair: pair[0], default=(0, None))
        return session, count

    def _free(self, tokens: Sequence[int], owner: str) -> Seat | None:
        own = next((seat for seat in self._seats if owner and seat.owner == owner), None)
        if own is not None:
            return None if own.busy else own
        idle = [seat for seat in self._seats if not seat.busy]
        nameless = [seat for seat in idle if not seat.owner]
        best = max(nameless, key=lambda seat: (seat.session.shares(tokens), -seat.used), default=None)
        if best is not None and best.session.shares(tokens) * 2 >= len(tokens):
            return best
        if len(self._seats) < self._most:
            try:
                session = self._open_session()
                session.name = f"api-{session.name}"  # as o3ctl shows it
                self._seats.append(Seat(session))
                return self._seats[-1]
            except InputError:  # a device has fewer slots than the profile allows texts
                self._most = len(self._seats)
        return min(idle, key=lambda seat: (bool(seat.owner), seat.used), default=None)

    def __len__(self) -> int:
        return len(self._seats)

    def status(self) -> PoolStatus:
        with self._lock:
            seats = list(self._seats)
            sessions = tuple((seat.session.name, seat.owner, seat.session.cached, seat.busy) for seat in seats)
            return PoolStatus(
                open=len(seats),
                busy=sum(seat.busy for seat in seats),
                most=self._most,
                cached_tokens=sum(seat.session.cached for seat in seats),
                bytes=sum(_own_bytes(seat.session) for seat in seats),
                dropped_tokens=sum(seat.session.cached - seat.session.rows for seat in seats),
                dropped_bytes=sum(seat.session.bytes_of(seat.session.cached - seat.session.rows) for seat in seats),
                copied=self._copied,
                moved=self._moved,
                sessions=sessions,
                parked=self.parked.status(),
            )

    def close(self) -> None:
        """Give every cache back. No request may run."""
        with self._lock:
            for seat in self._seats:
                seat.session.close()
            self._seats.clear()
            self.parked.clear()


def _own_bytes(session: LmSession) -> int:
    return session.body.bytes_for(session.rows - session.shown)
