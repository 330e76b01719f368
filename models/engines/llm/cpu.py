"""The decoder on the CPU: one session for all texts, one arena with a slot for each."""

from __future__ import annotations

from collections.abc import Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.engines.llm.cpu_arena import CpuArena, SharedStatus
from models.engines.llm.head import F32, LmHead
from models.engines.llm.hybrid.states import Snapshot
from models.engines.llm.kv.gate import KvGate, TextGate, rows_of
from models.engines.llm.kv.position_input import POSITIONS, with_positions
from models.engines.llm.session import Body, Rows, Step
from models.engines.llm.shared_rows import SharedBeginning
from models.engines.placement import CpuPlacement
from models.engines.preemption import run as preemptible
from models.errors import InputError

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

    def __init__(
        self, session: ort.InferenceSession, head: LmHead, arena: CpuArena, gate: KvGate | None = None
    ) -> None:
        self.head = head
        self.arena = arena
        self.gate = gate
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
        gate: KvGate | None = None,
    ) -> CpuLm:
        """cache_shape: (slots, kv_heads, capacity, head_dim) of one layer's keys; `block` of the slots are for
        `open_bodies`. gate: what is dropped of every text. Raises DeviceUnavailable, and what `with_positions` does.
        """
        place = CpuPlacement(threads, spin_us=spin_us)
        head = LmHead(place.open(model_dir / "head.onnx").inner)
        arena = CpuArena.reserve(layers, cache_shape, block)
        body = model_dir / "model.onnx"
        opened = place.open(body) if gate is None else place.open(body, changed=with_positions(body))
        return cls(opened.inner, head, arena, gate)

    @property
    def token_bytes(self) -> int:
        return self.arena.token_bytes

    @property
    def shared(self) -> SharedStatus | None:
        return self.arena.shared_status()

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
            rows = [0 if step is None else _rows_before(step.body, step.position) for step in whole]
            before = np.array(rows, np.int32)
            wanted = [slot - first for slot in range(first, last + 1) if slot in at]
            out[[at[first + row] for row in wanted]] = self.run(first, ids, before, np.array(wanted), positions)
        return out

    def run(
        self,
        first: int,
        ids: NDArray[np.int64],
        before: NDArray[np.int32],
        rows: NDArray[np.int64],
        positions: NDArray[np.int32] | None = None,
    ) -> F32:
        """Compute ids (B, T) of the B texts in the slots from `first` on, each after so many rows, `before` (B,).
        positions (B,): of their first tokens, where rows were dropped; None: as many. Returns the hidden states of
        `rows` of the B x T, counted text by text.
        """
        texts, count = ids.shape
        for slot, row in enumerate(before.tolist(), first):
            self.arena.own(slot, row)
        binding = self._bindings.get((first, texts))
        if binding is None:
            binding = self._bindings[first, texts] = self._session.io_binding()
            self.arena.bind(binding, first, texts)
        last = before + np.int32(count - 1)
        if self.gate is not None:
            at = (before if positions is None else positions)[:, None].astype(np.int64) + np.arange(count)
            binding.bind_cpu_input(POSITIONS, at)
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
        mine, theirs = _rows_before(one, counts[0]), _rows_before(other, counts[1])
        shown = one.shared(mine)
        rows = one.read_rows(mine, shown.rows)
        one.copy_rows(other, 0, theirs)
        other.write_rows(rows, other.show(shown, 0, mine))
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


def _rows_before(body: Body, position: int) -> int:
    assert isinstance(body, CpuBody)
    return body.rows_before(position)


class CpuBody:
    """One text's body; see models.engines.llm.session.Body. Hidden states are float32 (R, hidden) arrays.

    gate: what was dropped of the text; None where nothing ever is. `run` takes positions, other methods count rows.
    """

    def __init__(self, lm: CpuLm, slot: int) -> None:
        self.slot = slot
        self.capacity = lm.arena.capacity
        self.kv_bytes = lm.arena.token_bytes * self.capacity
        self.gate = None if lm.gate is None else TextGate(lm.gate)
        self._lm = lm

    @property
    def rows(self) -> NDArray[np.float32]:
        """The keys and values, (2 x layers, kv_heads, rows, head_dim): a view."""
        return self._lm.arena.of(self.slot)

    def run(self, tokens: list[int], position: int, *, every_row: bool) -> F32:
        count = len(tokens)
        rows = np.arange(count) if every_row else np.array([count - 1])
        before = np.array([self.rows_before(position)], np.int32)
        return self._lm.run(self.slot, np.array([tokens], np.int64), before, rows, np.array([position], np.int32))

    def rows_before(self, position: int) -> int:
        """Rows of the cache before that of `position`."""
        return position if self.gate is None else rows_of(self.gate.span, position)

    def drop_block(self, cached: int) -> None:
        """Drop what the gate does of the block after its span; `cached` tokens have rows."""
        assert self.gate is not None
        begin, end = self.rows_before(self.gate.stop), self.rows_before(cached)
        span = range(begin, begin + self.gate.policy.block)
        kept = self.gate.policy.choose(self.rows[:, :, span.start : span.stop])
        self._lm.arena.compact(self.slot, span, end, kept)
        self.gate.dropped_block()

    def bytes_for(self, tokens: int) -> int:
        return self.kv_bytes // self.capacity * tokens

    def copy_rows(self, other: Body, start: int, count: int) -> None:
        """See Body. Pages that `other` shares are shown here too; the rest is one memory copy per layer and head, for
        which Python lets go of its lock.
        """
        if not isinstance(other, CpuBody) or other._lm is not self._lm:
            raise InputError("keys and values can only be copied between texts of one model on one device")
        stop = start + count
        start = self.show(other.shared(stop), start, stop)
        self._lm.arena.own(self.slot, start)
        self.rows[:, :, start:stop] = other.rows[:, :, start:stop]

    def shareable(self, count: int) -> int:
        return self._lm.arena.shareable(count)

    def share(self, count: int) -> int:
        return self._lm.arena.share(self.slot, count)

    def shared(self, count: int) -> SharedBeginning:
        return self._lm.arena.shown(self.slot).clipped(count)

    def show(self, beginning: SharedBeginning, start: int, stop: int) -> int:
        return self._lm.arena.show(self.slot, beginning, start, stop)

    def read_rows(self, count: int, start: int = 0) -> Rows:
        return self.rows[:, :, start:count].copy()

    def write_rows(self, rows: Rows, start: int) -> None:
        self._lm.arena.own(self.slot, start)
        self.rows[:, :, start : start + rows.shape[2]] = rows

    def resumable(self, count: int) -> int:
        return count

    def snapshots(self, count: int) -> tuple[Snapshot, ...]:
        return ()

    def take_snapshots(self, snapshots: tuple[Snapshot, ...]) -> None:
        """Nothing: keys and values are all there is."""

    def drop_rows(self) -> None:
        self._lm.arena.give_back(self.slot)

    def close(self) -> None:
        self.drop_rows()
        self._lm.arena.slots.give_back(self.slot)
