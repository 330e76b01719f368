"""The decoder in the lanes of one device: weights, caches and everything between token ids stay in its memory.

One set of weights and one arena of caches serve every lane. Generating one token writes 16 bytes, replays two graphs
that were captured for that text's slot, and reads back 8 bytes.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort

from models.engines.lm_head import F32, Ids
from models.engines.placement import Buffer, Placement, Session, dtype_of
from models.errors import InputError

ALIGN_BYTES = 256
LOGIT_ROWS = 32
"""Rows whose logits exist at once: 19 MB of them with a vocabulary of 151,936."""
STEPS_TO_CAPTURE = 4
IDS_BYTES = 8


@dataclass(frozen=True, slots=True)
class Sizes:
    """What the memory is sized by. capacity: tokens per text; slots: texts."""

    layers: int
    kv_heads: int
    head_dim: int
    hidden: int
    vocab: int
    capacity: int
    slots: int


@dataclass(frozen=True, slots=True)
class DeviceHidden:
    """Hidden states in device memory. slot: the text whose captured head reads exactly these rows; -1: none."""

    rows: Buffer
    slot: int


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

    def bind(self, slot: int, binding: ort.IOBinding) -> None:
        """Past and present share one buffer: the graph writes new rows in place and copies nothing."""
        for name, buffer in self._slots[slot].items():
            buffer.bind_input(binding, f"past_{name}")
            buffer.bind_output(binding, f"present_{name}")


@dataclass(frozen=True, slots=True)
class Lane:
    """The graphs opened in one lane."""

    placement: Placement
    body: Session
    head: Session
    choose: Session
    score: Session

    @classmethod
    def open(cls, model_dir: Path, placement: Placement, weights: Mapping[str, ort.OrtValue]) -> Lane:
        return cls(
            placement,
            placement.open(model_dir / "model.onnx", weights=weights, capture=True),
            placement.open(model_dir / "head.onnx", weights=weights, capture=True),
            placement.open(model_dir / "choose.onnx"),
            placement.open(model_dir / "score.onnx"),
        )


@dataclass(frozen=True, slots=True)
class Scratch:
    """What every run shares, since one lane runs at a time.

    step: int32 (4,): the id of the token (int64) and then its position. places: 0, 1, 2, ... int64. The others are
    named as in the graphs.
    """

    step: Buffer
    ids: Buffer
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
            step=placement.allocate((4,), np.int32),
            ids=placement.allocate((1, sizes.capacity), np.int64),
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
    def token(self) -> Buffer:
        """The id within `step`, int64 (1, 1)."""
        return self.step.part(0, (1, 1), np.dtype(np.int64))

    @property
    def position(self) -> Buffer:
        """The position of the last token within `step`, int32 (1,)."""
        return self.step.part(IDS_BYTES, (1,))


class DeviceLm:
    """Body and head in one lane or several of a device. See models.engines.causal_lm.Runtime."""

    def __init__(
        self, lanes: Mapping[str, Lane], sizes: Sizes, arena: KvArena, scratch: Scratch, bodies: list[DeviceBody]
    ) -> None:
        self.sizes = sizes
        self.arena = arena
        self.scratch = scratch
        self.head = DeviceHead(self)
        self.lanes = tuple(lanes)
        self.lane_name = self.lanes[0]
        self._lanes = lanes
        self._bodies = bodies

    @classmethod
    def load(cls, model_dir: Path, placements: Mapping[str, Placement], sizes: Sizes) -> DeviceLm:
        """Weights are loaded once, through the first placement. Raises ModelMissing and DeviceUnavailable."""
        first = next(iter(placements.values()))
        weights = first.load_weights(model_dir)
        lanes = {name: Lane.open(model_dir, placement, weights) for name, placement in placements.items()}
        kind = dtype_of(next(iter(lanes.values())).body.inner.get_outputs()[0])
        arena = KvArena.allocate(first, sizes, kind)
        loaded = cls(lanes, sizes, arena, Scratch.allocate(first, sizes, kind), [])
        loaded._bodies += [
            DeviceBody(loaded, slot, first.allocate((1, sizes.hidden), kind)) for slot in range(sizes.slots)
        ]
        loaded.wait()
        return loaded

    @property
    def lane(self) -> Lane:
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

    def open_body(self) -> DeviceBody:
        """The body of a free slot. Raises InputError when every slot is taken."""
        return self._bodies[self.arena.take()]

    def capture(self) -> None:
        """Run every slot's one-token step in every lane until it is captured. It overwrites what the slots hold."""
        present = self.lane_name
        for name in self.lanes:
            self.use(name)
            for body in self._bodies:
                for _ in range(STEPS_TO_CAPTURE):
                    self.head.best(body.run([0], 0, every_row=False))
        self.use(present)


