"""The decoder in the lanes of one device: weights, caches and everything between token ids stay in its memory.

One set of weights and one arena of caches serve every lane. Generating one token writes 16 bytes, replays two graphs
that were captured for that text's slot, and reads back 8 bytes. Verifying drafted tokens works the same way, and
so does a token of several texts: their run covers 2, 4 or 8 slots beside each other. Where the lane has a decoder of
its own for the model (models.engines.llm.steps), that computes single tokens, of any slots, and the graphs the rest.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.engines.llm.head import F32, Ids
from models.engines.llm.hybrid.states import Snapshot
from models.engines.llm.memory import ID_BYTES, LOGIT_ROWS, KvArena, Scratch, Sizes, padded_rows
from models.engines.llm.session import Body, Rows, Step
from models.engines.llm.shared_rows import NOTHING_SHARED, SharedBeginning
from models.engines.llm.steps import DecodesSteps, StepDecoder, StepModel, StepRow
from models.engines.placement import Buffer, GraphSession, Placement, dtype_of
from models.errors import InputError

STEPS_TO_CAPTURE = 4
LOGIT_BYTES = 4


@dataclass(frozen=True, slots=True)
class DeviceHidden:
    """Hidden states in device memory. graph_id: of the captured head that reads exactly these rows; -1: none.

    wanted: which of the rows are asked for, in order; None: all.
    """

    rows: Buffer
    graph_id: int
    wanted: tuple[int, ...] | None = None


@dataclass(frozen=True, slots=True)
class DecodedRows:
    """Hidden states of several texts that a step decoder computed, each in its slot's row."""

    parts: tuple[DeviceHidden, ...]


@dataclass(frozen=True, slots=True)
class LaneGraphs:
    """The graphs opened in one lane. weights: what they read, kept for as long as they are."""

    placement: Placement
    weights: Mapping[str, ort.OrtValue]
    body: GraphSession
    head: GraphSession
    choose: GraphSession
    score: GraphSession

    @classmethod
    def open(cls, model_dir: Path, placement: Placement, weights: Mapping[str, ort.OrtValue]) -> LaneGraphs:
        return cls(
            placement,
            weights,
            placement.open(model_dir / "model.onnx", weights=weights, capture=True),
            placement.open(model_dir / "head.onnx", weights=weights, capture=True),
            placement.open(model_dir / "choose.onnx"),
            placement.open(model_dir / "score.onnx"),
        )


