"""Device memory of a language model beside its weights: one arena of KV caches, and the buffers that runs share."""

from __future__ import annotations

from dataclasses import dataclass

import numpy as np
import onnxruntime as ort

from models.engines.placement import Buffer, Placement
from models.errors import InputError

ALIGN_BYTES = 256
ROW_GROUP = 16
"""Rows of a head that fill whole pages: 16 x 64 x 4 bytes are one."""
LOGIT_ROWS = 32
"""Rows whose logits exist at once: 19 MB of them with a vocabulary of 151,936."""
ID_BYTES = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the memory is sized by. capacity: tokens per text; slots: texts.

    drafts: how many drafted tokens a run may verify from a captured graph; other numbers run without one.
    block: further slots, for texts that are computed together. width: how many of these, from the first on, have
    captured graphs and may share a run; a power of two.
    """

    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    capacity: int
    slots: int
    drafts: tuple[int, ...] = ()
    block: int = 0
    width: int = 1

    @property
    def sizes(self) -> tuple[int, ...]:
        """How many texts a captured run has: powers of two from 2 up to the width."""
        return tuple(1 << power for power in range(1, self.width.bit_length()))

    @property
    def captured(self) -> int:
        """Slots whose single steps are captured, from the first on."""
        return self.slots + min(self.block, self.width)


class Slots:
    """Which slots of an arena are free: `block` of them at the end, taken as one, the others one by one."""

    def __init__(self, count: int, block: int = 0) -> None:
        self._single = count - block
        self._block = block
        self._free = set(range(count))

    @property
    def free(self) -> int:
        """Slots that are taken one by one and are not."""
        return sum(slot < self._single for slot in self._free)

    def take(self) -> int:
        """The first free slot outside the block. Raises InputError when there is none."""
        free = [slot for slot in self._free if slot < self._single]
        if not free:
            raise InputError(
                f"all {self._single} texts of this model are open; close one, or load the model with more slots"
            )
        self._free.remove(min(free))
        return min(free)

    def take_block(self) -> range:
        """The block, free or empty. Raises InputError when it is taken."""
        block = range(self._single, self._single + self._block)
        if not self._free.issuperset(block):
            raise InputError("the block of slots for texts that are computed together is taken; one batch may have it")
        self._free.difference_update(block)
        return block

    def give_back(self, slot: int) -> None:
        self._free.add(slot)


class KvArena:
    """The caches of all texts in one allocation, so that many texts leave no holes: (slots, kv_heads, rows, head_dim)
    per layer for keys and for values.
    """

    def __init__(self, layers: dict[str, Buffer], capacity: int, block: int) -> None:
        self.slots = Slots(next(iter(layers.values())).shape[0], block)
        self.slot_bytes = sum(_one_slot(buffer, capacity) for buffer in layers.values())
        self._layers = layers

    @classmethod
    def allocate(cls, placement: Placement, sizes: Sizes, dtype: np.dtype[np.generic]) -> KvArena:
        shape = (sizes.slots + sizes.block, sizes.kv_heads, padded_rows(sizes.capacity), sizes.head_dim)
        names = [f"{part}.{layer}" for layer in range(sizes.layers) for part in ("key", "value")]
        one = _aligned(int(np.prod(shape, dtype=np.int64)) * dtype.itemsize)
        whole = placement.allocate((one * len(names) + ALIGN_BYTES,), np.uint8)
        start = -whole.address % ALIGN_BYTES
        layers = {name: whole.part(start + i * one, shape, np.dtype(dtype)) for i, name in enumerate(names)}
        return cls(layers, sizes.capacity, sizes.block)

    @property
    def layers(self) -> dict[str, Buffer]:
        """ "key.0", "value.0", ...: every slot's rows."""
        return self._layers

    def heads(self, slot: int, start: int, count: int) -> list[Buffer]:
        """`count` positions from `start` on of every head, (count, head_dim) each, in the order of `Rows`."""
        out = []
        for buffer in self._layers.values():
            _, kv_heads, rows, head_dim = buffer.shape
            row, heads = head_dim * buffer.dtype.itemsize, range(slot * kv_heads, (slot + 1) * kv_heads)
            out += [buffer.part((head * rows + start) * row, (count, head_dim)) for head in heads]
        return out

    def bind(self, binding: ort.IOBinding, first: int, texts: int) -> None:
        """The slots of `texts` texts. Past and present share one buffer: the graph writes new rows in place and copies
        nothing.
        """
        for name, whole in self._layers.items():
            shape = (texts, *whole.shape[1:])
            buffer = whole.part(first * (whole.size_bytes // whole.shape[0]), shape)
            buffer.bind_input(binding, f"past_{name}")
            buffer.bind_output(binding, f"present_{name}")


def padded_rows(capacity: int) -> int:
    """Rows of a slot: a slot then fills whole pages, and a run over texts beside each other has a place after the last
    token of a full one.
    """
    return -(-(capacity + 1) // ROW_GROUP) * ROW_GROUP


def _one_slot(buffer: Buffer, capacity: int) -> int:
    """Bytes of the rows that a text can use."""
    _, kv_heads, _, head_dim = buffer.shape
    return kv_heads * capacity * head_dim * buffer.dtype.itemsize


@dataclass(frozen=True, slots=True)
class Scratch:
    """What every run shares, since one lane runs at a time.

    feed: int64 (1 + capacity,): the position of the last token, then the ids. batch_feed: the same for one token of
    several texts, int64 (width / 2 + width,): int32 positions, then the ids. batch_hidden: their rows. places: 0, 1,
    2, ... int64. The others are named as in the graphs.
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
    batch_feed: Buffer
    batch_hidden: Buffer

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
            batch_feed=placement.allocate((sizes.width // 2 + 1 + sizes.width,), np.int64),
            batch_hidden=placement.allocate((sizes.width, sizes.hidden), dtype),
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