class DeviceBody:
    """The body of the text in one slot. `row`: its last token's hidden state. See models.engines.lm_session.Body."""

    def __init__(self, lm: DeviceLm, slot: int, row: Buffer) -> None:
        self.capacity = lm.sizes.capacity
        self.kv_bytes = lm.arena.slot_bytes
        self.slot = slot
        self.row = row
        self._lm = lm
        self._steps: dict[str, ort.IOBinding] = {}
        self._chunks: dict[str, ort.IOBinding] = {}
        self._total = np.zeros(1, np.int32)
        self._capacity = np.full(1, lm.sizes.capacity, np.int32)

    def run(self, tokens: list[int], position: int, *, every_row: bool) -> DeviceHidden:
        self._total[0] = position + len(tokens)
        if len(tokens) == 1 and not every_row:
            return self._step(tokens[0], position)
        return self._chunk(tokens, position + len(tokens) - 1, every_row)

    def close(self) -> None:
        self._lm.arena.give_back(self.slot)

    def _step(self, token: int, position: int) -> DeviceHidden:
        """One token, captured. It is queued only: whoever reads the head's answer waits for both."""
        lane, scratch = self._lm.lane, self._lm.scratch
        binding = self._steps.get(self._lm.lane_name)
        if binding is None:
            binding = self._steps[self._lm.lane_name] = self._bound(lane)
            # A captured graph keeps the value of this host input. On a GPU it only sizes the work: how far attention
            # reads, seqlens_k says. The CPU's kernel goes by it.
            binding.bind_cpu_input("total_len", self._total if lane.placement.device == "cpu" else self._capacity)
            scratch.token.bind_input(binding, "input_ids")
            scratch.places.part(0, (1,)).bind_input(binding, "rows")
            self.row.bind_output(binding, "hidden")
        values = np.zeros(4, np.int32)
        values.view(np.int64)[0] = token
        values[2] = position
        lane.placement.write(scratch.step, values)
        lane.body.run(binding, graph_id=self.slot)
        return DeviceHidden(self.row, self.slot)

    def _chunk(self, tokens: list[int], last: int, every_row: bool) -> DeviceHidden:
        """Any number of tokens, finished on return: who asks between chunks whether to yield leaves nothing queued."""
        lane, scratch, count = self._lm.lane, self._lm.scratch, len(tokens)
        binding = self._chunks.get(self._lm.lane_name)
        if binding is None:
            binding = self._chunks[self._lm.lane_name] = self._bound(lane)
            binding.bind_cpu_input("total_len", self._total)
        ids = scratch.ids.part(0, (1, count))
        lane.placement.write(ids, np.array([tokens], np.int64))
        lane.placement.write(scratch.position, np.array([last], np.int32))
        ids.bind_input(binding, "input_ids")
        if every_row:
            rows = scratch.places.part(0, (count,))
            hidden = DeviceHidden(scratch.hidden.part(0, (count, self._lm.sizes.hidden)), -1)
        else:
            rows = scratch.places.part((count - 1) * IDS_BYTES, (1,))
            hidden = DeviceHidden(self.row, self.slot)
        rows.bind_input(binding, "rows")
        hidden.rows.bind_output(binding, "hidden")
        lane.body.run(binding)
        self._lm.wait()
        return hidden

    def _bound(self, lane: Lane) -> ort.IOBinding:
        """A binding that lacks the ids, which rows to return, and where."""
        binding = lane.body.binding()
        self._lm.arena.bind(self.slot, binding)
        self._lm.scratch.position.bind_input(binding, "seqlens_k")
        return binding