class DeviceLm:
    """Body and head in one lane or several of a device. See models.engines.llm.causal_lm.Runtime."""

    def __init__(
        self, lanes: Mapping[str, LaneGraphs], sizes: Sizes, arena: KvArena, scratch: Scratch, bodies: list[DeviceBody]
    ) -> None:
        self.sizes = sizes
        self.arena = arena
        self.scratch = scratch
        self.head = DeviceHead(self)
        self.lanes = tuple(lanes)
        self.lane_name = self.lanes[0]
        self._lanes = lanes
        self._bodies = bodies
        self.decoders: dict[str, StepDecoder] = {}
        self.decoder = "onnxruntime"
        self.fresh: DeviceHidden | DecodedRows | None = None
        """What the decoder computed last, while its logits and best tokens are still in `scratch`."""
        self._batches: dict[tuple[str, int, int], ort.IOBinding] = {}
        self._total = np.full(1, padded_rows(sizes.capacity), np.int32)

    @classmethod
    def load(
        cls,
        model_dir: Path,
        placements: Mapping[str, Placement],
        sizes: Sizes,
        architecture: str = "",
        rms_epsilon: float | None = None,
    ) -> DeviceLm:
        """Weights are loaded once, through the first placement. Raises ModelMissing (also for kernels that are not
        compiled) and DeviceUnavailable.
        """
        first = next(iter(placements.values()))
        weights = first.load_weights(model_dir)
        lanes = {name: LaneGraphs.open(model_dir, placement, weights) for name, placement in placements.items()}
        kind = dtype_of(next(iter(lanes.values())).body.inner.get_outputs()[0])
        arena = KvArena.allocate(first, sizes, kind)
        loaded = cls(lanes, sizes, arena, Scratch.allocate(first, sizes, kind), [])
        slots = sizes.slots + sizes.block
        hidden = first.allocate((slots, sizes.hidden), kind)
        width = sizes.hidden * kind.itemsize
        loaded._bodies += [
            DeviceBody(loaded, slot, hidden.part(slot * width, (1, sizes.hidden))) for slot in range(slots)
        ]
        scratch = loaded.scratch
        model = StepModel(architecture, rms_epsilon, sizes, weights, arena.layers, hidden, scratch.logits, scratch.best)
        loaded._open_decoders(placements, model)
        loaded.wait()
        return loaded

    def _open_decoders(self, placements: Mapping[str, Placement], model: StepModel) -> None:
        """A decoder in every lane, or in none."""
        for name, placement in placements.items():
            if not isinstance(placement, DecodesSteps):
                return
            made = placement.step_decoder(model)
            if isinstance(made, str):
                self.decoder = f"onnxruntime: {made}"
                return
            self.decoders[name] = made
        self.decoder = "kernels"

    @property
    def lane(self) -> LaneGraphs:
        """Where the next run goes."""
        return self._lanes[self.lane_name]

    def use(self, lane: str) -> None:
        """Let the next runs go to `lane`, after what still runs in the present one. Raises KeyError."""
        if lane not in self._lanes:
            raise KeyError(f"no lane {lane!r} here; lanes: {', '.join(self.lanes)}")
        if lane != self.lane_name:
            self.wait()
            self.lane_name = lane

    def wait(self) -> None:
        """Until the present lane is idle."""
        self.lane.placement.read(self.scratch.position)

    shared = None

    @property
    def token_bytes(self) -> int:
        return self.arena.slot_bytes // self.sizes.capacity

    def open_body(self) -> DeviceBody:
        """The body of a free slot. Raises InputError when every slot is taken."""
        return self._bodies[self.arena.slots.take()]

    def open_bodies(self) -> list[DeviceBody]:
        return [self._bodies[slot] for slot in self.arena.slots.take_block()]

    def graph_id(self, slot: int, count: int, every_row: bool) -> int:
        """The captured graph of a run of `count` tokens of that slot; -1 where there is none."""
        if slot >= self.sizes.captured:
            return -1
        if not every_row:
            return slot if count == 1 else -1
        if count - 1 not in self.sizes.drafts:
            return -1
        return self.sizes.captured * (1 + self.sizes.drafts.index(count - 1)) + slot

    def _decode(self, rows: Sequence[StepRow], hidden: DeviceHidden | DecodedRows) -> None:
        """Queue one token of each text; the logits and best tokens are known with them."""
        self.decoders[self.lane_name].step(rows)
        self.fresh = hidden

    def _row_graph(self, slot: int) -> int:
        """The captured head over the row of that slot; -1 where there is none."""
        return slot if slot < self.sizes.captured else -1

    def step(self, steps: Sequence[Step], others: Sequence[Step]) -> DeviceHidden | DecodedRows:
        """See Runtime. One run of the decoder, or one over the smallest aligned stretch of slots that holds all."""
        if len(steps) == 1:
            only = steps[0]
            return only.body.run([only.token], only.position, every_row=False)  # type: ignore[no-any-return]
        decoder = self.decoders.get(self.lane_name)
        if decoder is not None and len(steps) <= decoder.texts:
            parts = tuple(
                DeviceHidden(self._bodies[step.body.slot].row, self._row_graph(step.body.slot)) for step in steps
            )
            decoded = DecodedRows(parts)
            self._decode([(step.token, step.position, step.body.slot) for step in steps], decoded)
            return decoded
        slots = [step.body.slot for step in steps]
        first, texts = self._stretch(min(slots), max(slots))
        known = {step.body.slot: step for step in (*others, *steps)}
        whole = [known.get(slot) for slot in range(first, first + texts)]
        ids = np.array([0 if step is None else step.token for step in whole], np.int64)
        positions = np.array([0 if step is None else step.position for step in whole], np.int32)
        return DeviceHidden(self._run(first, ids, positions), self._head_graph(texts), tuple(s - first for s in slots))

    def _stretch(self, lowest: int, highest: int) -> tuple[int, int]:
        """First slot and number of the smallest captured run over both slots."""
        start = self.sizes.slots
        for texts in self.sizes.sizes:
            first = start + (lowest - start) // texts * texts
            if first >= start and highest < first + texts <= start + self.sizes.block:
                return first, texts
        raise ValueError(f"slots {lowest} and {highest} share no run of up to {self.sizes.width} texts")

    def _run(self, first: int, ids: Ids, positions: NDArray[np.int32]) -> Buffer:
        """Queue the captured run of one token for each slot from `first` on. Returns where its rows will be."""
        texts, scratch = len(ids), self.scratch
        feed = np.concatenate([positions.view(np.int64), ids])
        self.lane.placement.write(scratch.first(scratch.batch_feed, len(feed)), feed)
        rows = scratch.first(scratch.batch_hidden, texts)
        key = self.lane_name, first, texts
        binding = self._batches.get(key)
        if binding is None:
            binding = self._batches[key] = self.lane.body.binding()
            self.arena.bind(binding, first, texts)
            scratch.batch_feed.part(0, (texts,), np.dtype(np.int32)).bind_input(binding, "seqlens_k")
            scratch.batch_feed.part(texts // 2 * ID_BYTES, (texts, 1)).bind_input(binding, "input_ids")
            scratch.first(scratch.places, texts).bind_input(binding, "rows")
            rows.bind_output(binding, "hidden")
            binding.bind_cpu_input("total_len", self._total)  # see DeviceBody._fixed
        if self.lane.placement.device == "cpu":
            self._total[0] = positions.max() + 1
        index = self.sizes.sizes.index(texts)
        graph_id = self._batch_graphs + index * self.sizes.block + first - self.sizes.slots
        self.lane.body.run(binding, graph_id=graph_id)
        return rows

    @property
    def _batch_graphs(self) -> int:
        """The first graph id of runs over several texts: after those of single slots."""
        return self.sizes.captured * (1 + len(self.sizes.drafts))

    def _head_graph(self, texts: int) -> int:
        """The head's graph over the rows of such a run: one for each number of texts, they lie where all runs' do."""
        return self._batch_graphs + self.sizes.sizes.index(texts)

    def swap(self, one: Body, other: Body, counts: tuple[int, int]) -> None:
        """See Runtime. What the longer text has beyond the shorter one is copied once, the rest by way of the host."""
        assert isinstance(one, DeviceBody)
        assert isinstance(other, DeviceBody)
        rows = one.read_rows(counts[0])
        one.copy_rows(other, 0, counts[1])
        other.write_rows(rows, 0)
        one.trade_places(other)

    def capture(self) -> None:
        """Run every slot's steps, one token and drafts, and every run over several texts, in every lane until they are
        captured. It overwrites what the slots hold.
        """
        present = self.lane_name
        for name in self.lanes:
            self.use(name)
            for body in self._bodies[: self.sizes.captured]:
                for drafted in (0, *self.sizes.drafts):
                    for _ in range(STEPS_TO_CAPTURE):
                        hidden = body.run([0] * (1 + drafted), 0, every_row=drafted > 0)
                        self.fresh = None  # the head's graph is captured too: it serves the rows of prompts
                        self.head.best_rows(hidden)
            for texts in self.sizes.sizes if name not in self.decoders else ():
                for first in range(0, self.sizes.width, texts):
                    self._capture_batch(self.sizes.slots + first, texts)
        self.use(present)

    def _capture_batch(self, first: int, texts: int) -> None:
        if first + texts > self.sizes.slots + self.sizes.block:
            return
        for _ in range(STEPS_TO_CAPTURE):
            rows = self._run(first, np.zeros(texts, np.int64), np.zeros(texts, np.int32))
            self.head.best_rows(DeviceHidden(rows, self._head_graph(texts)))


class DeviceBody:
    """The body of the text in one slot. `row`: its last token's hidden state. See models.engines.llm.session.Body."""

    def __init__(self, lm: DeviceLm, slot: int, row: Buffer) -> None:
        self.capacity = lm.sizes.capacity
        self.kv_bytes = lm.arena.slot_bytes
        self.slot = slot
        self.row = row
        self._lm = lm
        self._captured: dict[tuple[str, int], ort.IOBinding] = {}
        self._loose: dict[str, ort.IOBinding] = {}
        self._total = np.zeros(1, np.int32)
        self._capacity = np.full(1, lm.sizes.capacity, np.int32)

    def trade_places(self, other: DeviceBody) -> None:
        """Take each other's slot with all that was captured for it."""
        for name in ("slot", "row", "_captured", "_loose"):
            mine = getattr(self, name)
            setattr(self, name, getattr(other, name))
            setattr(other, name, mine)
        bodies = self._lm._bodies
        bodies[self.slot], bodies[other.slot] = self, other

    def run(self, tokens: list[int], position: int, *, every_row: bool) -> DeviceHidden:
        """See Body. What is captured is queued only, and who reads the head's answer waits for both. Other runs are
        finished on return: who asks between chunks whether to yield leaves nothing behind.
        """
        lm, count = self._lm, len(tokens)
        if count == 1 and not every_row and lm.lane_name in lm.decoders:
            hidden = DeviceHidden(self.row, lm._row_graph(self.slot))
            lm._decode([(tokens[0], position, self.slot)], hidden)
            return hidden
        last = position + count - 1
        self._total[0] = last + 1
        lm.lane.placement.write(lm.scratch.first(lm.scratch.feed, 1 + count), np.array([last, *tokens], np.int64))
        rows = lm.scratch.first(lm.scratch.hidden, count) if every_row else self.row
        graph_id = lm.graph_id(self.slot, count, every_row)
        if graph_id >= 0:
            key = lm.lane_name, graph_id
            if key not in self._captured:
                self._captured[key] = self._fixed(count, rows)
            lm.lane.body.run(self._captured[key], graph_id=graph_id)
            # Rows of drafts lie in memory that all slots share, and so does the graph of the head that reads them.
            return DeviceHidden(rows, graph_id - self.slot if every_row else self.slot)
        lm.lane.body.run(self._variable(count, rows, every_row))
        lm.wait()
        return DeviceHidden(rows, -1 if every_row or self.slot >= lm.sizes.captured else self.slot)

    def bytes_for(self, tokens: int) -> int:
        """A slot is held whole."""
        return self.kv_bytes

    def copy_rows(self, other: Body, start: int, count: int) -> None:
        """See Body. Within device memory, finished on return."""
        if not isinstance(other, DeviceBody) or other._lm is not self._lm:
            raise InputError("keys and values can only be copied between texts of one model on one device")
        arena, copy = self._lm.arena, self._lm.lane.placement.copy
        pairs = zip(arena.heads(other.slot, start, count), arena.heads(self.slot, start, count), strict=True)
        for source, target in pairs:
            copy(source, target)
        self._lm.wait()

    def shareable(self, count: int) -> int:
        """Nothing: a GPU maps memory in pieces of 2 MiB, and a head's rows of a beginning are mostly less."""
        return 0

    def share(self, count: int) -> int:
        return 0

    def shared(self, count: int) -> SharedBeginning:
        return NOTHING_SHARED

    def show(self, beginning: SharedBeginning, start: int, stop: int) -> int:
        return start

    def read_rows(self, count: int, start: int = 0) -> Rows:
        sizes, read = self._lm.sizes, self._lm.lane.placement.read
        heads = [read(buffer) for buffer in self._lm.arena.heads(self.slot, start, count - start)]
        return np.stack(heads).reshape(2 * sizes.layers, sizes.kv_heads, count - start, sizes.head_dim)

    def write_rows(self, rows: Rows, start: int) -> None:
        count = rows.shape[2]
        write, heads = self._lm.lane.placement.write, self._lm.arena.heads(self.slot, start, count)
        parts = rows.reshape(len(heads), count, -1)
        for buffer, values in zip(heads, parts, strict=True):
            write(buffer, values)
        self._lm.wait()

    def resumable(self, count: int) -> int:
        return count

    def snapshots(self, count: int) -> tuple[Snapshot, ...]:
        return ()

    def take_snapshots(self, snapshots: tuple[Snapshot, ...]) -> None:
        """Nothing: keys and values are all there is."""

    def drop_rows(self) -> None:
        """Nothing: the arena keeps its memory."""

    def close(self) -> None:
        self._lm.arena.slots.give_back(self.slot)

    def _fixed(self, count: int, rows: Buffer) -> ort.IOBinding:
        """The binding that the captured run of this shape always has.

        A captured graph keeps the value of total_len, a host input. On a GPU it only sizes the work, and how far
        attention reads is up to seqlens_k; the CPU's kernel goes by it.
        """
        binding = self._bound()
        on_cpu = self._lm.lane.placement.device == "cpu"
        binding.bind_cpu_input("total_len", self._total if on_cpu else self._capacity)
        self._bind_rows(binding, count, 0, count, rows)
        return binding

    def _variable(self, count: int, rows: Buffer, every_row: bool) -> ort.IOBinding:
        """The present lane's binding for shapes that change."""
        binding = self._loose.get(self._lm.lane_name)
        if binding is None:
            binding = self._loose[self._lm.lane_name] = self._bound()
            binding.bind_cpu_input("total_len", self._total)
        if every_row:
            self._bind_rows(binding, count, 0, count, rows)
        else:
            self._bind_rows(binding, count, count - 1, 1, rows)
        return binding

    def _bound(self) -> ort.IOBinding:
        """A binding that lacks total_len, the ids, which rows to return, and where."""
        binding = self._lm.lane.body.binding()
        self._lm.arena.bind(binding, self.slot, 1)
        self._lm.scratch.position.bind_input(binding, "seqlens_k")
        return binding

    def _bind_rows(self, binding: ort.IOBinding, count: int, first: int, wanted: int, rows: Buffer) -> None:
        """`count` ids; `wanted` rows from the one at `first` on go to `rows`."""
        scratch = self._lm.scratch
        scratch.ids(count).bind_input(binding, "input_ids")
        scratch.places.part(first * ID_BYTES, (wanted,)).bind_input(binding, "rows")
        rows.bind_output(binding, "hidden")


class DeviceHead:
    """The head, `choose` and `score` on hidden states of any slot. See models.engines.llm.session.Head."""

    def __init__(self, lm: DeviceLm) -> None:
        self._lm = lm
        self._captured: dict[tuple[str, int], ort.IOBinding] = {}
        self._loose: dict[tuple[str, str], ort.IOBinding] = {}

    def best(self, hidden: DeviceHidden, allowed: Ids | None = None) -> int:
        lane, scratch, rows = self._lm.lane, self._lm.scratch, hidden.rows.shape[0]
        if hidden is self._lm.fresh:
            pass
        elif rows == 1:
            self._run_all(hidden)
        else:
            self._run(hidden.rows, rows - 1, 1)
        if allowed is None:
            return int(lane.placement.read(scratch.first(scratch.best, 1))[0, 0])
        return self._choose(0, allowed)

    def _choose(self, row: int, allowed: Ids) -> int:
        """The best of `allowed` in one row of the logits that the head wrote last."""
        lane, scratch = self._lm.lane, self._lm.scratch
        ids = scratch.first(scratch.allowed, allowed.size)
        lane.placement.write(ids, allowed)
        binding = self._binding("choose", lane.choose)
        ids.bind_input(binding, "allowed")
        logits = scratch.logits.part(row * self._lm.sizes.vocab * LOGIT_BYTES, (1, self._lm.sizes.vocab))
        logits.bind_input(binding, "logits")
        scratch.chosen.bind_output(binding, "id")
        lane.choose.run(binding)
        return int(lane.placement.read(scratch.chosen)[0])

    def best_each(self, hidden: DeviceHidden | DecodedRows, allowed: Sequence[Ids | None]) -> list[int]:
        if isinstance(hidden, DecodedRows):
            if hidden is not self._lm.fresh:
                return [self.best(part, ids) for part, ids in zip(hidden.parts, allowed, strict=True)]
            rows, wanted = len(hidden.parts), tuple(range(len(hidden.parts)))
        elif hidden.wanted is None:
            return [self.best(hidden, ids) for ids in allowed]
        else:
            self._run_all(hidden)
            rows, wanted = hidden.rows.shape[0], hidden.wanted
        lane, scratch = self._lm.lane, self._lm.scratch
        best = lane.placement.read(scratch.first(scratch.best, rows))[:, 0]
        places = zip(wanted, allowed, strict=True)
        return [int(best[row]) if ids is None else self._choose(row, ids) for row, ids in places]

    def row(self, hidden: DeviceHidden | DecodedRows, index: int) -> DeviceHidden:
        if isinstance(hidden, DecodedRows):
            return hidden.parts[index]
        place = index if hidden.wanted is None else hidden.wanted[index]
        width = self._lm.sizes.hidden
        part = hidden.rows.part(place * width * hidden.rows.dtype.itemsize, (1, width))
        return DeviceHidden(part, hidden.graph_id if hidden.rows.shape[0] == 1 else -1)

    def best_rows(self, hidden: DeviceHidden) -> Ids:
        read, scratch = self._lm.lane.placement.read, self._lm.scratch
        if hidden is self._lm.fresh or hidden.graph_id >= 0:
            if hidden is not self._lm.fresh:
                self._run_all(hidden)
            return read(scratch.first(scratch.best, hidden.rows.shape[0]))[:, 0]
        out = []
        for start, count in _slices(hidden.rows.shape[0]):
            self._run(hidden.rows, start, count)
            out.append(read(scratch.first(scratch.best, count))[:, 0])
        return np.concatenate(out)

    def log_probabilities(self, parts: Sequence[DeviceHidden], targets: Ids) -> F32:
        out, done = [], 0
        for hidden in parts:
            for start, count in _slices(hidden.rows.shape[0]):
                self._run(hidden.rows, start, count)
                out.append(self._scores(targets[done : done + count]))
                done += count
        return np.concatenate(out)

    def logits(self, hidden: DeviceHidden) -> F32:
        read, scratch = self._lm.lane.placement.read, self._lm.scratch
        out = []
        for start, count in _slices(hidden.rows.shape[0]):
            self._run(hidden.rows, start, count)
            out.append(read(scratch.first(scratch.logits, count)))
        return np.concatenate(out)

    def _scores(self, targets: Ids) -> F32:
        """Log-probabilities of one target for each of the first rows of the logits."""
        lane, scratch, count = self._lm.lane, self._lm.scratch, targets.size
        ids, out = scratch.first(scratch.targets, count), scratch.first(scratch.log_probabilities, count)
        lane.placement.write(ids, targets)
        binding = self._binding("score", lane.score)
        ids.bind_input(binding, "targets")
        scratch.first(scratch.logits, count).bind_input(binding, "logits")
        out.bind_output(binding, "log_probabilities")
        lane.score.run(binding)
        return lane.placement.read(out)

    def _run_all(self, hidden: DeviceHidden) -> None:
        """The head over all of a few rows, captured where their graph is."""
        self._lm.fresh = None
        if hidden.graph_id < 0:
            self._run(hidden.rows, 0, hidden.rows.shape[0])
            return
        key = self._lm.lane_name, hidden.graph_id
        if key not in self._captured:
            self._captured[key] = self._lm.lane.head.binding()
            self._bind(self._captured[key], hidden.rows)
        self._lm.lane.head.run(self._captured[key], graph_id=hidden.graph_id)

    def _run(self, rows: Buffer, start: int, count: int) -> None:
        """The head over `count` rows from row `start`, not captured."""
        self._lm.fresh = None
        lane, width = self._lm.lane, self._lm.sizes.hidden
        binding = self._binding("head", lane.head)
        part = rows.part(start * width * rows.dtype.itemsize, (count, width))
        self._bind(binding, part)
        lane.head.run(binding)

    def _bind(self, binding: ort.IOBinding, rows: Buffer) -> None:
        count, scratch = rows.shape[0], self._lm.scratch
        rows.bind_input(binding, "hidden")
        scratch.first(scratch.logits, count).bind_output(binding, "logits")
        scratch.first(scratch.best, count).bind_output(binding, "best")

    def _binding(self, graph: str, session: GraphSession) -> ort.IOBinding:
        """The one binding of the present lane for runs of `graph` whose shapes change."""
        key = self._lm.lane_name, graph
        if key not in self._loose:
            self._loose[key] = session.binding()
        return self._loose[key]


def _slices(rows: int) -> list[tuple[int, int]]:
    """(start, count) of runs over at most LOGIT_ROWS rows each."""
    return [(start, min(LOGIT_ROWS, rows - start)) for start in range(0, rows, LOGIT_ROWS)]
