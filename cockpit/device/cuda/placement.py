"""ONNX Runtime engines in CUDA lanes: sessions on the lane's stream, buffers and weights in the house's own memory.

Everything is made at start. Opening a session stops the whole device, and capturing a graph forbids others to allocate,
so both happen under one lock; `CudaEngines.seal` ends that time, and from then on nothing is opened or captured.
"""

from __future__ import annotations

import ctypes
import gc
import json
from collections.abc import Callable, Mapping, Sequence
from pathlib import Path
from typing import Any, Protocol, runtime_checkable

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from cockpit.device.base import Lane, SessionSettings
from cockpit.device.cuda.dlpack import Lent
from cockpit.device.cuda.sessions import HEAVY, PROVIDER, CudaSession, Start, nodes_elsewhere
from models.engines.llm.steps import StepDecoder, StepModel
from models.engines.placement import WEIGHT_INDEX, Buffer, Placement, same_size
from models.errors import DeviceUnavailable, ModelMissing, fetch_command

STAGING_BYTES = 4 << 20
"""Page-locked memory of each placement, half for either direction: 30 s of speech at 16 kHz fit."""
BULK_BYTES = 64 << 10
"""From this size on a copy waits for its turn among the lanes'."""
ALIGN_BYTES = 256
ATTENTION_KERNELS = 1 | 2 | 16
"""Flash, memory-efficient and plain attention, not cuDNN's (8), which ONNX Runtime otherwise prefers from compute
capability 9 on: it makes a plan for every prompt length, and again in every thread, when it first meets it."""


class Memory(Protocol):
    """What the engines ask of the driver: see cockpit.device.cuda.driver.BoundDriver."""

    def allocate(self, size_bytes: int) -> int: ...
    def free(self, address: int) -> None: ...
    def zero(self, address: int, size_bytes: int, stream: int) -> None: ...
    def upload(self, address: int, host: int, size_bytes: int, stream: int) -> None: ...
    def download(self, host: int, address: int, size_bytes: int, stream: int) -> None: ...
    def move(self, target: int, source: int, size_bytes: int, stream: int) -> None: ...
    def pinned(self, size_bytes: int) -> int: ...
    def free_pinned(self, host: int) -> None: ...
    def synchronise(self, stream: int) -> None: ...


@runtime_checkable
class LanedDevice(Protocol):
    """What the engines need of a `Device` with lanes on CUDA."""

    driver: Any
    lanes: Mapping[str, Lane]

    def session_settings(self, lane: str) -> SessionSettings: ...


class Decoders(Protocol):
    """Who makes decoders of single tokens: cockpit.device.cuda_decode.serving.StepDecoders, or nobody."""

    def open(
        self, model: StepModel, placement: Placement, lane: Lane, allocate: Callable[[int], int], owner: object
    ) -> StepDecoder | str:
        """The decoder of `model` in `lane`, or why there is none."""
        ...


class Copies(Protocol):
    """Who orders bulk copies: cockpit.scheduling.copy_scheduler.CopyScheduler, or nobody."""

    def copy(self, lane: str, size_bytes: int, move: Callable[[int, int], None]) -> None:
        """Call `move(offset, size)`, which returns when these bytes are there, until all of them are."""
        ...


class AtOnce:
    """For a process whose lanes do not compete."""

    def copy(self, lane: str, size_bytes: int, move: Callable[[int, int], None]) -> None:
        move(0, size_bytes)