class DeviceHead:
    """The head, `choose` and `score` on hidden states of any slot. See models.engines.lm_session.Head."""

    def __init__(self, lm: DeviceLm) -> None:
        self._lm = lm
        self._captured: dict[tuple[str, int], ort.IOBinding] = {}
        self._loose: dict[tuple[str, str], ort.IOBinding] = {}

    def best(self, hidden: DeviceHidden, allowed: Ids | None = None) -> int:
        lane, scratch = self._lm.lane, self._lm.scratch
        if hidden.slot >= 0:
            lane.head.run(self._bound(hidden), graph_id=hidden.slot)
        else:
            rows = hidden.rows.shape[0]
            self._run(hidden.rows, rows - 1, 1)
        if allowed is None:
            return int(lane.placement.read(scratch.best.part(0, (1, 1)))[0, 0])
        ids = scratch.allowed.part(0, (allowed.size,))
        lane.placement.write(ids, allowed)
        binding = self._binding("choose", lane.choose)
        ids.bind_input(binding, "allowed")
        scratch.logits.part(0, (1, self._lm.sizes.vocab)).bind_input(binding, "logits")
        scratch.chosen.bind_output(binding, "id")
        lane.choose.run(binding)
        return int(lane.placement.read(scratch.chosen)[0])

    def best_rows(self, hidden: DeviceHidden) -> Ids:
        read, best = self._lm.lane.placement.read, self._lm.scratch.best
        out = []
        for start, count in _slices(hidden.rows.shape[0]):
            self._run(hidden.rows, start, count)
            out.append(read(best.part(0, (count, 1)))[:, 0])
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
        read, vocab = self._lm.lane.placement.read, self._lm.sizes.vocab
        out = []
        for start, count in _slices(hidden.rows.shape[0]):
            self._run(hidden.rows, start, count)
            out.append(read(self._lm.scratch.logits.part(0, (count, vocab))))
        return np.concatenate(out)

    def _scores(self, targets: Ids) -> F32:
        """Log-probabilities of one target for each of the first rows of the logits."""
        lane, scratch, count = self._lm.lane, self._lm.scratch, targets.size
        ids, out = scratch.targets.part(0, (count,)), scratch.log_probabilities.part(0, (count,))
        lane.placement.write(ids, targets)
        binding = self._binding("score", lane.score)
        ids.bind_input(binding, "targets")
        scratch.logits.part(0, (count, self._lm.sizes.vocab)).bind_input(binding, "logits")
        out.bind_output(binding, "log_probabilities")
        lane.score.run(binding)
        return lane.placement.read(out)

    def _run(self, rows: Buffer, start: int, count: int) -> None:
        """The head over `count` rows from row `start`, not captured."""
        lane, width = self._lm.lane, self._lm.sizes.hidden
        binding = self._binding("head", lane.head)
        part = rows.part(start * width * rows.dtype.itemsize, (count, width))
        self._bind(binding, part)
        lane.head.run(binding)

    def _bound(self, hidden: DeviceHidden) -> ort.IOBinding:
        """The binding that the captured run of this slot has always had."""
        key = self._lm.lane_name, hidden.slot
        binding = self._captured.get(key)
        if binding is None:
            binding = self._captured[key] = self._lm.lane.head.binding()
            self._bind(binding, hidden.rows)
        return binding

    def _bind(self, binding: ort.IOBinding, rows: Buffer) -> None:
        count, scratch = rows.shape[0], self._lm.scratch
        rows.bind_input(binding, "hidden")
        scratch.logits.part(0, (count, self._lm.sizes.vocab)).bind_output(binding, "logits")
        scratch.best.part(0, (count, 1)).bind_output(binding, "best")

    def _binding(self, graph: str, session: Session) -> ort.IOBinding:
        """The one binding of the present lane for runs of `graph` whose shapes change."""
        key = self._lm.lane_name, graph
        if key not in self._loose:
            self._loose[key] = session.binding()
        return self._loose[key]


def _slices(rows: int) -> list[tuple[int, int]]:
    """(start, count) of runs over at most LOGIT_ROWS rows each."""
    return [(start, min(LOGIT_ROWS, rows - start)) for start in range(0, rows, LOGIT_ROWS)]


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
