"""Keys and values of every text on the CPU, and beginnings that several of them show without a copy each.

A beginning that texts share is stored once (`SharedRows`) and its pages are mapped over the slots of all of them: to
the model every slot is one piece of memory as ever. Only whole pages are shown; the rows after them are a slot's own.
"""

from __future__ import annotations

import logging
import math
import mmap
import threading
from collections.abc import Sequence
from dataclasses import dataclass
from weakref import WeakSet, finalize

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.engines.llm.memory import Slots, padded_rows
from models.engines.llm.shared_pages import MAP_NORESERVE, PAGE_BYTES, PageFile, mappings_left
from models.engines.llm.shared_rows import NOTHING_SHARED, SharedBeginning, SharedRows, Sheet
from models.errors import DeviceUnavailable

log = logging.getLogger("models.llm")

LEAST_PAGES = 4
"""A shorter beginning is copied as fast as its pages are mapped."""


@dataclass(frozen=True, slots=True)
class SharedStatus:
    """bytes: stored once. shown_bytes: what copies in the slots that show them would take. texts: how many slots do.
    mappings: of most_mappings, those that this takes. copied_instead: beginnings that were not mapped, `reason` the
    last time.
    """

    bytes: int
    shown_bytes: int
    texts: int
    mappings: int
    most_mappings: int
    copied_instead: int
    reason: str