class CudaEngines:
    """Makes placements on one device and owns the sessions and the memory. Close it before the device."""

    def __init__(self, device: LanedDevice, copies: Copies | None = None, decoders: Decoders | None = None) -> None:
        ort.set_default_logger_severity(3)  # it warns of every session that CUDA is no plug-in here
        self._device = device
        self.memory: Memory = device.driver
        self.copies = copies or AtOnce()
        self.decoders = decoders
        self.start = Start()
        self.allocated_bytes = 0
        self._sessions: list[CudaSession] = []
        self._blocks: list[int] = []
        self._pages: list[int] = []

    def placement(self, lane: str) -> CudaPlacement:
        """One engine's place in `lane`; two engines in a lane take one each and share the stream. Raises KeyError."""
        settings = self._device.session_settings(lane)
        stream = self._device.lanes[lane].stream
        return CudaPlacement(self, lane, stream, settings, self.pinned(STAGING_BYTES))

    def seal(self) -> None:
        """Start-up is over: from here on nothing is opened, and what was not captured is run without a graph."""
        self.start.over = True

    def block(self, size_bytes: int) -> int:
        """Device memory that lives until `close`. Raises DeviceUnavailable."""
        address = self.memory.allocate(size_bytes)
        self._blocks.append(address)
        self.allocated_bytes += size_bytes
        return address

    def pinned(self, size_bytes: int) -> int:
        self._pages.append(self.memory.pinned(size_bytes))
        return self._pages[-1]

    def step_decoder(self, model: StepModel, placement: Placement, lane: str) -> StepDecoder | str:
        """See models.engines.llm.steps.DecodesSteps. Raises DeviceUnavailable after `seal`."""
        if self.decoders is None:
            return "no kernels were given to this device"
        if self.start.over:
            raise DeviceUnavailable("a decoder was to be opened after start-up; open every one before `seal`")
        with self.start.lock:
            return self.decoders.open(model, placement, self._device.lanes[lane], self.block, self)

    def lend(self, buffer: Buffer) -> ort.OrtValue:
        """The buffer as ONNX Runtime's own value, without a copy."""
        return ort.OrtValue.from_dlpack(Lent(buffer.address, buffer.shape, buffer.dtype, buffer.device))

    def opened(self, inner: ort.InferenceSession, captures: bool) -> CudaSession:
        """Take a new session into account."""
        session = CudaSession(inner, self.start, captures)
        self._sessions.append(session)
        return session

    def close(self) -> None:
        """Destroy every session, then give all memory back; no engine may run any more. Safe to call twice.

        A session uses its lane's stream once more when it goes, so none may be left for the end of the process, and
        every lane is idle before: a callback in its stream must not hold the last reference to page-locked memory.
        """
        for lane in self._device.lanes.values() if self._sessions else ():
            self.memory.synchronise(lane.stream)
        for session in self._sessions:
            session.close()
        self._sessions.clear()
        gc.collect()  # what engines that refer to themselves still hold of ONNX Runtime's memory
        blocks, self._blocks = self._blocks, []
        pages, self._pages = self._pages, []
        for address in blocks:
            self.memory.free(address)
        for host in pages:
            self.memory.free_pinned(host)


