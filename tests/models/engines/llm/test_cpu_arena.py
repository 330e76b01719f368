"""Beginnings stored once and shown in several slots: every slot reads as if it had a copy, whoever writes where."""

from __future__ import annotations

import gc
from pathlib import Path

import numpy as np
import pytest

from models.engines.llm import cpu_arena
from models.engines.llm.cpu_arena import CpuArena
from models.engines.llm.shared_pages import PAGE_BYTES, PageFile

LAYERS, HEADS, CAPACITY, HEAD_DIM = 2, 3, 511, 64
PLANES = 2 * LAYERS * HEADS
GROUP = PAGE_BYTES // (HEAD_DIM * 4)
COUNT = 300
WHOLE = COUNT // GROUP * GROUP


def reserved(capacity: int = CAPACITY, head_dim: int = HEAD_DIM) -> CpuArena:
    return CpuArena.reserve(LAYERS, (5, HEADS, capacity, head_dim))


@pytest.fixture
def arena() -> CpuArena:
    made = reserved()
    assert made.shared_status().reason == ""
    return made


def fill(arena: CpuArena, slot: int, start: int, stop: int, seed: int = 0) -> np.ndarray:
    """Write as a run of the model does; returns the slot's rows up to `stop`."""
    values = np.random.default_rng(seed).random((2 * LAYERS, HEADS, stop - start, arena.rows.shape[-1]), np.float32)
    arena.own(slot, start)
    arena.of(slot)[:, :, start:stop] = values
    return arena.of(slot)[:, :, :stop].copy()


def copied(arena: CpuArena, source: int, target: int, start: int, stop: int) -> None:
    """As CpuBody.copy_rows."""
    start = arena.show(target, arena.shown(source).clipped(stop), start, stop)
    arena.own(target, start)
    arena.of(target)[:, :, start:stop] = arena.of(source)[:, :, start:stop]