class CpuArena:
    """Keys and values of every text, float32, in one piece of address space whose pages come as they are written.

    rows: (2 x layers, slots, kv_heads, rows, head_dim); a layer's keys, then its values. Slots have one size and begin
    at pages of their own, so nothing can fragment; pages that no run has written take no memory, so a text costs what
    its tokens need and not what the context allows. Whoever writes to `rows` calls `own` before.
    """

    def __init__(self, memory: mmap.mmap, rows: NDArray[np.float32], capacity: int, block: int) -> None:
        self.rows = rows
        self.capacity = capacity
        self.slots = Slots(rows.shape[1], block)
        self._memory = memory
        self._lock = threading.RLock()
        self._shown = [NOTHING_SHARED] * rows.shape[1]
        self._ends = [0] * rows.shape[1]
        """How many rows each slot shows, for the question that every run asks."""
        self._stored: WeakSet[SharedRows] = WeakSet()
        self._lost: list[SharedBeginning] = []
        """Kept for ever: a mapping failed halfway, and nobody knows where they are shown."""
        self._copied_instead = 0
        self._reason = ""
        self._stopped = False
        self._mappings = self._most_mappings = 0
        row_bytes = rows.shape[-1] * rows.itemsize
        self._group = PAGE_BYTES // math.gcd(PAGE_BYTES, row_bytes)
        self._file = self._open_file()

    @classmethod
    def reserve(cls, layers: int, shape: tuple[int, int, int, int], block: int = 0) -> CpuArena:
        """shape: (slots, kv_heads, capacity, head_dim) of a layer's keys. Raises DeviceUnavailable when the system
        does not give the address space.
        """
        slots, kv_heads, capacity, head_dim = shape
        pages = PAGE_BYTES // math.gcd(PAGE_BYTES, head_dim * 4)  # rows of a head that fill whole pages
        whole = (2 * layers, slots, kv_heads, -(-padded_rows(capacity) // pages) * pages, head_dim)
        size_bytes = int(np.prod(whole, dtype=np.int64)) * 4
        try:
            memory = mmap.mmap(-1, size_bytes, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS | MAP_NORESERVE)
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
        self.own(slot, 0)
        size = self.rows[0, slot].nbytes
        for layer in range(self.rows.shape[0]):
            start = (layer * self.rows.shape[1] + slot) * size
            self._memory.madvise(mmap.MADV_DONTNEED, start, size)

    def compact(self, slot: int, span: range, end: int, kept: NDArray[np.int64]) -> None:
        """Of the rows of `span` leave `kept` (planes, kv_heads, k; ascending, from the span's first on) and move those
        after them, up to `end`, to follow. Pages without a row then go back to the system.
        """
        self.own(slot, span.start)
        rows = self.of(slot)
        stays = np.take_along_axis(rows[:, :, span.start : span.stop], kept[..., None], axis=2)
        middle, stop = span.start + stays.shape[2], end - len(span) + stays.shape[2]
        rows[:, :, span.start : middle] = stays
        rows[:, :, middle:stop] = rows[:, :, span.stop : end].copy()
        self._free_rows(slot, stop, end)

    def _free_rows(self, slot: int, start: int, stop: int) -> None:
        """Give back the pages that hold nothing but rows from `start` up to `stop`, of every layer and head."""
        base = self.rows.ctypes.data
        for plane in self._planes(slot):
            offset = plane.ctypes.data - base
            first = -(-(offset + start * self._row_bytes) // PAGE_BYTES) * PAGE_BYTES
            last = (offset + stop * self._row_bytes) // PAGE_BYTES * PAGE_BYTES
            if last > first:
                self._memory.madvise(mmap.MADV_DONTNEED, first, last - first)

    def bind(self, binding: ort.IOBinding, first: int, texts: int) -> None:
        """Past and present share one buffer: the graph writes new rows in place and copies nothing."""
        for index, layer in enumerate(self.rows):
            part = layer[first : first + texts]
            name = f"{'value' if index % 2 else 'key'}.{index // 2}"
            binding.bind_input(f"past_{name}", "cpu", 0, np.float32, part.shape, part.ctypes.data)
            binding.bind_output(f"present_{name}", "cpu", 0, np.float32, part.shape, part.ctypes.data)

    # --- beginnings that several texts show ------------------------------------------------------------------------
    def shown(self, slot: int) -> SharedBeginning:
        """What the slot shows of what is stored once."""
        return self._shown[slot]

    def shareable(self, count: int) -> int:
        """How many of the first `count` rows `share` would store."""
        whole = count // self._group * self._group
        return 0 if self._file is None or self._stopped or whole < LEAST_PAGES * self._group else whole

    def share(self, slot: int, count: int) -> int:
        """Store the first `count` rows of a slot where others can show them, and let it show them itself. Returns how
        many rows it shows. Nobody may run the model on the slot meanwhile.
        """
        with self._lock:
            held, start = self._shown[slot], self._ends[slot]
            stop = count // self._group * self._group
            if self._file is None or stop - start < LEAST_PAGES * self._group:
                return start
            sheet = held.open_sheet
            if not self._may_map(self._planes_count * (2 if not start else sheet is None)):
                return start
            try:
                if sheet is None:
                    sheet = Sheet(self._file.room(self._planes_count * self.rows.shape[-2] * self._row_bytes))
                part = SharedRows(sheet, start, stop, (stop - start) * self.token_bytes)
                for plane, values in enumerate(self._planes(slot)):
                    self._file.write(values[start:stop], self._offset(part, plane, start))
            except OSError as error:
                self._stop_sharing(f"pages could not be stored: {error}")
                return start
            sheet.filled = stop
            finalize(part, self._file.drop, self._ranges(part)).atexit = False
            self._stored.add(part)
            self._map(slot, held.and_then(part))
            return self._ends[slot]

    def show(self, slot: int, beginning: SharedBeginning, start: int, stop: int) -> int:
        """Let the rows from `start` up to `stop` be those that `beginning` holds, and those before `start`, which are
        equal, too where that saves memory. Returns the row up to which it holds any.
        """
        stop = min(stop, beginning.rows)
        if stop <= start or self._file is None:
            return start
        with self._lock:
            whole = stop // self._group * self._group
            if whole - start >= LEAST_PAGES * self._group and self._map(slot, beginning.clipped(whole)):
                start = max(start, whole)
            self.own(slot, start)
            for part, end in beginning.clipped(stop).parts:
                first = max(start, part.start)
                for plane, values in enumerate(self._planes(slot)):
                    if first < end:
                        self._file.read(values[first:end], self._offset(part, plane, first))
        return stop

    def own(self, slot: int, position: int) -> None:
        """The slot's rows from `position` on are about to be written: they are its own pages from now on."""
        if position >= self._ends[slot]:
            return
        with self._lock:
            assert self._file is not None
            keep, end = position // self._group * self._group, self._ends[slot]
            rest = self.rows[:, slot, :, keep:position].copy()
            try:
                for values in self._planes(slot):
                    self._file.hide(values[keep:end].ctypes.data, (end - keep) * self._row_bytes)
            except OSError as error:  # the kernel copies a page when it is written to
                self._lose(self._shown[slot], error)
            self.rows[:, slot, :, keep:position] = rest
            self._note(slot, self._shown[slot].clipped(keep))

    def shared_status(self) -> SharedStatus:
        """What is stored once and shown by several."""
        with self._lock:
            return SharedStatus(
                sum(part.size_bytes for part in self._stored),
                sum(self._ends) * self.token_bytes,
                sum(end > 0 for end in self._ends),
                self._mappings,
                self._most_mappings,
                self._copied_instead,
                self._reason,
            )

    def _map(self, slot: int, beginning: SharedBeginning) -> bool:
        """Show `beginning` and nothing else. False where that may not or cannot be: the slot is as it was."""
        assert self._file is not None
        held = self._shown[slot]
        if not self._may_map(self._mappings_of(beginning) - self._mappings_of(held)):
            return False
        try:
            for part, stop in beginning.parts[held.in_common(beginning) :]:
                size = (stop - part.start) * self._row_bytes
                for plane, values in enumerate(self._planes(slot)):
                    self._file.show(values[part.start :].ctypes.data, size, self._offset(part, plane, part.start))
            self.own(slot, beginning.rows)
        except OSError as error:
            self._lose(held, error)
            self._lose(beginning, error)
            return False
        self._note(slot, beginning)
        return True

    def _note(self, slot: int, beginning: SharedBeginning) -> None:
        self._mappings += self._mappings_of(beginning) - self._mappings_of(self._shown[slot])
        self._shown[slot], self._ends[slot] = beginning, beginning.rows

    def _mappings_of(self, beginning: SharedBeginning) -> int:
        """Each plane is one mapping for every sheet of which it shows rows, and one for its own rows: rows of a sheet
        that follow each other in the file are one for the kernel.
        """
        return (beginning.sheets + 1) * self._planes_count if beginning.parts else 0

    def _may_map(self, more: int) -> bool:
        """Whether so many further mappings stay inside the system's limit; if not, that is noted."""
        if self._stopped:
            self._copy_instead(self._reason)
            return False
        if more > 0 and self._mappings + more > self._most_mappings:
            self._copy_instead(f"{self._most_mappings} mappings are the most that vm.max_map_count leaves to it")
            return False
        return True

    def _planes(self, slot: int) -> list[NDArray[np.float32]]:
        """Every layer's and head's rows of a slot, (rows, head_dim) each."""
        return [head for layer in self.rows[:, slot] for head in layer]

    def _offset(self, part: SharedRows, plane: int, row: int) -> int:
        return part.sheet.offset + (plane * int(self.rows.shape[-2]) + row) * self._row_bytes

    def _ranges(self, part: SharedRows) -> Sequence[tuple[int, int]]:
        size = (part.stop - part.start) * self._row_bytes
        return [(self._offset(part, plane, part.start), size) for plane in range(self._planes_count)]

    @property
    def _planes_count(self) -> int:
        return int(self.rows.shape[0] * self.rows.shape[2])

    @property
    def _row_bytes(self) -> int:
        return int(self.rows.shape[-1]) * 4

    def _open_file(self) -> PageFile | None:
        """None, with the reason noted: beginnings are copied."""
        try:
            self._most_mappings = mappings_left()
            return PageFile()
        except OSError as error:
            self._reason = str(error)
            return None

    def _copy_instead(self, reason: str) -> None:
        if reason != self._reason:
            log.warning("a shared beginning is copied: %s", reason)
        self._copied_instead += 1
        self._reason = reason

    def _stop_sharing(self, reason: str) -> None:
        self._copy_instead(reason)
        self._stopped = True

    def _lose(self, beginning: SharedBeginning, error: OSError) -> None:
        """A mapping failed halfway: whatever is shown where stays valid, and nothing more is mapped."""
        self._lost.append(beginning)
        self._stop_sharing(str(error))
