"""Device memory of a language model beside its weights: one arena of KV caches, and the buffers that runs share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from models.engines.placement import Buffer, Placement
from models.errors import InputError

ALIGN_BYTES = 256
LOGIT_ROWS = 32
"""Rows whose logits exist at once: 19 MB of them with a vocabulary of 151,936."""
ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the memory is sized by. capacity: tokens per text; slots: texts.

    drafts: how many drafted tokens a run may verify from a captured graph; other numbers run without one.
    """

    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    capacity: int
    slots: int
    drafts: tuple[int, ...] = ()


class KvArena:
    """The caches of all texts in one allocation, so that many texts leave no holes. Slots are taken and given back."""

    def __init__(self, slots: tuple[dict[str, Buffer], ...], slot_bytes: int) -> None:
        self.slot_bytes = slot_bytes
        self._slots = slots
        self._free = set(range(len(slots)))

    @classmethod
    def allocate(cls, placement: Placement, sizes: Sizes, dtype: np.dtype[np.generic]) -> KvArena:
        """Every slot has (1, kv_heads, capacity, head_dim) per layer for keys and for values, each aligned."""
        shape = (1, sizes.kv_heads, sizes.capacity, sizes.head_dim)
        names = [f"{part}.{layer}" for layer in range(sizes.layers) for part in ("key", "value")]
        one = _aligned(int(np.prod(shape)) * dtype.itemsize)
        whole = placement.allocate((one * len(names) * sizes.slots + ALIGN_BYTES,), np.uint8)
        start = -whole.address % ALIGN_BYTES
        slots = tuple(
            {
                name: whole.part(start + (slot * len(names) + i) * one, shape, np.dtype(dtype))
                for i, name in enumerate(names)
            }
            for slot in range(sizes.slots)
        )
        return cls(slots, one * len(names))

    @property
    def free(self) -> int:
        """Slots that are not taken."""
        return len(self._free)

    def take(self) -> int:
        """The first free slot. Raises InputError when there is none."""
        if not self._free:
            raise InputError(
                f"all {len(self._slots)} texts of this model are open; close one, or load the model with more slots"
            )
        slot = min(self._free)
        self._free.remove(slot)
        return slot

    def give_back(self, slot: int) -> None:
        self._free.add(slot)

    def heads(self, slot: int, start: int, count: int) -> list[Buffer]:
        """`count` positions from `start` on of every head, (count, head_dim) each, in the order of `Rows`."""
        out = []
        for buffer in self._slots[slot].values():
            _, kv_heads, capacity, head_dim = buffer.shape
            row = head_dim * buffer.dtype.itemsize
            out += [buffer.part((head * capacity + start) * row, (count, head_dim)) for head in range(kv_heads)]
        return out

    def bind(self, slot: int, binding: ort.IOBinding) -> None:
        """Past and present share one buffer: the graph writes new rows in place and copies nothing."""
        for name, buffer in self._slots[slot].items():
            buffer.bind_input(binding, f"past_{name}")
            buffer.bind_output(binding, f"present_{name}")


@dataclass(frozen=True, slots=True)
class Scratch:
    """What every run shares, since one lane runs at a time.

    feed: int64 (1 + capacity,): the position of the last token, then the ids. places: 0, 1, 2, ... int64. The others
    are named as in the graphs.
    """

    feed: Buffer
    places: Buffer
    hidden: Buffer
    logits: Buffer
    best: Buffer
    allowed: Buffer
    chosen: Buffer
    targets: Buffer
    log_probabilities: Buffer

    @classmethod
    def allocate(cls, placement: Placement, sizes: Sizes, dtype: np.dtype[np.generic]) -> Scratch:
        scratch = cls(
            feed=placement.allocate((1 + sizes.capacity,), np.int64),
            places=placement.allocate((sizes.capacity,), np.int64),
            hidden=placement.allocate((sizes.capacity, sizes.hidden), dtype),
            logits=placement.allocate((LOGIT_ROWS, sizes.vocab), np.float32),
            best=placement.allocate((LOGIT_ROWS, 1), np.int64),
            allowed=placement.allocate((sizes.vocab,), np.int64),
            chosen=placement.allocate((1,), np.int64),
            targets=placement.allocate((LOGIT_ROWS,), np.int64),
            log_probabilities=placement.allocate((LOGIT_ROWS,), np.float32),
        )
        placement.write(scratch.places, np.arange(sizes.capacity, dtype=np.int64))
        return scratch

    @property
    def position(self) -> Buffer:
        """The position within `feed`, int32 (1,): the low half of its first element."""
        return self.feed.part(0, (1,), np.dtype(np.int32))

    def ids(self, count: int) -> Buffer:
        """The first `count` ids within `feed`, (1, count)."""
        return self.feed.part(ID_BYTES, (1, count))

    def first(self, buffer: Buffer, count: int) -> Buffer:
        """The first `count` rows of one of these buffers."""
        return buffer.part(0, (count, *buffer.shape[1:]))


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
