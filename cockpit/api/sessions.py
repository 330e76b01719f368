"""The texts that API requests run on: few caches for many dialogues, each request on the one that saves it most."""

from __future__ import annotations

import threading
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass

from models.engines.llm.session import LmSession
from models.errors import InputError

_WAIT_S = 0.1
"""How often a request that waits for a text looks whether it is still wanted."""


@dataclass(slots=True)
class _Seat:
    """One cache. owner: the dialogue that used it last, empty for a request without a name."""

    session: LmSession
    owner: str = ""
    busy: bool = True
    used: int = 0


class SessionPool:
    """At most `most` texts, opened when they are first needed. Thread-safe."""

    def __init__(self, open_session: Callable[[], LmSession], most: int) -> None:
        self._open_session = open_session
        self._most = most
        self._changed = threading.Condition()
        self._seats: list[_Seat] = []
        self._turn = 0

    @contextmanager
    def borrow(self, tokens: Sequence[int], owner: str, give_up: Callable[[], bool]) -> Iterator[LmSession | None]:
        """A text for the body, by one thread at a time; None when `give_up` while all were busy.

        A dialogue with a name gets its own text back, and waits for it while another of its requests runs. Others get
        the idle one that shares the longest beginning with `tokens`, a new one while there may be more, and else the
        one that was not used for the longest time.
        """
        seat = self._take(tokens, owner, give_up)
        if seat is None:
            yield None
            return
        try:
            yield seat.session
        finally:
            with self._changed:
                seat.busy = False
                self._changed.notify_all()

    def _take(self, tokens: Sequence[int], owner: str, give_up: Callable[[], bool]) -> _Seat | None:
        with self._changed:
            while not give_up():
                seat = self._free(tokens, owner)
                if seat is not None:
                    self._turn += 1
                    seat.busy, seat.owner, seat.used = True, owner, self._turn
                    return seat
                self._changed.wait(_WAIT_S)
            return None

    def _free(self, tokens: Sequence[int], owner: str) -> _Seat | None:
        own = next((seat for seat in self._seats if owner and seat.owner == owner), None)
        if own is not None:
            return None if own.busy else own
        idle = [seat for seat in self._seats if not seat.busy]
        nameless = [seat for seat in idle if not seat.owner]
        best = max(nameless, key=lambda seat: (shared(seat.session, tokens), -seat.used), default=None)
        if best is not None and shared(best.session, tokens) * 2 >= len(tokens):
            return best
        if len(self._seats) < self._most:
            try:
                self._seats.append(_Seat(self._open_session()))
                return self._seats[-1]
            except InputError:  # a device has fewer slots than the profile allows texts
                self._most = len(self._seats)
        return min(idle, key=lambda seat: (bool(seat.owner), seat.used), default=None)

    def __len__(self) -> int:
        return len(self._seats)

    def close(self) -> None:
        """Give every cache back. No request may run."""
        with self._changed:
            for seat in self._seats:
                seat.session.close()
            self._seats.clear()


def shared(session: LmSession, tokens: Sequence[int]) -> int:
    """How many tokens at the beginning of `tokens` the session has computed already."""
    held = session.tokens[: min(session.cached, len(tokens))]
    return next((i for i, token in enumerate(held) if token != tokens[i]), len(held))
