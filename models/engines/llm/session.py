"""One running text: its tokens, its KV cache of fixed size, and the loop that adds tokens to it."""

from __future__ import annotations

from collections import deque
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, nullcontext
from dataclasses import dataclass
from itertools import count
from typing import Any, NamedTuple, Protocol
from weakref import finalize

import numpy as np
from numpy.typing import NDArray

from models.engines.base import TokenConstraint, never_cancelled
from models.engines.llm.head import F32, Ids
from models.engines.llm.hybrid.states import Snapshot
from models.engines.llm.kv.gate import GatedSpan, TextGate, rows_of
from models.engines.llm.shared_rows import NOTHING_SHARED, SharedBeginning
from models.engines.llm.speculation.gate import DraftGate
from models.engines.preemption import RunEnded
from models.errors import InputError

Hidden = Any
"""What a body hands to its head: float32 (R, hidden) on the CPU, a place in device memory elsewhere."""
_NUMBERS = count(1)
DEFAULT_CHUNK = 256
"""Tokens per prefill run: the longest the engine computes before it asks whether to yield or stop."""


COPY_TOKENS = 1024
"""Tokens whose rows are copied before a boundary: a few milliseconds."""
_MOST_MISSING = 16
"""Tokens that a run may compute besides guesses, with a row of each: a prompt goes without."""
_WRITES = 64
"""Runs that a text remembers; who copies from it while more of them go by starts anew."""


def _no_boundary() -> None:
    return None


class Body(Protocol):
    """The decoder for one text: the weights it shares with others and a KV cache of its own."""

    slot: int
    """Its place in the arena; texts in slots beside each other may share a run."""
    capacity: int
    """Tokens that fit in the cache."""
    kv_bytes: int

    def bytes_for(self, tokens: int) -> int:
        """Memory that a text of so many tokens takes; `kv_bytes` where a cache is held whole."""
        ...

    def copy_rows(self, other: Body, start: int, count: int) -> None:
        """Take the keys and values of `count` positions from `start` on from `other`, bit for bit.

        Raises InputError when `other` is a body of another model or device.
        """
        ...

    def shareable(self, count: int) -> int:
        """Of how many of the first `count` positions `share` would store the keys and values."""
        ...

    def share(self, count: int) -> int:
        """Store the keys and values of the first `count` positions where other texts can use them without a copy, and
        use them from there. Returns of how many that is true: of none on a device.
        """
        ...

    def shared(self, count: int) -> SharedBeginning:
        """What `share` stored of the first `count` positions."""
        ...

    def show(self, beginning: SharedBeginning, start: int, stop: int) -> int:
        """Let the positions from `start` up to `stop` have what `beginning` holds of them. Returns the first that it
        does not hold.
        """
        ...

    def read_rows(self, count: int, start: int = 0) -> Rows:
        """A copy in host memory of the positions from `start` up to `count`."""
        ...

    def write_rows(self, rows: Rows, start: int) -> None:
        """Put what `read_rows` gave, or a part of it, at the positions from `start` on."""
        ...

    def drop_rows(self) -> None:
        """Nothing that is cached is needed any more: memory that only held it may go."""
        ...

    def resumable(self, count: int) -> int:
        """Up to where what is cached of the first `count` tokens can be gone on from: all of it, but of a model with
        recurrent states the last place whose states are kept.
        """
        ...

    def snapshots(self, count: int) -> tuple[Snapshot, ...]:
        """The recurrent states that are kept of the first `count` tokens."""
        ...

    def take_snapshots(self, snapshots: tuple[Snapshot, ...]) -> None:
        """Keep states that another text, or this one before it was parked, had after the same tokens."""
        ...

    def run(self, tokens: list[int], position: int, *, every_row: bool) -> Hidden:
        """Compute `tokens`, the first of them at `position`; everything before it is in the cache already.

        Returns the hidden states of every token or of the last. On a device they stay valid until the next run with
        the same `every_row`.
        """
        ...

    def close(self) -> None:
        """Give the cache back; no run may follow."""
        ...