class CudaPlacement:
    """One engine's place in one lane. See models.engines.placement.Placement; made by `CudaEngines.placement`."""

    device = "cuda"

    def __init__(self, engines: CudaEngines, lane: str, stream: int, settings: SessionSettings, staging: int) -> None:
        self.lane = lane
        self.stream = stream
        self._engines = engines
        self._memory = engines.memory
        self._settings = settings
        self._up, self._down = staging, staging + STAGING_BYTES // 2
        self._used = 0

    # --- sessions --------------------------------------------------------------------------------------------------
    def open(
        self, graph: Path, *, weights: Mapping[str, ort.OrtValue] | None = None, capture: bool = False
    ) -> CudaSession:
        if not graph.is_file():
            raise ModelMissing(f"{graph} is missing; run: {fetch_command(graph.parent.name)}")
        if self._engines.start.over:
            raise DeviceUnavailable(f"{graph.name} was to be opened after start-up; open every session before `seal`")
        options = ort.SessionOptions()
        options.log_severity_level = 3
        options.intra_op_num_threads = self._settings.intra_op_num_threads
        options.inter_op_num_threads = self._settings.inter_op_num_threads
        options.add_session_config_entry("session.record_ep_graph_assignment_info", "1")
        for name, value in (weights or {}).items():
            options.add_initializer(name, value)
        chosen = {
            **self._settings.provider_options[0],
            "enable_cuda_graph": "1" if capture else "0",
            "cudnn_conv_algo_search": "HEURISTIC",
            "use_tf32": "0",
            "sdpa_kernel": str(ATTENTION_KERNELS),
        }
        with self._engines.start.lock:
            inner = ort.InferenceSession(str(graph), options, providers=[(PROVIDER, chosen)])
        self._refuse_elsewhere(graph, inner)
        return self._engines.opened(inner, capture)

    def _refuse_elsewhere(self, graph: Path, inner: ort.InferenceSession) -> None:
        """ONNX Runtime says nothing when it runs a node, or everything, on the CPU instead."""
        if inner.get_providers()[0] != PROVIDER:
            raise DeviceUnavailable(
                f"{graph.name} was asked to run on CUDA but runs on {inner.get_providers()[0]}: the libraries of CUDA "
                "or cuDNN are missing; run: pip install 'cockpit-voice[gpu]'"
            )
        elsewhere = nodes_elsewhere(inner)
        heavy = sorted(set(elsewhere) & HEAVY)
        if heavy:
            raise DeviceUnavailable(
                f"{graph.name}: CUDA has no kernel for {', '.join(heavy)} as this graph has them, so they would run on "
                "the CPU; use a model that was built for the GPU"
            )

    def load_weights(self, folder: Path) -> dict[str, ort.OrtValue]:
        path = folder / WEIGHT_INDEX
        if not path.is_file():
            raise ModelMissing(f"{path} is missing; run: {fetch_command(folder.name)}")
        index = json.loads(path.read_text(encoding="utf-8"))
        file = np.memmap(folder / index["file"], np.uint8, "r")
        tensors = {
            name: (int(said["offset"]), tuple(said["shape"]), np.dtype(said["dtype"]))
            for name, said in index["tensors"].items()
        }
        sizes = {name: int(np.prod(shape)) * dtype.itemsize for name, (_, shape, dtype) in tensors.items()}
        base = self._engines.block(max(ALIGN_BYTES, sum(map(_aligned, sizes.values()))))
        out, at = {}, base
        for name, (offset, shape, dtype) in tensors.items():
            self._copy_up(at, file[offset : offset + sizes[name]])
            out[name] = self._engines.lend(Buffer(at, shape, dtype, self.device, self._engines))
            at += _aligned(sizes[name])
        self._memory.synchronise(self.stream)
        return out

    def step_decoder(self, model: StepModel) -> StepDecoder | str:
        return self._engines.step_decoder(model, self, self.lane)

    # --- memory ----------------------------------------------------------------------------------------------------
    def allocate(self, shape: Sequence[int], dtype: Any) -> Buffer:
        kind = np.dtype(dtype)
        size = max(1, int(np.prod(tuple(shape), dtype=np.int64)) * kind.itemsize)
        address = self._engines.block(size)
        self._memory.zero(address, size, self.stream)
        return Buffer(address, tuple(shape), kind, self.device, self._engines)

    def write(self, buffer: Buffer, values: NDArray[Any]) -> None:
        data = np.ascontiguousarray(values, buffer.dtype)
        if data.size * data.itemsize != buffer.size_bytes:
            raise ValueError(f"values of shape {data.shape} do not fill a buffer of shape {buffer.shape}")
        self._copy_up(buffer.address, data.reshape(-1).view(np.uint8))

    def _copy_up(self, address: int, data: NDArray[np.uint8]) -> None:
        """Queued when it is small; in turn with the other lanes' copies, and finished, when it is not."""
        if data.size < BULK_BYTES:
            self._stage_up(address, data)
            return

        def move(offset: int, size: int) -> None:
            self._stage_up(address + offset, data[offset : offset + size])
            self._memory.synchronise(self.stream)
            self._used = 0

        self._engines.copies.copy(self.lane, data.size, move)

    def _stage_up(self, address: int, data: NDArray[np.uint8]) -> None:
        """Through the staging memory, piece by piece; a piece is not overwritten before the stream has read it."""
        half = STAGING_BYTES // 2
        done = 0
        while done < data.size:
            if self._used == half:
                self._memory.synchronise(self.stream)
                self._used = 0
            size = min(half - self._used, data.size - done)
            piece = np.ascontiguousarray(data[done : done + size])
            ctypes.memmove(self._up + self._used, piece.ctypes.data, size)
            self._memory.upload(address + done, self._up + self._used, size, self.stream)
            self._used = min(half, _aligned(self._used + size))
            done += size

    def read(self, buffer: Buffer) -> NDArray[Any]:
        out = np.empty(buffer.shape, buffer.dtype)

        def move(offset: int, size: int) -> None:
            self._stage_down(out.ctypes.data + offset, buffer.address + offset, size)

        if buffer.size_bytes < BULK_BYTES:
            move(0, buffer.size_bytes)
        else:
            self._memory.synchronise(self.stream)  # what runs there must not take the copies' turn
            self._engines.copies.copy(self.lane, buffer.size_bytes, move)
        self._used = 0  # the stream is idle: all of the staging memory is free again
        return out

    def copy(self, source: Buffer, target: Buffer) -> None:
        same_size(source, target)
        self._memory.move(target.address, source.address, source.size_bytes, self.stream)

    def _stage_down(self, host: int, address: int, size_bytes: int) -> None:
        half, done = STAGING_BYTES // 2, 0
        while done < size_bytes:
            size = min(half, size_bytes - done)
            self._memory.download(self._down, address + done, size, self.stream)
            self._memory.synchronise(self.stream)
            ctypes.memmove(host + done, self._down, size)
            done += size


def _aligned(size_bytes: int) -> int:
    return -(-size_bytes // ALIGN_BYTES) * ALIGN_BYTES
