"""The decoder on the CPU: one session for all texts, one arena with a slot for each."""

from __future__ import annotations

import mmap
from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.engines.llm.head import F32, LmHead
from models.engines.llm.memory import Slots, padded_rows
from models.engines.llm.session import Body, Rows, Step
from models.engines.placement import CpuPlacement
from models.engines.preemption import run as preemptible
from models.errors import DeviceUnavailable, InputError

_MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Python names it since 3.13; the number is Linux's on x86 and ARM."""
_WIDEST_GAP = 1
"""Slots between two texts that are computed for nothing rather than starting a run of their own: on two cores a row of
a run costs 12 ms with the default model, and a further run 20 ms.
"""
SPIN_US = 20
"""How long a thread spins for its next part of a run: the graph has many short operators. With ONNX Runtime's own
limit, about a millisecond, a token takes twice as long where other threads want the cores, because who spins holds back
the very thread it waits for; on free cores it is no faster (docs/results/spinning-cpu.md).
"""


class CpuLm:
    """Body and head on the CPU. See models.engines.llm.causal_lm.Runtime."""

    lanes: tuple[str, ...] = ()
    decoder = "onnxruntime"

    def __init__(self, session: ort.InferenceSession, head: LmHead, arena: CpuArena) -> None:
        self.head = head
        self.arena = arena
        self._session = session
        self._width = session.get_outputs()[0].shape[1]
        self._bindings: dict[tuple[int, int], ort.IOBinding] = {}

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        threads: int,
        layers: int,
        cache_shape: tuple[int, int, int, int],
        block: int = 0,
        spin_us: int = SPIN_US,
    ) -> CpuLm:
        """cache_shape: (slots, kv_heads, capacity, head_dim) of one layer's keys; `block` of the slots are for
        `open_bodies`. Raises DeviceUnavailable.
        """
        place = CpuPlacement(threads, spin_us=spin_us)
        head = LmHead(place.open(model_dir / "head.onnx").inner)
        arena = CpuArena.reserve(layers, cache_shape, block)
        return cls(place.open(model_dir / "model.onnx").inner, head, arena)

    @property
    def token_bytes(self) -> int:
        return self.arena.token_bytes

    def open_body(self) -> CpuBody:
        return CpuBody(self, self.arena.slots.take())

    def open_bodies(self) -> list[CpuBody]:
        return [CpuBody(self, slot) for slot in self.arena.slots.take_block()]

    def use(self, lane: str) -> None:
        raise KeyError(lane)

    def capture(self) -> None:
        """Nothing: device graphs are a device's."""

    def step(self, steps: Sequence[Step], others: Sequence[Step]) -> F32:
        """See Runtime. Texts in slots beside each other share a run."""
        at = {step.body.slot: index for index, step in enumerate(steps)}
        known = {step.body.slot: step for step in (*others, *steps)}
        out = np.empty((len(steps), self._width), np.float32)
        for first, last in _ranges(sorted(at)):
            whole = [known.get(slot) for slot in range(first, last + 1)]
            ids = np.array([[0 if step is None else step.token] for step in whole], np.int64)
            positions = np.array([0 if step is None else step.position for step in whole], np.int32)
            wanted = [slot - first for slot in range(first, last + 1) if slot in at]
            out[[at[first + row] for row in wanted]] = self.run(first, ids, positions, np.array(wanted))
        return out

    def run(self, first: int, ids: NDArray[np.int64], positions: NDArray[np.int32], rows: NDArray[np.int64]) -> F32:
        """Compute ids (B, T) of the B texts in the slots from `first` on, each after its positions (B,). Returns the
        hidden states of `rows` of the B x T, counted text by text.
        """
        texts, count = ids.shape
        binding = self._bindings.get((first, texts))
        if binding is None:
            binding = self._bindings[first, texts] = self._session.io_binding()
            self.arena.bind(binding, first, texts)
        last = positions + np.int32(count - 1)
        binding.bind_cpu_input("input_ids", ids)
        binding.bind_cpu_input("rows", rows)
        binding.bind_cpu_input("seqlens_k", last)
        binding.bind_cpu_input("total_len", np.array([last.max() + 1], np.int32))
        hidden = np.empty((len(rows), self._width), np.float32)
        binding.bind_output("hidden", "cpu", 0, np.float32, hidden.shape, hidden.ctypes.data)
        preemptible(lambda options: self._session.run_with_iobinding(binding, options))
        return hidden

    def swap(self, one: Body, other: Body, counts: tuple[int, int]) -> None:
        """See Runtime."""
        assert isinstance(one, CpuBody)
        assert isinstance(other, CpuBody)
        rows = one.read_rows(counts[0])
        one.copy_rows(other, 0, counts[1])
        other.write_rows(rows, 0, counts[0])
        one.slot, other.slot = other.slot, one.slot


