"""Where an engine's sessions run and where its buffers live: the one seam between engines and devices.

Engines know no device library. They open graphs, allocate buffers and run bindings through a `Placement`; the CPU's is
here, a GPU lane's is in cockpit/device/. A graph's own input types say what its buffers hold, so the same engine code
serves float32 and float16 builds.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any, ClassVar, Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.engines import preemption
from models.errors import DeviceUnavailable, ModelDamaged, ModelMissing, fetch_command

_DTYPES: dict[str, type[np.generic]] = {
    "tensor(float)": np.float32,
    "tensor(float16)": np.float16,
    "tensor(int64)": np.int64,
    "tensor(int32)": np.int32,
    "tensor(bool)": np.bool_,
}


WEIGHT_INDEX = "weights.json"
"""Beside the graphs: {"file": name, "tensors": {name: {"dtype": numpy's, "shape": [...], "offset": bytes}}}."""


def dtype_of(meta: Any) -> np.dtype[Any]:
    """The numpy type of a session's input or output (`get_inputs()[i]`)."""
    return np.dtype(_DTYPES[meta.type])


@dataclass(frozen=True, slots=True)
class Buffer:
    """Memory of fixed size beside the sessions that use it, C-contiguous.

    address: of its first byte, on `device` ("cpu" or "cuda"). owner: whatever must live as long as the memory.
    """

    address: int
    shape: tuple[int, ...]
    dtype: np.dtype[Any]
    device: str
    owner: object

    @property
    def size_bytes(self) -> int:
        return int(np.prod(self.shape, dtype=np.int64)) * self.dtype.itemsize

    def part(self, offset_bytes: int, shape: Sequence[int], dtype: np.dtype[Any] | None = None) -> Buffer:
        """A view into this buffer. Raises ValueError when it reaches beyond the end."""
        view = Buffer(self.address + offset_bytes, tuple(shape), dtype or self.dtype, self.device, self.owner)
        if offset_bytes < 0 or offset_bytes + view.size_bytes > self.size_bytes:
            raise ValueError(f"{view.size_bytes} bytes at {offset_bytes} do not lie in {self.size_bytes}")
        return view

    def bind_input(self, binding: ort.IOBinding, name: str) -> None:
        binding.bind_input(name, self.device, 0, self.dtype.type, self.shape, self.address)

    def bind_output(self, binding: ort.IOBinding, name: str) -> None:
        binding.bind_output(name, self.device, 0, self.dtype.type, self.shape, self.address)


class Placement(Protocol):
    """One lane as an engine sees it. One thread uses it at a time."""

    device: str
    """"cpu" or "cuda"."""

    def open(
        self, graph: Path, *, weights: Mapping[str, ort.OrtValue] | None = None, capture: bool = False
    ) -> GraphSession:
        """A session on exactly this placement's provider.

        weights: initializers by name, held once and shared by every session that is given them (see
        `load_weights`); they must outlive the session. capture: every run of fixed shapes may be captured as a device
        graph by `Session.run(graph_id=...)`; allowed only where every node of the graph runs on the device.
        Raises ModelMissing, ModelDamaged for what is no graph, and DeviceUnavailable when anything would run elsewhere.
        """
        ...

    def load_weights(self, folder: Path) -> dict[str, ort.OrtValue]:
        """The external initializers of every graph in `folder`, in this placement's memory, for `open`: loaded once,
        however many sessions and lanes use them. Read from the index that the builder wrote (WEIGHT_INDEX).

        Empty where sessions share the file's pages by themselves. Raises ModelMissing without an index.
        """
        ...

    def allocate(self, shape: Sequence[int], dtype: Any) -> Buffer:
        """Zeroed memory. Raises DeviceUnavailable when there is not enough."""
        ...

    def write(self, buffer: Buffer, values: NDArray[Any]) -> None:
        """Copy host values of the same shape and dtype into `buffer`, before whatever runs next on this placement."""
        ...

    def read(self, buffer: Buffer) -> NDArray[Any]:
        """Wait for what runs on this placement, then copy `buffer` to the host."""
        ...

    def copy(self, source: Buffer, target: Buffer) -> None:
        """Copy between two buffers of one size in this placement's memory, after what runs there and before what
        comes next. They must not overlap. Raises ValueError for sizes that differ.
        """
        ...


class GraphSession(Protocol):
    """One opened graph."""

    inner: ort.InferenceSession

    def binding(self) -> ort.IOBinding:
        """An empty binding to fill with `Buffer.bind_input` and `Buffer.bind_output`."""
        ...

    def run(self, binding: ort.IOBinding, *, graph_id: int = -1) -> None:
        """Run, or queue, what is bound; `Placement.read` waits for it.

        graph_id: 0 or more names one set of shapes and addresses: its third run is captured as a device graph, later
        ones replay it. Ignored on a CPU. Small inputs bound with `bind_cpu_input` are never captured: use buffers.
        """
        ...


class CpuSession:
    """A session on the CPU. Its runs may be ended for somebody more urgent: see models.engines.preemption."""

    def __init__(self, inner: ort.InferenceSession) -> None:
        self.inner = inner

    def binding(self) -> ort.IOBinding:
        return self.inner.io_binding()

    def run(self, binding: ort.IOBinding, *, graph_id: int = -1) -> None:
        preemption.run(lambda options: self.inner.run_with_iobinding(binding, options))


class CpuPlacement:
    """The CPU with `threads` intra-op threads. See Placement.

    spin_us: so long workers spin between two operators of a run (never between runs) before they sleep; 0: not at all.
    """

    device = "cpu"
    profiles: ClassVar[Path | None] = None
    """Folder that sessions opened from now on write ONNX Runtime's profile to when they end; None: no profiles."""

    def __init__(self, threads: int = 2, *, spin_us: int = 0) -> None:
        self.threads = threads
        self.spin_us = spin_us

    def open(
        self,
        graph: Path,
        *,
        weights: Mapping[str, ort.OrtValue] | None = None,
        capture: bool = False,
        changed: bytes | None = None,
    ) -> CpuSession:
        """changed: the graph to open instead of that in the file, with the same weights beside it."""
        if not graph.is_file():
            raise ModelMissing(f"{graph} is missing; run: {fetch_command(graph.parent.name)}")
        options = ort.SessionOptions()
        options.intra_op_num_threads = self.threads
        options.inter_op_num_threads = 1
        if self.spin_us:
            options.add_session_config_entry("session.force_spinning_stop", "1")
            options.add_session_config_entry("session.intra_op.spin_duration_us", str(self.spin_us))
        else:
            options.add_session_config_entry("session.intra_op.allow_spinning", "0")
        options.log_severity_level = 3
        if self.profiles is not None:
            options.enable_profiling = True
            options.profile_file_prefix = str(self.profiles / graph.stem)
        for name, value in (weights or {}).items():
            options.add_initializer(name, value)
        if changed is not None:
            options.add_session_config_entry("session.model_external_initializers_file_folder_path", str(graph.parent))
        try:
            session = ort.InferenceSession(changed or str(graph), options, providers=["CPUExecutionProvider"])
        except Exception as error:  # ONNX Runtime's exceptions have no base class of their own
            raise ModelDamaged(f"{graph} cannot be opened: {error}; run: {fetch_command(graph.parent.name)}") from error
        if session.get_providers()[0] != "CPUExecutionProvider":
            raise DeviceUnavailable(f"{graph.name} was asked to run on the CPU but runs on {session.get_providers()}")
        return CpuSession(session)

    def load_weights(self, folder: Path) -> dict[str, ort.OrtValue]:
        return {}

    def allocate(self, shape: Sequence[int], dtype: Any) -> Buffer:
        values = np.zeros(tuple(shape), dtype)
        return Buffer(values.ctypes.data, values.shape, values.dtype, self.device, values)

    def write(self, buffer: Buffer, values: NDArray[Any]) -> None:
        view(buffer)[...] = values

    def read(self, buffer: Buffer) -> NDArray[Any]:
        return view(buffer).copy()

    def copy(self, source: Buffer, target: Buffer) -> None:
        same_size(source, target)
        view(target)[...] = view(source)


def same_size(source: Buffer, target: Buffer) -> None:
    """Raises ValueError for buffers that cannot be copied one into the other."""
    if source.size_bytes != target.size_bytes:
        raise ValueError(f"{source.size_bytes} bytes do not fill a buffer of {target.size_bytes}")


def view(buffer: Buffer) -> NDArray[Any]:
    """A CPU buffer's memory as an array; writes go through."""
    import ctypes

    raw: Any = (ctypes.c_char * buffer.size_bytes).from_address(buffer.address)
    values: NDArray[Any] = np.frombuffer(raw, buffer.dtype).reshape(buffer.shape)
    return values
