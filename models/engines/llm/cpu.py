"""The decoder on the CPU: one session for all texts, a KV cache for each."""

from __future__ import annotations

import mmap
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.engines.llm.head import F32, LmHead
from models.engines.llm.session import Body, Rows
from models.engines.placement import CpuPlacement
from models.errors import InputError


class CpuLm:
    """Body and head on the CPU. See models.engines.llm.causal_lm.Runtime."""

    lanes: tuple[str, ...] = ()

    def __init__(
        self, body: ort.InferenceSession, head: LmHead, layers: int, cache_shape: tuple[int, int, int, int]
    ) -> None:
        self.head = head
        self._body = body
        self._layers = layers
        self._cache_shape = cache_shape

    @classmethod
    def load(cls, model_dir: Path, *, threads: int, layers: int, cache_shape: tuple[int, int, int, int]) -> CpuLm:
        """cache_shape: (1, kv_heads, capacity, head_dim). Raises DeviceUnavailable."""
        place = CpuPlacement(threads, spin=True)
        head = LmHead(place.open(model_dir / "head.onnx").inner)
        return cls(place.open(model_dir / "model.onnx").inner, head, layers, cache_shape)

    def open_body(self) -> CpuBody:
        return CpuBody.open(self._body, KvCache.allocate(self._layers, self._cache_shape))

    def use(self, lane: str) -> None:
        raise KeyError(lane)

    def capture(self) -> None:
        """Nothing: device graphs are a device's."""


class KvCache:
    """Keys and values of every layer, float32, in one piece of memory that is touched as the text grows.

    rows: (2 x layers, kv_heads, capacity, head_dim); a layer's keys, then its values. Pages that no run has written
    take no memory, so a cache costs what its text needs and not what the context allows.
    """

    def __init__(self, memory: mmap.mmap, rows: NDArray[np.float32]) -> None:
        self.rows = rows
        self._memory = memory

    @classmethod
    def allocate(cls, layers: int, shape: tuple[int, int, int, int]) -> KvCache:
        """shape: (1, kv_heads, capacity, head_dim) of a layer's keys."""
        whole = (2 * layers, *shape[1:])
        memory = mmap.mmap(-1, int(np.prod(whole)) * 4, flags=mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS)
        memory.madvise(mmap.MADV_NOHUGEPAGE)  # a huge page would be touched whole for each head's first row
        return cls(memory, np.frombuffer(memory, np.float32).reshape(whole))

    @property
    def capacity(self) -> int:
        return int(self.rows.shape[2])

    @property
    def size_bytes(self) -> int:
        return self.rows.nbytes

    def give_back(self) -> None:
        """Return every page to the system; what was cached is lost."""
        self._memory.madvise(mmap.MADV_DONTNEED)

    def bind(self, binding: ort.IOBinding) -> None:
        """Past and present share one buffer: the graph writes new rows in place and copies nothing."""
        shape = (1, *self.rows.shape[1:])
        for index, rows in enumerate(self.rows):
            name = f"{'value' if index % 2 else 'key'}.{index // 2}"
            binding.bind_input(f"past_{name}", "cpu", 0, np.float32, shape, rows.ctypes.data)
            binding.bind_output(f"present_{name}", "cpu", 0, np.float32, shape, rows.ctypes.data)


class CpuBody:
    """One text's body; see models.engines.llm.session.Body. Hidden states are float32 (R, hidden) arrays."""

    def __init__(
        self, session: ort.InferenceSession, cache: KvCache, binding: ort.IOBinding, row: ort.OrtValue
    ) -> None:
        self.cache = cache
        self.capacity = cache.capacity
        self.kv_bytes = cache.size_bytes
        self._session = session
        self._binding = binding
        self._row = row
        self._length = np.zeros(1, np.int32)
        self._last = np.zeros(1, np.int32)

    @classmethod
    def open(cls, session: ort.InferenceSession, cache: KvCache) -> CpuBody:
        binding = session.io_binding()
        cache.bind(binding)
        width = session.get_outputs()[0].shape[1]
        body = cls(session, cache, binding, ort.OrtValue.ortvalue_from_numpy(np.zeros((1, width), np.float32)))
        binding.bind_cpu_input("total_len", body._length)
        binding.bind_cpu_input("seqlens_k", body._last)
        return body

    def run(self, tokens: list[int], position: int, *, every_row: bool) -> F32:
        count = len(tokens)
        self._length[0] = position + count
        self._last[0] = position + count - 1
        ids = np.array([tokens], np.int64)
        rows = np.arange(count) if every_row else np.array([count - 1])
        self._binding.bind_cpu_input("input_ids", ids)
        self._binding.bind_cpu_input("rows", rows)
        single = len(rows) == 1
        if single:  # into a buffer of its own: listing a binding's outputs wraps every layer's cache anew
            self._binding.bind_ortvalue_output("hidden", self._row)
        else:
            self._binding.bind_output("hidden", "cpu")
        self._session.run_with_iobinding(self._binding)
        hidden: F32 = self._row.numpy().copy() if single else self._binding.get_outputs()[-1].numpy()
        return hidden

    def bytes_for(self, tokens: int) -> int:
        return self.kv_bytes // self.capacity * tokens

    def copy_rows(self, other: Body, start: int, count: int) -> None:
        """See Body. One memory copy per layer and head, for which Python lets go of its lock."""
        if not isinstance(other, CpuBody) or other.cache.rows.shape[3] != self.cache.rows.shape[3]:
            raise InputError("keys and values can only be copied between texts of one model on one device")
        part = slice(start, start + count)
        self.cache.rows[:, :, part] = other.cache.rows[:, :, part]

    def read_rows(self, count: int) -> Rows:
        return self.cache.rows[:, :, :count].copy()

    def write_rows(self, rows: Rows, start: int, count: int) -> None:
        part = slice(start, start + count)
        self.cache.rows[:, :, part] = rows[:, :, part]

    def drop_rows(self) -> None:
        self.cache.give_back()

    def close(self) -> None:
        """Nothing: the cache goes with the body."""
