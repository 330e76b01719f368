"""The importance gate of a KV cache: of what lies before a recent window, only a share of the keys and values is kept.

Rows leave in blocks, each once: when `BLOCK` further tokens lie before the window, the `keep_ratio` of them with the
highest score stay, by each layer and head for itself, and the rows after them move up. Every layer and head keeps the
same number, since the operator takes one length for all. A key was rotated to its position when it was computed, so it
may lie at any row; tokens that come later are rotated to their true positions (models.engines.llm.kv.position_input).

Pinned, never dropped: the text's first turn, which holds the instructions and the tools, at least `SINKS` tokens, and
whatever is stored once for several texts; at the end the last `RECENT` tokens, and the turns that began within
`LAST_TURNS` tokens.
"""

from __future__ import annotations

from collections.abc import Callable, Collection, Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

from models.errors import InputError

Planes = NDArray[np.float32]
"""Keys or values, (layers, kv_heads, tokens, head_dim)."""
Scores = NDArray[np.float32]
"""(layers, kv_heads, tokens): more is kept."""

BLOCK = 256
RECENT = 256
SINKS = 4
LAST_TURNS = 512
RUN_TOKENS = 256
"""Most tokens of one run: so many rows may be there before the next block goes."""
TURNS_PINNED = 2


# --- scores --------------------------------------------------------------------------------------------------------
def key_norm(keys: Planes, values: Planes) -> Scores:
    """Small keys are kept: they get much attention (Devoto et al. 2024, https://arxiv.org/abs/2406.11430)."""
    scores: Scores = -np.linalg.norm(keys, axis=-1)
    return scores


def key_difference(keys: Planes, values: Planes) -> Scores:
    """Keys that point elsewhere than their mean are kept (KeyDiff, Park et al. 2025, https://arxiv.org/abs/2504.15364)."""
    unit = keys / np.maximum(np.linalg.norm(keys, axis=-1, keepdims=True), 1e-12)
    mean = unit.mean(axis=2, keepdims=True)
    mean /= np.maximum(np.linalg.norm(mean, axis=-1, keepdims=True), 1e-12)
    scores: Scores = -(unit * mean).sum(axis=-1)
    return scores


def value_norm(keys: Planes, values: Planes) -> Scores:
    """Large values are kept: they change most where they are attended to."""
    scores: Scores = np.linalg.norm(values, axis=-1)
    return scores


SCORES: dict[str, Callable[[Planes, Planes], Scores]] = {
    "key_difference": key_difference,
    "key_norm": key_norm,
    "value_norm": value_norm,
}
DEFAULT_SCORE = "key_difference"
"""As good as value norm and better than key norm where they were measured: docs/results/kv-gate-cpu.md."""


# --- the policy ----------------------------------------------------------------------------------------------------
@dataclass(frozen=True, slots=True)
class KvGate:
    """keep_ratio: share of what is not pinned that stays. score: a name of `SCORES`. block, recent, last_turns: tokens,
    see above. Raises InputError.
    """

    keep_ratio: float
    score: str = DEFAULT_SCORE
    block: int = BLOCK
    recent: int = RECENT
    last_turns: int = LAST_TURNS

    def __post_init__(self) -> None:
        if not 0 < self.keep_ratio <= 1:
            raise InputError(f"kv_keep_ratio {self.keep_ratio} is outside 0..1")
        if self.score not in SCORES:
            raise InputError(f"no score is called {self.score!r}; known: {', '.join(SCORES)}")

    @property
    def kept_of_block(self) -> int:
        """Rows that stay of `block`."""
        return max(1, round(self.block * self.keep_ratio))

    def choose(self, rows: NDArray[np.float32]) -> NDArray[np.int64]:
        """rows: a block, (2 x layers, kv_heads, block, head_dim): a layer's keys, then its values. Returns the places
        that stay, ascending, (2 x layers, kv_heads, kept).
        """
        scores = SCORES[self.score](rows[0::2], rows[1::2])
        best = np.argpartition(-scores, self.kept_of_block - 1, axis=-1)[..., : self.kept_of_block]
        return np.repeat(np.sort(best, axis=-1), 2, axis=0)


class TextGate:
    """What was dropped of one text: positions from `start` up to `stop` are held by `dropped` rows fewer."""

    __slots__ = ("dropped", "policy", "start", "stop")

    def __init__(self, policy: KvGate) -> None:
        self.policy = policy
        self.start = self.stop = self.dropped = 0

    @property
    def span(self) -> GatedSpan | None:
        """As it is now; None while nothing was dropped."""
        return GatedSpan(self.start, self.stop, self.dropped) if self.dropped else None

    def take(self, span: GatedSpan | None) -> None:
        """The cache holds `span` from now on."""
        self.start, self.stop, self.dropped = (0, 0, 0) if span is None else (span.start, span.stop, span.dropped)

    def due(self, tokens: Sequence[int], cached: int, shown: int, stop_ids: Collection[int]) -> bool:
        """Whether a block may go now; if it is the text's first, its pinned beginning is settled.

        cached: of `tokens`, how many have rows. shown: how many of these are stored with other texts.
        """
        if cached - self.stop < self.policy.block + self.policy.recent:
            return False
        if not self.dropped:
            self.start = self.stop = max(first_turn(tokens[:cached], stop_ids), shown)
        end = min(cached - self.policy.recent, last_turns(tokens[:cached], stop_ids, self.policy.last_turns))
        return end - self.stop >= self.policy.block

    def most_rows(self, tokens: int) -> int:
        """Rows at most while the text grows to `tokens`: until its first block is gone nothing is known to go."""
        if not self.dropped:
            return tokens
        blocks = (tokens - self.stop - self.policy.last_turns - RUN_TOKENS) // self.policy.block - 1
        return tokens - self.dropped - max(0, blocks) * (self.policy.block - self.policy.kept_of_block)

    def dropped_block(self) -> None:
        """The block after `stop` was compacted."""
        self.stop += self.policy.block
        self.dropped += self.policy.block - self.policy.kept_of_block


@dataclass(frozen=True, slots=True)
class GatedSpan:
    """Positions from `start` up to `stop` have `dropped` rows fewer than tokens; those before are all there."""

    start: int
    stop: int
    dropped: int

    def usable(self, count: int) -> int:
        """Of a cache that is cut after `count` tokens, how many are of use: rows of a part of the span are not."""
        return count if count >= self.stop else min(count, self.start)


def rows_of(span: GatedSpan | None, position: int) -> int:
    """The row of a position outside the span, which is also the number of rows before it."""
    return position if span is None or position < span.stop else position - span.dropped


def first_turn(tokens: Sequence[int], stop_ids: Collection[int]) -> int:
    """Tokens of the text's first turn: the instructions, with the tools."""
    end = next((at + 1 for at, token in enumerate(tokens) if token in stop_ids), 0)
    return max(end, min(SINKS, len(tokens)))


def last_turns(tokens: Sequence[int], stop_ids: Collection[int], within: int) -> int:
    """Where the last turns begin that are kept whole: as many of `TURNS_PINNED` as began `within` so many tokens."""
    begin, seen = len(tokens), 0
    for at in range(len(tokens) - 1, max(0, len(tokens) - within) - 1, -1):
        if tokens[at] in stop_ids:
            begin, seen = at + 1, seen + 1
            if seen > TURNS_PINNED:
                break
    return begin
