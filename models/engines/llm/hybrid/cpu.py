"""Hybrids on the CPU: keys and values in the arena as ever, and each text's recurrent states beside them."""

from __future__ import annotations

from pathlib import Path
from weakref import WeakValueDictionary

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.engines.llm.cpu import SPIN_US, CpuBody, CpuLm
from models.engines.llm.cpu_arena import CpuArena
from models.engines.llm.head import F32, LmHead
from models.engines.llm.hybrid.states import MARKED, RECENT, Snapshot, TextStates, Values
from models.engines.llm.session import Body, Rows
from models.engines.llm.shared_rows import NOTHING_SHARED, SharedBeginning
from models.engines.placement import CpuPlacement
from models.engines.preemption import run as preemptible


class HybridCpuLm(CpuLm):
    """See CpuLm. state_shapes: of one text's states by name."""

    def __init__(
        self, session: ort.InferenceSession, head: LmHead, arena: CpuArena, state_shapes: dict[str, tuple[int, ...]]
    ) -> None:
        super().__init__(session, head, arena)
        self.state_shapes = state_shapes
        self._bodies: WeakValueDictionary[int, HybridBody] = WeakValueDictionary()

    @classmethod
    def load_hybrid(
        cls,
        model_dir: Path,
        *,
        threads: int,
        layers: int,
        cache_shape: tuple[int, int, int, int],
        block: int,
        state_layers: int,
        state_shapes: dict[str, list[int]],
    ) -> HybridCpuLm:
        """As `CpuLm.load`. state_shapes: of each of `state_layers` layers, by the state's name."""
        place = CpuPlacement(threads, spin_us=SPIN_US)
        head = LmHead(place.open(model_dir / "head.onnx").inner)
        arena = CpuArena.reserve(layers, cache_shape, block)
        shapes = {f"{n}.{i}": tuple(shape) for i in range(state_layers) for n, shape in state_shapes.items()}
        return cls(place.open(model_dir / "model.onnx").inner, head, arena, shapes)

    def open_body(self) -> HybridBody:
        return self._known(HybridBody(self, self.arena.slots.take()))

    def open_bodies(self) -> list[CpuBody]:
        return [self._known(HybridBody(self, slot)) for slot in self.arena.slots.take_block()]

    def _known(self, body: HybridBody) -> HybridBody:
        self._bodies[body.slot] = body
        return body

    def run(
        self,
        first: int,
        ids: NDArray[np.int64],
        before: NDArray[np.int32],
        rows: NDArray[np.int64],
        positions: NDArray[np.int32] | None = None,
    ) -> F32:
        """As CpuLm.run. Only texts that `rows` asks for move on: what is computed in slots between changes no state.
        positions: as `before`, since no rows are dropped here.
        """
        texts, count = ids.shape
        bodies = [self._bodies.get(first + text) for text in range(texts)]
        taking_part = {int(row) // count for row in rows}
        for text in taking_part:
            body = bodies[text]
            assert body is not None
            body.states.go_to(int(before[text]))
        for slot, position in enumerate(before.tolist(), first):
            self.arena.own(slot, position)
        binding = self._session.io_binding()
        self.arena.bind(binding, first, texts)
        last = before + np.int32(count - 1)
        total = np.array([last.max() + 1], np.int32)
        for name, values in (("input_ids", ids), ("rows", rows), ("seqlens_k", last), ("total_len", total)):
            binding.bind_cpu_input(name, values)
        past = self._stacked([body if text in taking_part else None for text, body in enumerate(bodies)])
        after = {name: np.empty_like(values) for name, values in past.items()}
        for name, states in past.items():
            binding.bind_cpu_input(f"past_{name}", states)
            out = after[name]
            binding.bind_output(f"present_{name}", "cpu", 0, np.float32, out.shape, out.ctypes.data)
        hidden = np.empty((len(rows), self._width), np.float32)
        binding.bind_output("hidden", "cpu", 0, np.float32, hidden.shape, hidden.ctypes.data)
        preemptible(lambda options: self._session.run_with_iobinding(binding, options))
        for text in taking_part:
            body = bodies[text]
            assert body is not None
            own = after if texts == 1 else {name: out[text : text + 1].copy() for name, out in after.items()}
            body.states.advance(own, count)
        return hidden

    def _stacked(self, bodies: list[HybridBody | None]) -> Values:
        """The states of texts beside each other; of a text that takes no part, nothing."""
        only = bodies[0]
        if len(bodies) == 1 and only is not None:
            return only.states.values
        out = {name: np.zeros((len(bodies), *shape), np.float32) for name, shape in self.state_shapes.items()}
        for text, body in enumerate(bodies):
            if body is not None:
                for name, values in body.states.values.items():
                    out[name][text] = values[0]
        return out

    def swap(self, one: Body, other: Body, counts: tuple[int, int]) -> None:
        """See Runtime. States belong to the text, not to its slot."""
        assert isinstance(one, HybridBody)
        assert isinstance(other, HybridBody)
        kept = one.states, other.states
        one.states, other.states = TextStates(self.state_shapes), TextStates(self.state_shapes)
        try:
            super().swap(one, other, counts)
        finally:
            one.states, other.states = kept
        self._bodies[one.slot], self._bodies[other.slot] = one, other


class HybridBody(CpuBody):
    """One text's body; see models.engines.llm.session.Body. Beginnings are copied with their states, not shared."""

    def __init__(self, lm: HybridCpuLm, slot: int) -> None:
        super().__init__(lm, slot)
        self.states = TextStates(lm.state_shapes)
        self._all_states = self.states.state_bytes * (1 + RECENT + MARKED)
        self.kv_bytes += self._all_states

    def bytes_for(self, tokens: int) -> int:
        return (self.kv_bytes - self._all_states) // self.capacity * tokens + self._all_states

    def resumable(self, count: int) -> int:
        return self.states.resumable(count)

    def run(self, tokens: list[int], position: int, *, every_row: bool) -> F32:
        """A snapshot is taken before a run that returns every row (guesses and candidates are taken back) and after a
        prompt's.
        """
        self.states.go_to(position)
        if every_row:
            self.states.remember()
        hidden = super().run(tokens, position, every_row=every_row)
        if len(tokens) > 1 and not every_row:
            self.states.remember()
        return hidden

    def copy_rows(self, other: Body, start: int, count: int) -> None:
        super().copy_rows(other, start, count)
        self.states.go_to(self.states.resumable(start))
        if isinstance(other, HybridBody):
            self.states.take(other.states.snapshots(start + count))

    def write_rows(self, rows: Rows, start: int) -> None:
        super().write_rows(rows, start)
        self.states.go_to(self.states.resumable(start))

    def shareable(self, count: int) -> int:
        return 0

    def share(self, count: int) -> int:
        """Marks a boundary: the state there is kept. Nothing is stored for other texts."""
        self.states.mark(count)
        return 0

    def shared(self, count: int) -> SharedBeginning:
        return NOTHING_SHARED

    def snapshots(self, count: int) -> tuple[Snapshot, ...]:
        return self.states.snapshots(count)

    def take_snapshots(self, snapshots: tuple[Snapshot, ...]) -> None:
        self.states.take(snapshots)

    def drop_rows(self) -> None:
        super().drop_rows()
        self.states.forget()