class GatedBody(Body, Protocol):
    """A body that may drop rows: `run` takes positions, every other method counts rows."""

    gate: TextGate | None

    def rows_before(self, position: int) -> int:
        """Rows of the cache before that of `position`."""
        ...

    def drop_block(self, cached: int) -> None:
        """Drop what the gate does of the block after its span; `cached` tokens have rows."""
        ...


class Step(NamedTuple):
    """One token of one text, to be computed at `position`: everything before it is cached."""

    body: Body
    token: int
    position: int


Rows = NDArray[Any]
"""Keys and values in host memory, (2 x layers, kv_heads, tokens, head_dim): a layer's keys, then its values."""


@dataclass(frozen=True, slots=True)
class ParkedText:
    """A text whose cache was copied to host memory. Nobody may write to `rows`; several sessions may read them.

    shared: its beginning, where that is stored for several texts; `rows` are those after it. span: where it has fewer
    rows than tokens.
    """

    tokens: tuple[int, ...]
    rows: Rows
    shared: SharedBeginning = NOTHING_SHARED
    states: tuple[Snapshot, ...] = ()
    span: GatedSpan | None = None

    def shares(self, tokens: Sequence[int]) -> int:
        """How many tokens at the beginning of `tokens` it can give a session."""
        count = common(self.tokens, tokens)
        return count if self.span is None else self.span.usable(count)

    @property
    def size_bytes(self) -> int:
        """What nobody but this one needs."""
        return self.rows.nbytes + sum(each.size_bytes for each in self.states)


