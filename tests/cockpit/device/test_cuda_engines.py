"""Engines in CUDA lanes, on a driver whose device memory is host memory: staging, weights, capturing, refusals."""

from __future__ import annotations

import json
import weakref
from collections.abc import Callable, Mapping
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
import pytest
from onnx import TensorProto, helper, save

from cockpit.device.base import Lane, SessionSettings
from cockpit.device.cuda.dlpack import Lent
from cockpit.device.cuda.placement import BULK_BYTES, STAGING_BYTES, CudaEngines, CudaPlacement
from cockpit.device.cuda.sessions import HEAVY, CudaSession, nodes_elsewhere
from models.build.llm_emit import Emitter, WeightFile
from models.engines.placement import Buffer, CpuPlacement, view
from models.errors import DeviceUnavailable, ModelMissing
from tests.support.cuda.host_memory import HostMemory


class FakeDevice:
    def __init__(self) -> None:
        self.driver = HostMemory()
        self.lanes: Mapping[str, Lane] = {"speech": Lane("speech", ("a",), 16, stream=77)}

    def session_settings(self, lane: str) -> SessionSettings:
        return SessionSettings(("CUDAExecutionProvider",), ({"user_compute_stream": "77"},))


@pytest.fixture
def engines() -> CudaEngines:
    return CudaEngines(FakeDevice())


@pytest.fixture
def placement(engines: CudaEngines) -> CudaPlacement:
    return engines.placement("speech")


def test_what_is_written_is_read(placement: CudaPlacement) -> None:
    buffer = placement.allocate((3, 5), np.float16)
    assert not placement.read(buffer).any()
    values = np.arange(15, dtype=np.float16).reshape(3, 5)
    placement.write(buffer, values)
    np.testing.assert_array_equal(placement.read(buffer), values)


def test_many_writes_before_one_read_do_not_overwrite_each_other(placement: CudaPlacement) -> None:
    rng = np.random.default_rng(1)
    parts = [rng.standard_normal(100_003).astype(np.float32) for _ in range(9)]
    buffers = [placement.allocate(part.shape, np.float32) for part in parts]
    for buffer, part in zip(buffers, parts, strict=True):
        placement.write(buffer, part)
    for buffer, part in zip(buffers, parts, strict=True):
        np.testing.assert_array_equal(placement.read(buffer), part)