def _ranges(slots: Sequence[int]) -> list[tuple[int, int]]:
    """First and last of each stretch of ascending `slots` that one run computes."""
    out = [(slots[0], slots[0])]
    for slot in slots[1:]:
        first, last = out[-1]
        if slot - last - 1 <= _WIDEST_GAP:
            out[-1] = first, slot
        else:
            out.append((slot, slot))
    return out


class CpuArena:
    """Keys and values of every text, float32, in one piece of address space whose pages come as they are written.

    rows: (2 x layers, slots, kv_heads, rows, head_dim); a layer's keys, then its values. Slots have one size and begin
    at pages of their own, so nothing can fragment; pages that no run has written take no memory, so a text costs what
    its tokens need and not what the context allows.
    """

    def __init__(self, memory: mmap.mmap, rows: NDArray[np.float32], capacity: int, block: int) -> None:
        self.rows = rows
        self.capacity = capacity
        self.slots = Slots(rows.shape[1], block)
        self._memory = memory

    @classmethod
    def reserve(cls, layers: int, shape: tuple[int, int, int, int], block: int = 0) -> CpuArena:
        """shape: (slots, kv_heads, capacity, head_dim) of a layer's keys. Raises DeviceUnavailable when the system
        does not give the address space.
        """
        slots, kv_heads, capacity, head_dim = shape
        whole = (2 * layers, slots, kv_heads, padded_rows(capacity), head_dim)
        size_bytes = int(np.prod(whole, dtype=np.int64)) * 4
        try:
            memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | _MAP_NORESERVE)
        except OSError as error:
            raise DeviceUnavailable(
                f"{size_bytes >> 20} MiB of address space for {slots} texts of {capacity} tokens: {error}; "
                "lower llm.context_tokens or api.sessions, or set vm.overcommit_memory to 0"
            ) from error
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page would be touched whole for each head's first row
        return cls(memory, np.frombuffer(memory, np.float32).reshape(whole), capacity, block)

    @property
    def token_bytes(self) -> int:
        """Keys and values of one token."""
        layers2, _, kv_heads, _, head_dim = self.rows.shape
        return int(layers2 * kv_heads * head_dim) * 4

    def of(self, slot: int) -> NDArray[np.float32]:
        """One text's keys and values, (2 x layers, kv_heads, rows, head_dim)."""
        return self.rows[:, slot]

    def give_back(self, slot: int) -> None:
        """Return the slot's pages to the system; what was cached is lost."""
        size = self.rows[0, slot].nbytes
        for layer in range(self.rows.shape[0]):
            start = (layer * self.rows.shape[1] + slot) * size
            self._memory.madvise(mmap.MADV_DONTNEED, start, size)

    def bind(self, binding: ort.IOBinding, first: int, texts: int) -> None:
        """Past and present share one buffer: the graph writes new rows in place and copies nothing."""
        for index, layer in enumerate(self.rows):
            part = layer[first : first + texts]
            name = f"{'value' if index % 2 else 'key'}.{index // 2}"
            binding.bind_input(f"past_{name}", "cpu", 0, np.float32, part.shape, part.ctypes.data)
            binding.bind_output(f"present_{name}", "cpu", 0, np.float32, part.shape, part.ctypes.data)


class CpuBody:
    """One text's body; see models.engines.llm.session.Body. Hidden states are float32 (R, hidden) arrays."""

    def __init__(self, lm: CpuLm, slot: int) -> None:
        self.slot = slot
        self.capacity = lm.arena.capacity
        self.kv_bytes = lm.arena.token_bytes * self.capacity
        self._lm = lm

    @property
    def rows(self) -> NDArray[np.float32]:
        """The keys and values, (2 x layers, kv_heads, rows, head_dim): a view."""
        return self._lm.arena.of(self.slot)

    def run(self, tokens: list[int], position: int, *, every_row: bool) -> F32:
        count = len(tokens)
        rows = np.arange(count) if every_row else np.array([count - 1])
        return self._lm.run(self.slot, np.array([tokens], np.int64), np.array([position], np.int32), rows)

    def bytes_for(self, tokens: int) -> int:
        return self.kv_bytes // self.capacity * tokens

    def copy_rows(self, other: Body, start: int, count: int) -> None:
        """See Body. One memory copy per layer and head, for which Python lets go of its lock."""
        if not isinstance(other, CpuBody) or other._lm is not self._lm:
            raise InputError("keys and values can only be copied between texts of one model on one device")
        part = slice(start, start + count)
        self.rows[:, :, part] = other.rows[:, :, part]

    def read_rows(self, count: int) -> Rows:
        return self.rows[:, :, :count].copy()

    def write_rows(self, rows: Rows, start: int, count: int) -> None:
        part = slice(start, start + count)
        self.rows[:, :, part] = rows[:, :, part]

    def drop_rows(self) -> None:
        self._lm.arena.give_back(self.slot)

    def close(self) -> None:
        self.drop_rows()
        self._lm.arena.slots.give_back(self.slot)