class Head(Protocol):
    """From hidden states to tokens. Leaves them as they were."""

    def best(self, hidden: Hidden, allowed: Ids | None = None) -> int:
        """The arg-max token of the last row, among `allowed` (int64, not empty) when given."""
        ...

    def best_each(self, hidden: Hidden, allowed: Sequence[Ids | None]) -> list[int]:
        """The arg-max token of every row, each among its own `allowed` where that is given."""
        ...

    def row(self, hidden: Hidden, index: int) -> Hidden:
        """One row of what a run over several texts gave."""
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
    `drafted` and `accepted` count them, `drafting` says whether it pays. redone: runs that were ended for somebody more
    urgent and are done again; what cannot wait for a boundary (`score`, `hidden`) does that at once.

    Another thread may read `tokens` and `cached`, and copy cached rows with `adopt`, while the owner works: `cached`
    is lowered before the text changes, and every run notes where it begins to write before it does.
    """

    def __init__(self, body: Body, head: Head, stop_ids: frozenset[int], gated: GatedBody | None = None) -> None:
        self.name = f"text-{next(_NUMBERS)}"
        self.draft_tokens = 0
        self.drafting = DraftGate()
        self.drafted = 0
        self.accepted = 0
        self.redone = 0
        self.body = body
        self._head = head
        self._gated = gated
        self._gate = None if gated is None else gated.gate
        self.stop_ids = stop_ids
        self._tokens: list[int] = []
        self._cached = 0
        self._expected = body.capacity
        self._shared_tokens = 0
        self._kept: ParkedText | None = None
        self.exclusive: AbstractContextManager[Any] = nullcontext()
        """Held while rows are written: a lock that the texts of one batch share, since a run may cover all of them."""
        self._writes: deque[tuple[int, int]] = deque([(0, 0)], _WRITES)
        """(serial number, first position written) of the last runs."""
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
        """Memory that the text takes: of the whole cache, or of as many tokens as `expect` said; without what is stored
        once for several texts.
        """
        tokens = max(self._expected, self._cached)
        rows = tokens if self._gate is None else self._gate.most_rows(tokens)
        return self.body.bytes_for(rows - self._shared_tokens)

    @property
    def rows(self) -> int:
        """Rows of the cache: as many as tokens are cached, less what a gate dropped."""
        return self._rows_before(self._cached)

    @property
    def span(self) -> GatedSpan | None:
        """Where there are fewer rows than tokens; None: nowhere."""
        return None if self._gate is None else self._gate.span

    def _rows_before(self, position: int) -> int:
        return rows_of(self.span, position)

    def bytes_of(self, rows: int) -> int:
        """Keys and values of so many rows: what `park` copies."""
        return self.body.kv_bytes // self.capacity * rows

    def expect(self, tokens: int) -> None:
        """The text will not be longer than `tokens` before this is called again: what memory is booked for."""
        self._expected = min(tokens, self.capacity)

    def expect_shared(self, tokens: int) -> None:
        """So many of its first tokens are stored with another text, or will be: no memory is booked for them here."""
        self._shared_tokens = tokens

    @property
    def expected(self) -> int:
        """What `expect` was told last."""
        return self._expected

    def shares(self, tokens: Sequence[int]) -> int:
        """How many tokens at the beginning of `tokens` are cached here, for this text to go on from."""
        return self._usable(common(self._tokens[: self._cached], tokens))

    def lends(self, tokens: Sequence[int]) -> int:
        """How many of them another text may take over: those before anything was dropped."""
        return common(self._held(), tokens)

    def _usable(self, count: int) -> int:
        span = self.span
        return count if span is None else span.usable(count)

    def _cut(self, count: int) -> None:
        """No more than the first `count` tokens are cached from now on."""
        self._cached = self._usable(count)
        if self._gate is not None and self._cached < self._gate.stop:
            self._gate.take(None)

    def _cut_span(self) -> None:
        """Of the tokens that are cached, only those before anything was dropped still are."""
        if (span := self.span) is not None:
            self._cut(span.start)

    def adopt(self, other: LmSession, tokens: Sequence[int], *, at_boundary: Callable[[], None] = _no_boundary) -> int:
        """Take over what `other` has cached of the beginning of `tokens`, by copying it. Returns how many of `tokens`
        are cached now; fewer than `other` had when it was overwritten meanwhile.

        `other` may be at work in another thread (on a CPU; on a device only one lane runs at a time).
        Raises InputError when the two are not of one model on one device.
        """
        since = other._writes[-1][0]
        wanted = list(tokens[: common(other._held(), tokens)][: self.capacity])

        def copy(start: int, count: int) -> bool:
            if other._written_below(start + count, since):
                return False
            if other.exclusive is self.exclusive:  # no run of it goes on now
                other.body.share(start + count)
            self.body.copy_rows(other.body, start, count)
            return not other._written_below(start + count, since)

        self._take_in(wanted, copy, at_boundary)
        return self.shares(tokens)

    def park(self, count: int | None = None) -> ParkedText:
        """A copy in host memory of the first `count` tokens that are cached, or of all."""
        kept = self._usable(min(self._cached, len(self._tokens), self._cached if count is None else count))
        span, stop = self.span, self._rows_before(kept)
        shared = self.body.shared(stop)
        rows, states = self.body.read_rows(stop, shared.rows), self.body.snapshots(kept)
        whole = span is None or kept < span.stop
        return ParkedText(tuple(self._tokens[:kept]), rows, shared, states, None if whole else span)

    def share(self, count: int) -> int:
        """Store what is cached of the first `count` tokens once for several texts, where the device can. Returns for
        how many tokens that is so; `park` holds them without a copy, and who restores them has none either.
        """
        with self.exclusive:
            return self.body.share(min(count, len(self._held())))

    def keep_beginning(self) -> int:
        """Store what is cached now, so that a text that was forgotten has its beginning back without computing it.

        Returns how many tokens that are: whole pages, and none on a device. They take memory until the session ends.
        """
        count = self.share(self._cached)
        self._kept = self.park(count) if count else None
        return count

    @property
    def shown(self) -> int:
        """Of how many tokens it has no copy of its own."""
        return self.body.shared(self._cached).rows

    def restore(
        self, parked: ParkedText, tokens: Sequence[int], *, at_boundary: Callable[[], None] = _no_boundary
    ) -> int:
        """As `adopt`, from host memory."""
        wanted = list(tokens[: parked.shares(tokens)][: self.capacity])
        first = parked.shared.rows

        def copy(start: int, count: int) -> bool:
            stop = start + count
            start = self.body.show(parked.shared, start, stop)
            if start < stop:
                self.body.write_rows(parked.rows[:, :, start - first : stop - first], start)
            return True

        span = parked.span
        if span is None or len(wanted) < span.stop:
            self._take_in(wanted, copy, at_boundary)
        elif self.shares(wanted) < len(wanted):
            self._cut_span()
            self._take_in(wanted[: span.start], copy, at_boundary)
            self._take_span(parked, span, wanted, at_boundary)
        held = self.shares(wanted)
        self.body.take_snapshots(tuple(each for each in parked.states if each.position <= held))
        return self.shares(tokens)

    def _take_span(
        self, parked: ParkedText, span: GatedSpan, wanted: list[int], at_boundary: Callable[[], None]
    ) -> None:
        """After what lies before the span: its rows and those that follow. They count once all of them are there."""
        self._hidden = None
        self._cut(span.start)
        self._tokens = wanted
        first, row, stop = parked.shared.rows, span.start, rows_of(span, len(wanted))
        while row < stop and self._cached == span.start:  # else it was forgotten at a boundary
            count = min(COPY_TOKENS, stop - row)
            with self.exclusive:
                self._note_write(span.start)
                self.body.write_rows(parked.rows[:, :, row - first : row - first + count], row)
            row += count
            if row < stop:
                at_boundary()
        if self._cached == span.start and self._gate is not None:
            self._gate.take(span)
            self._cached = len(wanted)

    def _take_in(self, wanted: list[int], copy: Callable[[int, int], bool], at_boundary: Callable[[], None]) -> None:
        """Make the text `wanted` by copying what is not cached. copy: False when what it copied is no good."""
        done = self.shares(wanted)
        if done >= len(wanted):
            return
        self._hidden = None
        self._cut(done)
        self._cut_span()
        done = self._cached
        self._tokens = wanted
        while done < len(wanted):
            count = min(COPY_TOKENS - done % COPY_TOKENS, len(wanted) - done)
            with self.exclusive:
                self._note_write(done)
                if not copy(done, count):
                    break
                done += count
                self._cached = done
            if done < len(wanted):
                at_boundary()
                if self._cached != done:  # forgotten at the boundary
                    break

    def _held(self) -> list[int]:
        """The tokens that others may copy the rows of; in this order, since the owner lowers `_cached` first."""
        tokens = self._tokens
        count, span = min(len(tokens), self._cached), self.span
        return tokens[: count if span is None else min(count, span.start)]

    def _note_write(self, position: int) -> None:
        self._writes.append((self._writes[-1][0] + 1, position))

    def _written_below(self, count: int, since: int) -> bool:
        """Whether rows before `count` may have changed after write number `since`."""
        writes = list(self._writes)
        return writes[0][0] > since + 1 or any(serial > since and at < count for serial, at in writes)

    def forget(self) -> None:
        """Drop what is cached: the text stays and is computed anew when it is next needed."""
        self._hidden, self._shared_tokens = None, 0
        self._cut(0)
        self._note_write(0)
        if self._release.alive:
            with self.exclusive:
                self.body.drop_rows()

    def close(self) -> None:
        """Give the cache back; the session may not be used any more. Safe to call twice."""
        self.forget()
        self._kept = None
        self._release()

    def set_tokens(
        self,
        tokens: Sequence[int],
        *,
        chunk: int = DEFAULT_CHUNK,
        cancelled: Callable[[], bool] = never_cancelled,
        at_boundary: Callable[[], None] = _no_boundary,
    ) -> int:
        """Make the text `tokens`: what it shares with the cache is kept, the rest computed. Returns how many were kept.

        When `cancelled`, it stops at the next chunk; what is missing is computed when it is next needed.
        Raises InputError when the text is empty or does not fit.
        """
        reused = self.begin(tokens)
        if self._hidden is None:
            self._flush(chunk, cancelled, at_boundary)
        return reused

    def begin(self, tokens: Sequence[int]) -> int:
        """As `set_tokens`, but nothing is computed yet: `compute` does, piece by piece."""
        wanted = list(tokens)
        self._check(wanted)
        limit = min(self._cached, len(wanted))
        reused = self._usable(next((i for i in range(limit) if wanted[i] != self._tokens[i]), limit))
        if reused != len(wanted) or reused != len(self._tokens) or self._hidden is None:
            self._hidden = None
            # Two rows at least: runs of one row round otherwise, and what was cached must not change what comes next.
            self._cut(min(reused, max(0, len(wanted) - 2)))
            self._tokens = wanted
        return reused

    @property
    def missing(self) -> int:
        """Tokens that must be computed before the next one can be chosen; 0: `last_hidden` is there."""
        if self._hidden is not None:
            return 0
        return max(1, len(self._tokens) - self.body.resumable(self._cached))

    def compute(self, at_most: int) -> None:
        """One run over up to `at_most` (two or more) of the missing tokens. Raises RunEnded: do it again."""
        start = self.body.resumable(min(self._cached, len(self._tokens) - 1))
        count = len(self._tokens) - start
        if count > at_most:  # what is left must not be a single row either: see `begin`
            count = at_most if count - at_most > 1 else at_most - 1
        self._cached = start
        hidden = self._run(self._tokens[start : start + count], every_row=False)
        self._hidden = hidden if self._cached == len(self._tokens) else None

    @property
    def last_hidden(self) -> Hidden | None:
        """The last token's hidden state, where it is computed. On a device: until another run gives one."""
        return self._hidden

    def extend(self, tokens: Sequence[int]) -> None:
        """Append tokens that are computed when they are next needed."""
        self._hidden = None
        self._tokens.extend(tokens)

    def next_step(self) -> Step:
        """The one missing token, to be computed together with other texts'. Its owner calls `stepped` afterwards."""
        assert self._hidden is None
        assert len(self._tokens) - self._cached <= 1
        self._cut(min(self._cached, len(self._tokens) - 1))
        self._drop_due()
        return Step(self.body, self._tokens[-1], self._cached)

    def stepped(self, hidden: Hidden) -> None:
        """The step was computed and gave `hidden`."""
        self._cached += 1
        self._hidden = hidden

    def idle_step(self) -> Step:
        """What a run over other texts computes in this one's slot, since it lies between theirs: a token after what is
        cached, where the next run writes anyway.
        """
        self._note_write(self._cached)
        return Step(self.body, 0, self._cached)

    def note_step(self) -> None:
        """A run is about to write the missing token's row."""
        self._note_write(self._cached)

    def note_move(self) -> None:
        """The rows lie elsewhere now: who copies from them starts anew, and the slot's hidden state is another's."""
        self._hidden = None
        self._note_write(0)

    def prefill(
        self,
        tokens: Sequence[int],
        *,
        chunk: int = DEFAULT_CHUNK,
        cancelled: Callable[[], bool] = never_cancelled,
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
        cancelled: Callable[[], bool] = never_cancelled,
        at_boundary: Callable[[], None] = _no_boundary,
        choose: Callable[[Hidden, Ids | None], int] | None = None,
    ) -> Iterator[int]:
        """Yield the best next token again and again, until a stop id (not yielded), `max_new_tokens`, a complete
        constraint, a full cache or `cancelled`. Every token yielded is part of `tokens` already.

        Tokens a constraint forces are appended without a decision each and computed together in one run.
        `at_boundary` is called before every run of the model and may block: that is where a task yields. `draft_tokens`
        let one run yield several tokens, the same ones as without, while enough guesses are right. choose: given the
        hidden state and the allowed ids (None: all), the next token; by default the likeliest. Nothing is drafted for
        it.
        """
        going = Continuation(self, max_new_tokens, constraint)
        while not going.over and not cancelled():
            forced = going.forced()
            if forced:
                yield from forced
                continue
            if self.draft_tokens and choose is None and self.drafting.open:
                if constraint is None:
                    made = yield from self.drafted_steps(going.room, cancelled, at_boundary)
                    going.room -= made or 0
                else:
                    made = yield from self._constrained_steps(going, constraint, cancelled, at_boundary)
                if made is None:
                    return
                if made:
                    continue
            self.drafting.passed()
            self._flush(DEFAULT_CHUNK, cancelled, at_boundary)
            if self._hidden is None:
                return
            token = (choose or self._head.best)(self._hidden, going.allowed())
            if going.take(token):
                yield token

    def drafted_steps(
        self, room: int, cancelled: Callable[[], bool], at_boundary: Callable[[], None]
    ) -> Generator[int, None, int | None]:
        """Guess what follows, verify it in one run, and yield what the model says: the guesses it agrees with and the
        token after them. Returns how many (0: nothing to guess from), or None when the text has ended.
        """
        if self._hidden is not None or len(self._tokens) - self.body.resumable(self._cached) != 1:
            return 0  # what comes next is known already, or more than one token is missing
        guesses = propose(self._tokens, min(self.draft_tokens, room - 1))
        if not guesses:
            return 0
        at_boundary()
        if cancelled():
            return None
        if self._cached != len(self._tokens) - 1:
            return 0  # what was cached was forgotten at the boundary
        try:
            rows = self._run([self._tokens[-1], *guesses], every_row=True)
        except RunEnded:
            self.redone += 1
            return 0
        said = self._head.best_rows(rows).tolist()
        right = next((i for i, guess in enumerate(guesses) if said[i] != guess), len(guesses))
        self._count_drafts(len(guesses), right)
        self._cached = len(self._tokens)  # the rejected are overwritten by the next run
        for i, token in enumerate(said[: right + 1]):
            if token in self.stop_ids or (i and cancelled()):
                return None
            computed = i < right and self._cached == len(self._tokens)  # not if forgotten since the last yield
            self._tokens.append(token)
            self._cached += computed
            yield token
        return right + 1

    def _constrained_steps(
        self,
        going: Continuation,
        constraint: TokenConstraint,
        cancelled: Callable[[], bool],
        at_boundary: Callable[[], None],
    ) -> Generator[int, None, int | None]:
        """As `drafted_steps`, where a grammar says what may come: only guesses that it lets through are verified, with
        the tokens that it forced before them. What it forces after one is taken without asking the model.
        """
        start = self.body.resumable(min(self._cached, len(self._tokens) - 1))
        missing = self._tokens[start:]
        guesses = propose(self._tokens, min(self.draft_tokens, going.room - 1))
        guesses = guesses[: constraint.possible(guesses)]
        if self._hidden is not None or not guesses or len(missing) > _MOST_MISSING:
            return 0
        at_boundary()
        if cancelled():
            return None
        if self.body.resumable(self._cached) < start:
            return 0  # what was cached was forgotten at the boundary
        self._cached = start
        try:
            rows = self._run([*missing, *guesses], every_row=True)
        except RunEnded:
            self.redone += 1
            return 0
        self._cached = len(self._tokens)
        made = right = 0
        agreed = True
        while agreed and made <= len(guesses) and not going.over:
            forced = constraint.forced()
            row = self._head.row(rows, len(missing) - 1 + made)
            token = forced[0] if forced else self._head.best(row, constraint.allowed())
            agreed = made < len(guesses) and token == guesses[made]
            right += agreed
            computed = agreed and self._cached == len(self._tokens)  # not if forgotten since the last yield
            made += 1
            if not going.take(token):
                break
            self._cached += computed
            yield token
            if cancelled():
                break
        self._count_drafts(len(guesses), right)
        return made

    def _count_drafts(self, offered: int, right: int) -> None:
        self.drafted += offered
        self.accepted += right
        self.drafting.saw(offered, right)

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
                parts.append(self._rows(list(candidate[:-1])))
            totals.append(float(self._head.log_probabilities(parts, np.asarray(candidate, np.int64)).sum()))
            self._cached = kept
        return totals

    def hidden(self) -> Hidden:
        """Hidden state of the last token: what the head takes. Raises InputError for an empty text."""
        self._check(self._tokens)
        self._flush(DEFAULT_CHUNK, never_cancelled, _no_boundary)
        assert self._hidden is not None
        return self._hidden

    def hidden_rows(self, tokens: Sequence[int]) -> Hidden:
        """Make the text `tokens` from nothing and return every position's hidden state, n rows: measuring only."""
        wanted = list(tokens)
        self._check(wanted)
        self._hidden = None
        self._cut(0)
        self._tokens = wanted
        return self._rows(wanted)

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
        self._cached = self.body.resumable(self._cached)
        while self._cached < len(self._tokens):
            at_boundary()
            if cancelled():
                return
            if not self._cached and self._kept is not None:
                self._begin_as_kept(self._kept)
            self._cached = self.body.resumable(self._cached)
            part = self._tokens[self._cached : self._cached + chunk]
            try:
                self._hidden = self._run(part, every_row=False)
            except RunEnded:
                self.redone += 1
                continue
            if self._cached < len(self._tokens):
                self._hidden = None

    def _begin_as_kept(self, kept: ParkedText) -> None:
        """Nothing is cached: begin with what `keep_beginning` stored, but leave two rows at least (see `begin`)."""
        count = min(common(kept.tokens, self._tokens), len(self._tokens) - 2)
        if count > 0:
            with self.exclusive:
                self._note_write(0)
                self._cached = self.body.show(kept.shared, 0, count)

    def _rows(self, tokens: list[int]) -> Hidden:
        """A run over `tokens` that is done again at once when it was ended for somebody more urgent."""
        while True:
            try:
                return self._run(tokens, every_row=True)
            except RunEnded:
                self.redone += 1

    def _run(self, tokens: list[int], *, every_row: bool) -> Hidden:
        """One run of the body over `tokens` placed after the cached ones. Raises RunEnded."""
        if not self._release.alive:
            raise InputError(f"{self.name} is closed and its cache given back; open a new session")
        with self.exclusive:
            self._drop_due()
            self._note_write(self._cached)
            hidden = self.body.run(tokens, self._cached, every_row=every_row)
        self._cached += len(tokens)
        return hidden

    def _drop_due(self) -> None:
        """Let the gate, if there is one, drop what lies far enough behind. Nobody may run the model meanwhile."""
        if self._gated is None or self._gate is None:
            return
        while self._gate.due(self._tokens, self._cached, self.shown, self.stop_ids):
            self._note_write(self._gate.stop)
            self._gated.drop_block(self._cached)