def test_more_than_the_staging_memory_goes_in_pieces(placement: CudaPlacement) -> None:
    values = np.random.default_rng(2).integers(0, 1 << 40, STAGING_BYTES // 8 + 11, np.int64)
    buffer = placement.allocate(values.shape, np.int64)
    placement.write(buffer, values)
    np.testing.assert_array_equal(placement.read(buffer), values)


def test_a_copy_stays_in_device_memory(placement: CudaPlacement) -> None:
    source, target = (placement.allocate((7, 3), np.float16) for _ in range(2))
    values = np.arange(21, dtype=np.float16).reshape(7, 3)
    placement.write(source, values)
    placement.copy(source, target)
    np.testing.assert_array_equal(placement.read(target), values)
    with pytest.raises(ValueError, match="do not fill"):
        placement.copy(source, placement.allocate((7,), np.float16))


def test_bulk_copies_take_turns_and_small_ones_do_not() -> None:
    asked: list[tuple[str, int]] = []

    class Copies:
        def copy(self, lane: str, size_bytes: int, move: Callable[[int, int], None]) -> None:
            asked.append((lane, size_bytes))
            half = size_bytes // 2
            move(half, size_bytes - half)
            move(0, half)

    placement = CudaEngines(FakeDevice(), Copies()).placement("speech")
    small, bulk = (placement.allocate((size,), np.uint8) for size in (BULK_BYTES - 1, 3 * BULK_BYTES + 5))
    for buffer in (small, bulk):
        values = np.random.default_rng(4).integers(0, 255, buffer.shape, np.uint8)
        placement.write(buffer, values)
        np.testing.assert_array_equal(placement.read(buffer), values)
    assert asked == [("speech", 3 * BULK_BYTES + 5)] * 2


def test_values_of_another_size_are_refused(placement: CudaPlacement) -> None:
    with pytest.raises(ValueError, match=r"shape \(4,\)"):
        placement.write(placement.allocate((3,), np.int64), np.zeros(4, np.int64))


def test_weights_are_loaded_once_for_every_session(
    engines: CudaEngines, placement: CudaPlacement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    rng = np.random.default_rng(3)
    tensors = {name: rng.standard_normal((n, 7)).astype(kind) for name, n, kind in _NAMED}
    with WeightFile(tmp_path / "model.bin") as file:
        emitter = Emitter(file)
        for name, values in tensors.items():
            emitter.weight(name, values)
    lent: list[Buffer] = []

    def lend(buffer: Buffer) -> Buffer:
        lent.append(buffer)
        return buffer

    monkeypatch.setattr(engines, "lend", lend)
    loaded = placement.load_weights(tmp_path)
    assert set(loaded) == set(tensors)
    assert len({buffer.owner for buffer in lent}) == 1
    for name, buffer in loaded.items():
        np.testing.assert_array_equal(placement.read(buffer), tensors[name])
        assert buffer.address % 4 == 0
    assert engines.allocated_bytes < sum(values.nbytes for values in tensors.values()) + 256 * (len(tensors) + 1)


_NAMED = [("embed", 1000, np.float16), ("norm", 300, np.float32), ("odd", 333, np.float16)]


def test_weights_without_an_index_name_the_command(placement: CudaPlacement, tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="cockpit models fetch --build"):
        placement.load_weights(tmp_path)


def test_all_memory_goes_back_once(engines: CudaEngines, placement: CudaPlacement) -> None:
    placement.allocate((8,), np.float32)
    memory = engines.memory
    assert isinstance(memory, HostMemory)
    assert len(memory.blocks) == 2
    engines.close()
    engines.close()
    assert not memory.blocks


def test_a_lane_is_idle_before_a_session_of_it_ends(
    engines: CudaEngines, placement: CudaPlacement, monkeypatch: pytest.MonkeyPatch
) -> None:
    memory = engines.memory
    assert isinstance(memory, HostMemory)
    buffer = placement.allocate((3,), np.int32)
    placement.write(buffer, np.arange(3, dtype=np.int32))
    queued: list[int] = []
    session = engines.opened(FakeInner(), captures=False)  # type: ignore[arg-type]
    monkeypatch.setattr(session, "close", lambda: queued.append(len(memory.queued)))
    assert memory.queued
    engines.close()
    assert queued == [0]


def test_sessions_end_before_their_memory_even_where_a_binding_is_kept(engines: CudaEngines, tmp_path: Path) -> None:
    with WeightFile(tmp_path / "model.bin") as file:
        emitter = Emitter(file)
        emitter.op("Identity", "x", name="y")
        info = [helper.make_tensor_value_info(name, TensorProto.FLOAT, [1]) for name in "xy"]
        save(emitter.model("one", info[:1], info[1:]), tmp_path / "model.onnx")
    inner = ort.InferenceSession(str(tmp_path / "model.onnx"), providers=["CPUExecutionProvider"])
    gone = weakref.ref(inner)
    session = engines.opened(inner, captures=False)
    kept = session.binding()
    bound = ort.OrtValue.ortvalue_from_numpy(np.ones(1, np.float32))
    kept.bind_ortvalue_input("x", bound)
    unbound = weakref.ref(bound)
    del inner, bound
    engines.close()
    assert gone() is None
    assert unbound() is None
    assert kept is not None


class FakeInner:
    """Takes the run options of every run."""

    def __init__(self) -> None:
        self.ids: list[str] = []
        self.waited: list[bool] = []

    def run_with_iobinding(self, binding: Any, options: ort.RunOptions) -> None:
        self.ids.append(self._entry(options, "gpu_graph_id"))
        self.waited.append(self._entry(options, "disable_synchronize_execution_providers") == "none")

    def _entry(self, options: ort.RunOptions, name: str) -> str:
        try:
            return str(options.get_run_config_entry(name))
        except RuntimeError:
            return "none"


def test_graphs_are_captured_at_start_and_never_after(engines: CudaEngines) -> None:
    inner = FakeInner()
    session = CudaSession(inner, engines.start, captures=True)
    session.run(None, graph_id=0)
    session.run(None)
    session.run(None, graph_id=0)
    engines.seal()
    session.run(None, graph_id=0)
    session.run(None, graph_id=1)
    assert inner.ids == ["1", "-1", "1", "1", "-1"]
    assert inner.waited == [False, True, False, False, True]
    assert session.uncaptured == 1


def test_a_capture_holds_the_start_lock(engines: CudaEngines) -> None:
    held = []

    class Inner(FakeInner):
        def run_with_iobinding(self, binding: Any, options: ort.RunOptions) -> None:
            held.append(engines.start.lock.locked())

    session = CudaSession(Inner(), engines.start, captures=True)
    session.run(None, graph_id=3)
    session.run(None, graph_id=3)
    assert held == [True, False]


def test_a_session_without_graphs_ignores_the_id(engines: CudaEngines) -> None:
    inner = FakeInner()
    CudaSession(inner, engines.start, captures=False).run(None, graph_id=2)
    assert inner.ids == ["none"]
    assert inner.waited == [True]


def test_nothing_is_opened_after_start(engines: CudaEngines, placement: CudaPlacement, tmp_path: Path) -> None:
    graph = tmp_path / "model.onnx"
    graph.write_bytes(b"")
    engines.seal()
    with pytest.raises(DeviceUnavailable, match="after start-up"):
        placement.open(graph)


def test_a_missing_graph_names_the_command(placement: CudaPlacement, tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="cockpit models fetch --build"):
        placement.open(tmp_path / "model.onnx")


class Assigned:
    def __init__(self, provider: str, *kinds: str) -> None:
        self.ep_name = provider
        self._nodes = [type("Node", (), {"op_type": kind, "name": kind, "domain": ""}) for kind in kinds]

    def get_nodes(self) -> list[Any]:
        return self._nodes


class Inner:
    def __init__(self, provider: str, *parts: Assigned) -> None:
        self._provider, self._parts = provider, parts

    def get_providers(self) -> list[str]:
        return [self._provider]

    def get_provider_graph_assignment_info(self) -> tuple[Assigned, ...]:
        return self._parts


def open_with(inner: Inner, placement: CudaPlacement, folder: Path, monkeypatch: pytest.MonkeyPatch) -> CudaSession:
    graph = folder / "model.onnx"
    graph.write_bytes(b"")
    monkeypatch.setattr(ort, "InferenceSession", lambda *_, **__: inner)
    return placement.open(graph)


def test_a_session_that_fell_back_is_an_error(
    placement: CudaPlacement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    with pytest.raises(DeviceUnavailable, match="runs on CPUExecutionProvider"):
        open_with(Inner("CPUExecutionProvider"), placement, tmp_path, monkeypatch)


def test_a_heavy_node_on_the_cpu_is_an_error(
    placement: CudaPlacement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = (Assigned("CUDAExecutionProvider", "MatMul"), Assigned("CPUExecutionProvider", "Shape", "ConvTranspose"))
    with pytest.raises(DeviceUnavailable, match="ConvTranspose"):
        open_with(Inner("CUDAExecutionProvider", *parts), placement, tmp_path, monkeypatch)


def test_arithmetic_of_shapes_may_stay_on_the_cpu(
    placement: CudaPlacement, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    parts = (Assigned("CUDAExecutionProvider", *sorted(HEAVY)), Assigned("CPUExecutionProvider", "Shape", "Shape"))
    session = open_with(Inner("CUDAExecutionProvider", *parts), placement, tmp_path, monkeypatch)
    assert nodes_elsewhere(session.inner) == {"Shape": 2}


@pytest.mark.parametrize("kind", [np.float32, np.float16, np.int64, np.int8, np.uint8])
def test_lent_memory_is_the_memory_itself(kind: type[np.generic]) -> None:
    values = np.arange(24).astype(kind).reshape(2, 3, 4)
    taken = ort.OrtValue.from_dlpack(Lent(values.ctypes.data, values.shape, values.dtype, "cpu"))
    np.testing.assert_array_equal(taken.numpy(), values)
    assert taken.data_ptr() == values.ctypes.data
    values[1, 2, 3] = 7
    assert taken.numpy()[1, 2, 3] == 7


def test_cpu_buffers_are_bound_by_address(tmp_path: Path) -> None:
    placement = CpuPlacement(1)
    buffer = placement.allocate((4, 8), np.float32)
    half = buffer.part(64, (2, 8))
    view(half)[...] = 3
    assert placement.read(buffer).sum() == 48
    with pytest.raises(ValueError, match="do not lie"):
        buffer.part(96, (2, 8))


def test_the_index_says_where_each_tensor_lies(tmp_path: Path) -> None:
    values = np.arange(4000, dtype=np.float32)
    with WeightFile(tmp_path / "model.bin") as file:
        file.add("first", values)
        file.add("second", values * 2)
    index = json.loads((tmp_path / "weights.json").read_text(encoding="utf-8"))
    raw = (tmp_path / index["file"]).read_bytes()
    said = index["tensors"]["second"]
    np.testing.assert_array_equal(np.frombuffer(raw, said["dtype"], 4000, said["offset"]), values * 2)
