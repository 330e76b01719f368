"""The decoder on the CPU: one session for all texts, a KV cache for each."""

from __future__ import annotations

from pathlib import Path

import numpy as np
import onnxruntime as ort

from models.engines.llm.head import F32, LmHead
from models.engines.placement import CpuPlacement


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
    """Keys and values of every layer, (1, kv_heads, capacity, head_dim) float32, bound as past and present at once."""

    def __init__(self, buffers: dict[str, ort.OrtValue], capacity: int) -> None:
        self.buffers = buffers
        self.capacity = capacity

    @classmethod
    def allocate(cls, layers: int, shape: tuple[int, int, int, int]) -> KvCache:
        names = [f"{part}.{layer}" for layer in range(layers) for part in ("key", "value")]
        return cls({name: ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32)) for name in names}, shape[2])

    @property
    def size_bytes(self) -> int:
        return sum(value.tensor_size_in_bytes() for value in self.buffers.values())

    def bind(self, binding: ort.IOBinding) -> None:
        """Past and present share one buffer: the graph writes new rows in place and copies nothing."""
        for name, value in self.buffers.items():
            binding.bind_ortvalue_input(f"past_{name}", value)
            binding.bind_ortvalue_output(f"present_{name}", value)


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

    def close(self) -> None:
        """Nothing: the cache goes with the body."""
