"""One running text: its tokens, its KV cache of fixed size, and the loop that adds tokens to it."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Sequence
from itertools import count

import numpy as np
import onnxruntime as ort

from models.engines.base import TokenConstraint
from models.engines.lm_head import F32, LmHead
from models.errors import InputError

_NUMBERS = count(1)
DEFAULT_CHUNK = 256
"""Tokens per prefill run: the longest the engine computes before it asks whether to yield or stop."""


def _never() -> bool:
    return False


def _no_boundary() -> None:
    return None


class KvCache:
    """Keys and values of every layer, (1, kv_heads, capacity, head_dim) float32, bound as past and present at once."""

    def __init__(self, buffers: dict[str, ort.OrtValue], capacity: int) -> None:
        self.buffers = buffers
        self.capacity = capacity

    @classmethod
    def allocate(cls, layers: int, kv_heads: int, head_dim: int, capacity: int) -> KvCache:
        shape = (1, kv_heads, capacity, head_dim)
        names = [f"{part}.{layer}" for layer in range(layers) for part in ("key", "value")]
        return cls({name: ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32)) for name in names}, capacity)

    @property
    def size_bytes(self) -> int:
        return sum(value.tensor_size_in_bytes() for value in self.buffers.values())

    def bind(self, binding: ort.IOBinding) -> None:
        """Past and present share one buffer: the graph writes new rows in place and copies nothing."""
        for name, value in self.buffers.items():
            binding.bind_ortvalue_input(f"past_{name}", value)
            binding.bind_ortvalue_output(f"present_{name}", value)


class LmSession:
    """Greedy generation over one KV cache. Not thread-safe: one stage owns it.

    Invariant: the cache holds keys and values of the first `cached` of `tokens`; rewinding only lowers that number.

    name: unique in the process. draft_tokens: how many tokens to draft ahead of each verified step.
    """

    def __init__(self, body: ort.InferenceSession, head: LmHead, cache: KvCache, stop_ids: frozenset[int]) -> None:
        self.name = f"text-{next(_NUMBERS)}"
        self.draft_tokens = 0
        self._body = body
        self._head = head
        self.cache = cache
        self._stop_ids = stop_ids
        self._binding = body.io_binding()
        cache.bind(self._binding)
        self._length = np.zeros(1, np.int32)
        self._last = np.zeros(1, np.int32)
        width = body.get_outputs()[0].shape[1]
        self._row = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, width), np.float32))
        self._binding.bind_cpu_input("total_len", self._length)
        self._binding.bind_cpu_input("seqlens_k", self._last)
        self._tokens: list[int] = []
        self._cached = 0
        self._hidden: F32 | None = None

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
        return self.cache.capacity

    @property
    def kv_bytes(self) -> int:
        """Memory of the whole cache."""
        return self.cache.size_bytes

    def forget(self) -> None:
        """Drop what is cached: the text stays and is computed anew when it is next needed."""
        self._cached, self._hidden = 0, None

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
            self._cached = min(reused, len(wanted) - 1)
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
    ) -> Iterator[int]:
        """Yield the best next token again and again, until a stop id (not yielded), `max_new_tokens`, a complete
        constraint, a full cache or `cancelled`. Every token yielded is part of `tokens` already.

        Tokens a constraint forces are appended without a decision each and computed together in one run.
        `at_boundary` is called before every run of the model and may block: that is where a task yields.
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
            self._flush(DEFAULT_CHUNK, cancelled, at_boundary)
            if self._hidden is None:
                return
            allowed = None if constraint is None else constraint.allowed()
            token = self._head.best(self._hidden, allowed)
            if constraint is not None:
                constraint.advance(token)
            if token in self._stop_ids:
                return
            self._hidden = None
            self._tokens.append(token)
            room -= 1
            yield token

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
            rows = hidden
            if len(candidate) > 1:
                rows = np.concatenate([hidden, self._run(list(candidate[:-1]), every_row=True)])
            totals.append(float(self._head.log_probabilities(rows, np.asarray(candidate, np.int64)).sum()))
            self._cached = kept
        return totals

    def hidden(self) -> F32:
        """Hidden state (1, hidden) of the last token: what `LmHead` takes. Raises InputError for an empty text."""
        self._check(self._tokens)
        self._flush(DEFAULT_CHUNK, _never, _no_boundary)
        assert self._hidden is not None
        return self._hidden

    def hidden_rows(self, tokens: Sequence[int]) -> F32:
        """Make the text `tokens` from nothing and return every position's hidden state (n, hidden): measuring only."""
        wanted = list(tokens)
        self._check(wanted)
        self._tokens, self._cached, self._hidden = wanted, 0, None
        rows = self._run(wanted, every_row=True)
        self._hidden = rows[-1:]
        return rows

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

    def _run(self, tokens: list[int], *, every_row: bool) -> F32:
        """One run of the body over `tokens` placed after the cached ones. Returns hidden (R, hidden)."""
        count = len(tokens)
        self._length[0] = self._cached + count
        self._last[0] = self._cached + count - 1
        ids = np.array([tokens], np.int64)
        rows = np.arange(count) if every_row else np.array([count - 1])
        self._binding.bind_cpu_input("input_ids", ids)
        self._binding.bind_cpu_input("rows", rows)
        single = len(rows) == 1
        if single:  # into a buffer of its own: listing a binding's outputs wraps every layer's cache anew
            self._binding.bind_ortvalue_output("hidden", self._row)
        else:
            self._binding.bind_output("hidden", "cpu")
        self._body.run_with_iobinding(self._binding)
        self._cached += count
        hidden: F32 = self._row.numpy().copy() if single else self._binding.get_outputs()[-1].numpy()
        return hidden
