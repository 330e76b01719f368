"""One running text: its tokens, its KV cache of fixed size, and the loop that adds tokens to it."""

from __future__ import annotations

from collections.abc import Callable, Generator, Iterator, Sequence
from itertools import count
from typing import Any, Protocol
from weakref import finalize

import numpy as np

from models.engines.base import TokenConstraint
from models.engines.llm.head import F32, Ids
from models.errors import InputError

Hidden = Any
"""What a body hands to its head: float32 (R, hidden) on the CPU, a place in device memory elsewhere."""
_NUMBERS = count(1)
DEFAULT_CHUNK = 256
"""Tokens per prefill run: the longest the engine computes before it asks whether to yield or stop."""


def _never() -> bool:
    return False


def _no_boundary() -> None:
    return None


class Body(Protocol):
    """The decoder for one text: the weights it shares with others and a KV cache of its own."""

    capacity: int
    """Tokens that fit in the cache."""
    kv_bytes: int

    def run(self, tokens: list[int], position: int, *, every_row: bool) -> Hidden:
        """Compute `tokens`, the first of them at `position`; everything before it is in the cache already.

        Returns the hidden states of every token or of the last. On a device they stay valid until the next run with
        the same `every_row`.
        """
        ...

    def close(self) -> None:
        """Give the cache back; no run may follow."""
        ...


class Head(Protocol):
    """From hidden states to tokens. Leaves them as they were."""

    def best(self, hidden: Hidden, allowed: Ids | None = None) -> int:
        """The arg-max token of the last row, among `allowed` (int64, not empty) when given."""
        ...

    def best_rows(self, hidden: Hidden) -> Ids:
        """The arg-max token of every row, int64 (R,)."""
        ...

    def log_probabilities(self, parts: Sequence[Hidden], targets: Ids) -> F32:
        """Log-probability float32 (R,) of `targets` int64 (R,), nats. parts: their R rows, in order."""
        ...

    def logits(self, hidden: Hidden) -> F32:
        """All logits float32 (R, vocab): for measuring quality only; they are large."""
        ...