def pages(arena: CpuArena, slot: int) -> tuple[int, int]:
    """Pages of the slot in memory: its own, and those of the file. Bit 63: present; bit 61: a file's."""
    own = shown = 0
    with Path("/proc/self/pagemap").open("rb") as file:
        for layer in arena.of(slot):
            file.seek(layer.ctypes.data // PAGE_BYTES * 8)
            entries = np.frombuffer(file.read(layer.nbytes // PAGE_BYTES * 8), np.uint64)
            present, of_file = entries >> np.uint64(63) == 1, (entries >> np.uint64(61)) & np.uint64(1) == 1
            own += int((present & ~of_file).sum())
            shown += int((present & of_file).sum())
    return own, shown


def test_a_beginning_is_in_memory_once_whoever_shows_it(arena: CpuArena) -> None:
    rows = fill(arena, 0, 0, COUNT)
    assert pages(arena, 0)[0] == PLANES * (WHOLE // GROUP + 1)
    assert arena.share(0, COUNT) == arena.shareable(COUNT) == WHOLE
    for slot in (1, 2, 3):
        copied(arena, 0, slot, 0, COUNT)
        assert np.array_equal(arena.of(slot)[:, :, :COUNT], rows)
        assert pages(arena, slot) == (PLANES, PLANES * WHOLE // GROUP)  # its own is the last, which is not whole
    assert np.array_equal(arena.of(0)[:, :, :COUNT], rows)
    status = arena.shared_status()
    assert status.bytes == WHOLE * arena.token_bytes
    assert status.shown_bytes == 4 * status.bytes
    assert (status.texts, status.copied_instead) == (4, 0)
    assert arena._file is not None
    assert arena._file.resident_bytes == status.bytes


def test_who_writes_changes_nobody_else(arena: CpuArena) -> None:
    rows = fill(arena, 0, 0, COUNT)
    arena.share(0, COUNT)
    for slot in (1, 2):
        copied(arena, 0, slot, 0, COUNT)
    fill(arena, 0, 0, 500, seed=1)  # the slot that computed it is another text's
    fill(arena, 1, 100, 130, seed=2)  # and one goes on otherwise in the midst of a page
    assert arena.shown(1).rows == 100 // GROUP * GROUP
    assert np.array_equal(arena.of(1)[:, :, :100], rows[:, :, :100])
    assert np.array_equal(arena.of(2)[:, :, :COUNT], rows)
    arena.of(2)[0, 0, 5] = 7.0  # even who forgets to tell
    arena.give_back(1)
    copied(arena, 2, 3, 0, COUNT)
    assert np.array_equal(arena.of(3)[:, :, :COUNT], rows)


def test_the_memory_goes_with_the_last_who_shows_it(arena: CpuArena) -> None:
    fill(arena, 0, 0, COUNT)
    arena.share(0, COUNT)
    kept = arena.shown(0)
    copied(arena, 0, 1, 0, COUNT)
    for slot in (0, 1):
        arena.give_back(slot)
        assert pages(arena, slot) == (0, 0)
        assert not arena.of(slot).any()
    assert arena._file is not None
    assert arena._file.resident_bytes == WHOLE * arena.token_bytes  # a kept beginning is still there
    assert arena.show(2, kept, 0, COUNT) == WHOLE
    arena.give_back(2)
    del kept
    gc.collect()
    assert arena._file.resident_bytes == 0
    status = arena.shared_status()
    assert (status.bytes, status.shown_bytes, status.texts, status.mappings) == (0, 0, 0, 0)


def test_a_part_of_a_beginning_and_a_longer_one(arena: CpuArena) -> None:
    rows = fill(arena, 0, 0, 500)
    arena.share(0, 200)
    copied(arena, 0, 1, 0, 150)  # 144 shown, 6 read from the file
    assert arena.shown(1).rows == 150 // GROUP * GROUP
    assert np.array_equal(arena.of(1)[:, :, :150], rows[:, :, :150])
    arena.share(0, 500)
    copied(arena, 0, 1, 150, 500)
    copied(arena, 0, 2, 0, 500)
    for slot in (0, 1, 2):
        assert np.array_equal(arena.of(slot)[:, :, :500], rows)
        assert arena.shown(slot).rows == 500 // GROUP * GROUP
    other = fill(arena, 2, 200, 400, seed=3)  # two go on from one beginning
    arena.share(2, 400)
    copied(arena, 2, 3, 0, 400)
    copied(arena, 0, 3, 300, 500)  # another beginning is shown in place of that one
    assert np.array_equal(arena.of(2)[:, :, :400], other)
    assert np.array_equal(arena.of(3)[:, :, :500], rows)
    assert np.array_equal(arena.of(0)[:, :, :500], rows)


def test_the_kernel_has_no_more_mappings_than_are_counted(arena: CpuArena) -> None:
    before = mappings(arena)
    fill(arena, 0, 0, 500)
    for count in (100, 200, 300, 400, 500):  # five parts, one after the other in the file
        arena.share(0, count)
        for slot in (1, 2, 3):
            copied(arena, 0, slot, arena.shown(slot).rows, count)
    assert len(arena.shown(3).parts) == 5
    assert mappings(arena) - before <= arena.shared_status().mappings == 4 * 2 * PLANES


def mappings(arena: CpuArena) -> int:
    start = arena.rows.ctypes.data
    ranges = (line.split()[0].split("-") for line in Path("/proc/self/maps").read_text().splitlines())
    return sum(start < int(last, 16) and int(first, 16) < start + arena.rows.nbytes for first, last in ranges)


def test_above_the_system_s_limit_it_is_copied(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setattr(cpu_arena, "mappings_left", lambda: 2 * PLANES * 2)
    arena = reserved()
    rows = fill(arena, 0, 0, COUNT)
    arena.share(0, COUNT)
    for slot in (1, 2, 3):
        copied(arena, 0, slot, 0, COUNT)
        assert np.array_equal(arena.of(slot)[:, :, :COUNT], rows)
    status = arena.shared_status()
    assert (status.texts, status.copied_instead) == (2, 2)
    assert "vm.max_map_count" in status.reason
    arena.give_back(0)
    copied(arena, 1, 4, 0, COUNT)  # there is room again
    assert arena.shown(4).rows == WHOLE


def test_a_mapping_that_fails_loses_nothing(arena: CpuArena, monkeypatch: pytest.MonkeyPatch) -> None:
    rows = fill(arena, 0, 0, COUNT)
    arena.share(0, COUNT)
    show, calls = PageFile.show, iter(range(PLANES))

    def failing(file: PageFile, address: int, size_bytes: int, offset: int) -> None:
        if next(calls) == 5:
            raise OSError(12, "Cannot allocate memory")
        show(file, address, size_bytes, offset)

    with monkeypatch.context() as patched:
        patched.setattr(PageFile, "show", failing)
        copied(arena, 0, 1, 0, COUNT)
    assert np.array_equal(arena.of(1)[:, :, :COUNT], rows)
    arena.give_back(0)
    fill(arena, 0, 0, 500, seed=2)
    copied(arena, 1, 2, 0, COUNT)  # nothing more is mapped, and what may be shown somewhere is never dropped
    for slot in (1, 2):
        assert np.array_equal(arena.of(slot)[:, :, :COUNT], rows)
    assert "Cannot allocate memory" in arena.shared_status().reason
    assert arena.shared_status().copied_instead > 0


def test_rows_of_any_size_are_shown_in_whole_pages() -> None:
    """96 bytes a row: 128 rows fill three pages, so that many are the least that is shown; the rest is copied."""
    arena = reserved(capacity=1100, head_dim=24)
    rows = fill(arena, 0, 0, 1100)
    assert arena.shareable(1100) == arena.share(0, 1100) == 1024
    copied(arena, 0, 1, 0, 1100)
    assert np.array_equal(arena.of(1)[:, :, :1100], rows)
    assert arena.shared_status().shown_bytes > arena.shared_status().bytes > 0, "two slots show what lies there once"
    fill(arena, 1, 700, 800, seed=1)
    assert np.array_equal(arena.of(0)[:, :, :1100], rows)
    assert arena.shared_status().reason == ""


def test_a_short_beginning_is_copied(arena: CpuArena) -> None:
    rows = fill(arena, 0, 0, 3 * GROUP)
    assert arena.share(0, 3 * GROUP) == arena.shareable(3 * GROUP) == 0
    copied(arena, 0, 1, 0, 3 * GROUP)
    assert np.array_equal(arena.of(1)[:, :, : 3 * GROUP], rows)
