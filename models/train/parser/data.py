"""Examples of the parser as arrays, one by one and packed. No torch here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass, fields

import numpy as np
from numpy.typing import NDArray

IntArray = NDArray[np.int64]
IGNORED = -1
"""A label that does not count."""


@dataclass(frozen=True, slots=True)
class Example:
    """One labelled sentence of T positions and S pieces; K queries, H heads, R reasons. int64 but for `cover`; IGNORED
    counts nothing.

    ids (S,), cover (T, S), shares (T,), sizes (T,), tags (T, n), last (2,): see pipeline/nlu/parser/features.py.
    chosen (K, H): the class of each head. options (K, n): 0 or 1, or IGNORED. points (K, 3): positions of the number,
    of a text's first and last position. what (2,): first and last position of what is missing.
    """

    ids: IntArray
    cover: NDArray[np.float32]
    shares: IntArray
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
        return len(self.shares)


@dataclass(frozen=True, slots=True)
class Packed:
    """N examples side by side, padded with 0 to the longest (labels with IGNORED), in the smallest integers.

    ids (N, S), low and high (N, T): the pieces [low, high) that lie on a position; all else as in Example, N rows.
    length, pieces (N,): how many positions and pieces are real.
    """

    ids: NDArray[np.int32]
    low: NDArray[np.int8]
    high: NDArray[np.int8]
    shares: NDArray[np.int8]
    sizes: NDArray[np.int8]
    tags: NDArray[np.int16]
    last: NDArray[np.int16]
    reason: NDArray[np.int8]
    chosen: NDArray[np.int16]
    options: NDArray[np.int8]
    points: NDArray[np.int8]
    what: NDArray[np.int8]
    length: NDArray[np.int16]
    pieces: NDArray[np.int16]

    @classmethod
    def of(cls, examples: Sequence[Example]) -> Packed:
        """Pack. The pieces on a position stand side by side: ValueError where they do not."""
        count = len(examples)
        length = np.array([example.length for example in examples], np.int16)
        pieces = np.array([len(example.ids) for example in examples], np.int16)
        longest, most = int(length.max()), int(pieces.max())
        by_position = {name: np.zeros((count, longest), np.int8) for name in ("low", "high", "shares", "sizes")}
        ids, tags = np.zeros((count, most), np.int32), np.zeros((count, longest, examples[0].tags.shape[1]), np.int16)
        for row, example in enumerate(examples):
            on = example.cover > 0
            low = on.argmax(1)
            high = low + on.sum(1)
            if not _side_by_side(on, low, high):
                raise ValueError(f"pieces of one position lie apart: {example.ids}")
            ids[row, : pieces[row]] = example.ids
            tags[row, : length[row]] = example.tags
            for name, values in (("low", low), ("high", high), ("shares", example.shares), ("sizes", example.sizes)):
                by_position[name][row, : length[row]] = values
        return cls(
            ids=ids,
            tags=tags,
            last=np.stack([example.last for example in examples]).astype(np.int16),
            reason=np.array([example.reason for example in examples], np.int8),
            chosen=np.stack([example.chosen for example in examples]).astype(np.int16),
            options=np.stack([example.options for example in examples]).astype(np.int8),
            points=np.stack([example.points for example in examples]).astype(np.int8),
            what=np.stack([example.what for example in examples]).astype(np.int8),
            length=length,
            pieces=pieces,
            **by_position,
        )

    def __len__(self) -> int:
        return len(self.reason)

    def part(self, rows: slice) -> Packed:
        """Some of the rows, without a copy."""
        return Packed(**{each.name: getattr(self, each.name)[rows] for each in fields(self)})


def _side_by_side(on: NDArray[np.bool_], low: IntArray, high: IntArray) -> bool:
    places = np.arange(on.shape[1])
    return bool((on == ((places >= low[:, None]) & (places < high[:, None]))).all())


def batches(lengths: NDArray[np.int16], size: int, rng: np.random.Generator) -> list[IntArray]:
    """Indices of one epoch's batches: shuffled, sentences of like length together, so that little is padding."""
    order = rng.permutation(len(lengths))
    pool = 50 * size
    found = []
    for low in range(0, len(order), pool):
        part = order[low : low + pool]
        part = part[np.argsort(lengths[part], kind="stable")]
        found += [part[i : i + size] for i in range(0, len(part), size)]
    return [found[i] for i in rng.permutation(len(found))]