class LmSession:
    """Greedy generation over one KV cache. Not thread-safe: one stage owns it.

    Invariant: the cache holds keys and values of the first `cached` of `tokens`; rewinding only lowers that number.

    name: unique in the process. draft_tokens: how many tokens `generate` may guess ahead and verify in one run;
    `drafted` and `accepted` count them.
    """

    def __init__(self, body: Body, head: Head, stop_ids: frozenset[int]) -> None:
        self.name = f"text-{next(_NUMBERS)}"
        self.draft_tokens = 0
        self.drafted = 0
        self.accepted = 0
        self.body = body
        self._head = head
        self._stop_ids = stop_ids
        self._tokens: list[int] = []
        self._cached = 0
        self._hidden: Hidden | None = None
        self._release = finalize(self, body.close)
        """Gives the cache back once: when the session is closed, else when nobody holds it any more."""
        self._release.atexit = False

    @property
    def tokens(self) -> tuple[int, ...]:
        """The text so far as token ids."""
        return tuple(self._tokens)

    @property
    def cached(self) -> int:
        """How many of `tokens` have their keys and values in the cache."""
        return self._cached

    @property
    def capacity(self) -> int:
        """Tokens that fit."""
        return self.body.capacity

    @property
    def kv_bytes(self) -> int:
        """Memory of the whole cache."""
        return self.body.kv_bytes

    def forget(self) -> None:
        """Drop what is cached: the text stays and is computed anew when it is next needed."""
        self._cached, self._hidden = 0, None

    def close(self) -> None:
        """Give the cache back; the session may not be used any more. Safe to call twice."""
        self.forget()
        self._release()

    def set_tokens(
        self,
        tokens: Sequence[int],
        *,
        chunk: int = DEFAULT_CHUNK,
        cancelled: Callable[[], bool] = _never,
        at_boundary: Callable[[], None] = _no_boundary,
    ) -> int:
        """Make the text `tokens`: what it shares with the cache is kept, the rest computed. Returns how many were kept.

        When `cancelled`, it stops at the next chunk; what is missing is computed when it is next needed.
        Raises InputError when the text is empty or does not fit.
        """
        wanted = list(tokens)
        self._check(wanted)
        limit = min(self._cached, len(wanted))
        reused = next((i for i in range(limit) if wanted[i] != self._tokens[i]), limit)
        whole = reused == len(wanted) == len(self._tokens) and self._hidden is not None
        self._tokens = wanted
        if not whole:
            self._hidden = None
            # Two rows at least: runs of one row round otherwise, and what was cached must not change what comes next.
            self._cached = min(reused, max(0, len(wanted) - 2))
            self._flush(chunk, cancelled, at_boundary)
        return reused

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        chunk: int = DEFAULT_CHUNK,
        cancelled: Callable[[], bool] = _never,
        at_boundary: Callable[[], None] = _no_boundary,
    ) -> None:
        """Append `tokens` to the text and compute them, `chunk` at a time. Raises InputError when they do not fit."""
        if not tokens:
            return
        self._check([*self._tokens, *tokens])
        self._tokens.extend(tokens)
        self._hidden = None
        self._flush(chunk, cancelled, at_boundary)

    def generate(
        self,
        *,
        max_new_tokens: int,
        constraint: TokenConstraint | None = None,
        cancelled: Callable[[], bool] = _never,
        at_boundary: Callable[[], None] = _no_boundary,
        choose: Callable[[Hidden, Ids | None], int] | None = None,
    ) -> Iterator[int]:
        """Yield the best next token again and again, until a stop id (not yielded), `max_new_tokens`, a complete
        constraint, a full cache or `cancelled`. Every token yielded is part of `tokens` already.

        Tokens a constraint forces are appended without a decision each and computed together in one run.
        `at_boundary` is called before every run of the model and may block: that is where a task yields. Without a
        constraint, `draft_tokens` let one run yield several tokens, the same ones as without. choose: given the hidden
        state and the allowed ids (None: all), the next token; by default the likeliest. Nothing is drafted for it.
        """
        room = min(max_new_tokens, self.capacity - len(self._tokens))
        while room > 0 and not cancelled():
            if constraint is not None:
                if constraint.done:
                    return
                forced = constraint.forced()[:room]
                if forced:
                    self._hidden = None
                    self._tokens.extend(forced)
                    room -= len(forced)
                    for token in forced:
                        constraint.advance(token)
                        if token in self._stop_ids:
                            return
                        yield token
                    continue
            elif self.draft_tokens and choose is None:
                made = yield from self._drafted(room, cancelled, at_boundary)
                if made is None:
                    return
                if made:
                    room -= made
                    continue
            self._flush(DEFAULT_CHUNK, cancelled, at_boundary)
            if self._hidden is None:
                return
            allowed = None if constraint is None else constraint.allowed()
            token = (choose or self._head.best)(self._hidden, allowed)
            if constraint is not None:
                constraint.advance(token)
            if token in self._stop_ids:
                return
            self._hidden = None
            self._tokens.append(token)
            room -= 1
            yield token

    def _drafted(
        self, room: int, cancelled: Callable[[], bool], at_boundary: Callable[[], None]
    ) -> Generator[int, None, int | None]:
        """Guess what follows, verify it in one run, and yield what the model says: the guesses it agrees with and the
        token after them. Returns how many (0: nothing to guess from), or None when the text has ended.
        """
        if self._hidden is not None or self._cached != len(self._tokens) - 1:
            return 0  # what comes next is known already, or more than one token is missing
        guesses = propose(self._tokens, min(self.draft_tokens, room - 1))
        if not guesses:
            return 0
        at_boundary()
        if cancelled():
            return None
        if self._cached != len(self._tokens) - 1:
            return 0  # what was cached was forgotten at the boundary
        said = self._head.best_rows(self._run([self._tokens[-1], *guesses], every_row=True)).tolist()
        right = next((i for i, guess in enumerate(guesses) if said[i] != guess), len(guesses))
        self.drafted += len(guesses)
        self.accepted += right
        self._cached = len(self._tokens)  # the rejected are overwritten by the next run
        for i, token in enumerate(said[: right + 1]):
            if token in self._stop_ids or (i and cancelled()):
                return None
            computed = i < right and self._cached == len(self._tokens)  # not if forgotten since the last yield
            self._tokens.append(token)
            self._cached += computed
            yield token
        return right + 1

    def score(self, candidates: Sequence[Sequence[int]]) -> list[float]:
        """Total log-probability (nats) of each candidate as what comes next. The text stays as it was.

        Raises InputError when a candidate is empty or does not fit.
        """
        hidden = self.hidden()
        kept = self._cached
        totals = []
        for candidate in candidates:
            self._check([*self._tokens, *candidate])
            if not candidate:
                raise InputError("a candidate without tokens cannot be scored; leave it out")
            parts = [hidden]
            if len(candidate) > 1:
                parts.append(self._run(list(candidate[:-1]), every_row=True))
            totals.append(float(self._head.log_probabilities(parts, np.asarray(candidate, np.int64)).sum()))
            self._cached = kept
        return totals

    def hidden(self) -> Hidden:
        """Hidden state of the last token: what the head takes. Raises InputError for an empty text."""
        self._check(self._tokens)
        self._flush(DEFAULT_CHUNK, _never, _no_boundary)
        assert self._hidden is not None
        return self._hidden

    def hidden_rows(self, tokens: Sequence[int]) -> Hidden:
        """Make the text `tokens` from nothing and return every position's hidden state, n rows: measuring only."""
        wanted = list(tokens)
        self._check(wanted)
        self._tokens, self._cached, self._hidden = wanted, 0, None
        return self._run(wanted, every_row=True)

    def _check(self, tokens: Sequence[int]) -> None:
        if not tokens:
            raise InputError("a text without tokens cannot be continued; give at least one token")
        if len(tokens) > self.capacity:
            raise InputError(
                f"{len(tokens)} tokens do not fit in a context of {self.capacity}; shorten them or raise context_tokens"
            )

    def _flush(self, chunk: int, cancelled: Callable[[], bool], at_boundary: Callable[[], None]) -> None:
        """Compute what `tokens` has and the cache has not; `_hidden` is then the last token's."""
        if self._hidden is None and self._cached == len(self._tokens):
            self._cached -= 1
        while self._cached < len(self._tokens):
            at_boundary()
            if cancelled():
                return
            part = self._tokens[self._cached : self._cached + chunk]
            self._hidden = self._run(part, every_row=False)
            if self._cached < len(self._tokens):
                self._hidden = None

    def _run(self, tokens: list[int], *, every_row: bool) -> Hidden:
        """One run of the body over `tokens` placed after the cached ones."""
        if not self._release.alive:
            raise InputError(f"{self.name} is closed and its cache given back; open a new session")
        hidden = self.body.run(tokens, self._cached, every_row=every_row)
        self._cached += len(tokens)
        return hidden


# --- draft tokens without a second model ---------------------------------------------------------------------------
def propose(tokens: Sequence[int], most: int) -> list[int]:
    """Up to `most` tokens that followed where the text last ended as it does now; none when it never did.

    Three equal tokens are preferred to two, and the latest place to earlier ones.
    """
    if most < 1 or len(tokens) < 3:
        return []
    third, second, last = tokens[-3:]
    pair = 0
    ends = [at for at, token in enumerate(tokens) if token == last]
    for at in reversed(ends[:-1]):
        if at < 1 or tokens[at - 1] != second:
            continue
        if at > 1 and tokens[at - 2] == third:
            return list(tokens[at + 1 : at + 1 + most])
        pair = pair or at
    return list(tokens[pair + 1 : pair + 1 + most]) if pair else []
