"""Examples of the parser as arrays, and batches of them. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
IGNORED = -1
"""A label that does not count."""


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled sentence of T positions; K queries, H heads, R reasons. All int64; IGNORED counts nothing.

    pieces (T, P), words (T,), sizes (T,), tags (T, n), last (2,): see pipeline/nlu/parser/features.py.
    chosen (K, H): the class of each head. options (K, n): 0 or 1, or IGNORED. points (K, 3): positions of the number,
    of a text's first and last position. what (2,): first and last position of what is missing.
    """

    pieces: IntArray
    words: IntArray
    sizes: IntArray
    tags: IntArray
    last: IntArray
    reason: int
    chosen: IntArray
    options: IntArray
    points: IntArray
    what: IntArray

    @property
    def length(self) -> int:
        return len(self.words)


@dataclass(frozen=True, slots=True)
class Batch:
    """B examples, padded to the longest. real: (B, T) bool."""

    pieces: IntArray
    words: IntArray
    sizes: IntArray
    tags: IntArray
    last: IntArray
    real: NDArray[np.bool_]
    reason: IntArray
    chosen: IntArray
    options: IntArray
    points: IntArray
    what: IntArray


def batch_of(examples: Sequence[Example]) -> Batch:
    """Pad and stack."""
    longest = max(example.length for example in examples)

    def padded(values: IntArray) -> IntArray:
        room = [(0, longest - len(values))] + [(0, 0)] * (values.ndim - 1)
        return np.pad(values, room)

    return Batch(
        pieces=np.stack([padded(example.pieces) for example in examples]),
        words=np.stack([padded(example.words) for example in examples]),
        sizes=np.stack([padded(example.sizes) for example in examples]),
        tags=np.stack([padded(example.tags) for example in examples]),
        last=np.stack([example.last for example in examples]),
        real=np.arange(longest)[None] < np.array([example.length for example in examples])[:, None],
        reason=np.array([example.reason for example in examples], np.int64),
        chosen=np.stack([example.chosen for example in examples]),
        options=np.stack([example.options for example in examples]),
        points=np.stack([example.points for example in examples]),
        what=np.stack([example.what for example in examples]),
    )


def batches(lengths: Sequence[int], size: int, rng: np.random.Generator) -> list[IntArray]:
    """Indices of one epoch's batches: shuffled, sentences of like length together, so that little is padding."""
    order = rng.permutation(len(lengths))
    pool = 50 * size
    found = []
    for low in range(0, len(order), pool):
        part = order[low : low + pool]
        part = part[np.argsort(np.asarray(lengths)[part], kind="stable")]
        found += [part[i : i + size] for i in range(0, len(part), size)]
    return [found[i] for i in rng.permutation(len(found))]


def masked(batch: Batch, rng: np.random.Generator, *, words: float, tags: float, unknown: int) -> Batch:
    """The batch with a share `words` of its positions unread and a share `tags` of its sentences without hints: what a
    misheard word and a phrase that the lexicon lacks look like. unknown: the vocabulary's id of no word.
    """
    hidden = (rng.random(batch.words.shape) < words) & (batch.sizes == 0)
    pieces = batch.pieces.copy()
    pieces[hidden] = 0
    pieces[hidden, 0] = unknown
    covering = np.where(hidden | (rng.random(batch.words.shape) < words), 0, batch.words)
    blind = rng.random(len(batch.words)) < tags
    untold = blind[:, None] | hidden | (rng.random(batch.words.shape) < tags)
    hints = np.where(untold[:, :, None], 0, batch.tags)
    return Batch(
        pieces,
        covering,
        batch.sizes,
        hints,
        batch.last,
        batch.real,
        batch.reason,
        batch.chosen,
        batch.options,
        batch.points,
        batch.what,
    )