class Continuation:
    """What comes after a session's text: how many tokens still may, which ones, and when it is over. Who drives it runs
    the model and chooses.

    over: a stop id came, the constraint is complete, or there is no room. room: tokens that may still come.
    """

    def __init__(self, session: LmSession, max_new_tokens: int, constraint: TokenConstraint | None) -> None:
        self.session = session
        self.constraint = constraint
        self.room = min(max_new_tokens, session.capacity - len(session.tokens))
        self._ended = False

    @property
    def over(self) -> bool:
        return self._ended or self.room <= 0 or (self.constraint is not None and self.constraint.done)

    def forced(self) -> list[int]:
        """Append the tokens that the constraint leaves no choice about, and return them; without a stop id."""
        if self.constraint is None:
            return []
        forced = self.constraint.forced()[: self.room]
        if forced:
            self.session.extend(forced)
        self.room -= len(forced)
        for index, token in enumerate(forced):
            self.constraint.advance(token)
            if token in self.session.stop_ids:
                self._ended = True
                return forced[:index]
        return forced

    def end(self) -> None:
        """Nothing more comes: a stop id came some other way."""
        self._ended = True

    def allowed(self) -> Ids | None:
        """The ids among which the next token is chosen; None: all."""
        return None if self.constraint is None else self.constraint.allowed()

    def take(self, token: int) -> bool:
        """Append the chosen token; False for a stop id, which is not part of the text."""
        if self.constraint is not None:
            self.constraint.advance(token)
        if token in self.session.stop_ids:
            self._ended = True
            return False
        self.session.extend([token])
        self.room -= 1
        return True


def common(held: Sequence[int], tokens: Sequence[int]) -> int:
    """Length of the beginning that both share."""
    most = min(len(held), len(tokens))
    if list(held[:most]) == list(tokens[:most]):
        return most
    return next(i for i in range(most) if held[i] != tokens[i])


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
