"""Engines on a device for benchmarks: placements that remember their sessions, and a CPU that stands in for a GPU."""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import onnxruntime as ort
from numpy.typing import NDArray

from models.engines.placement import Buffer, CpuPlacement, GraphSession, Placement
from models.store.store import Store


class TrackedPlacement:
    """A placement that hands on to `inner` and remembers what was opened.

    capture False: no device graphs. weights: where the weights of a folder are kept for other models of one device.
    """

    def __init__(
        self,
        inner: Placement,
        *,
        capture: bool = True,
        weights: dict[Path, dict[str, ort.OrtValue]] | None = None,
    ) -> None:
        self.inner = inner
        self.device = inner.device
        self.opened: dict[str, GraphSession] = {}
        self._capture = capture
        self._weights = weights

    def open(
        self, graph: Path, *, weights: Mapping[str, ort.OrtValue] | None = None, capture: bool = False
    ) -> GraphSession:
        session = self.inner.open(graph, weights=weights, capture=capture and self._capture)
        self.opened[f"{graph.parent.name}/{graph.name}"] = session
        return session

    def load_weights(self, folder: Path) -> dict[str, ort.OrtValue]:
        if self._weights is None:
            return self.inner.load_weights(folder)
        if folder not in self._weights:
            self._weights[folder] = self.inner.load_weights(folder)
        return self._weights[folder]

    def allocate(self, shape: Sequence[int], dtype: Any) -> Buffer:
        return self.inner.allocate(shape, dtype)

    def write(self, buffer: Buffer, values: NDArray[Any]) -> None:
        self.inner.write(buffer, values)

    def read(self, buffer: Buffer) -> NDArray[Any]:
        return self.inner.read(buffer)

    def copy(self, source: Buffer, target: Buffer) -> None:
        self.inner.copy(source, target)

    def __getattr__(self, name: str) -> Any:
        """What the inner placement has beyond the contract."""
        return getattr(self.inner, name)

    def elsewhere(self) -> dict[str, dict[str, int]]:
        """Graph -> op type -> nodes that ONNX Runtime put on the CPU provider. Empty on a CPU."""
        if self.device == "cpu":
            return {}
        from cockpit.device.cuda.sessions import nodes_elsewhere

        return {name: nodes_elsewhere(session.inner) for name, session in self.opened.items()}


@dataclass
class Bench:
    """A device under test. placement: a fresh one in the lane of that name. models: engine kind -> store name."""

    name: str
    models: dict[str, str]
    placement: Callable[[str], Placement]
    settle: Callable[[], None]
    used_bytes: Callable[[], int]
    lanes: tuple[str, str]
    extra: dict[str, Any] = field(default_factory=dict)


STAND_IN = {"asr": "whisper-base-f32-device", "llm": "smollm2-135m-instruct-f32-device", "tts": "piper-en-joe-gpu"}
"""The graphs of a GPU in float32, which a CPU runs too."""
ON_CPU = {"asr": "whisper-base", "llm": "qwen2.5-coder-0.5b-instruct", "tts": "piper-en-joe"}
ON_CUDA = {"asr": "whisper-base-f16", "llm": "qwen2.5-coder-0.5b-instruct-f16", "tts": "piper-en-joe-gpu"}


@contextmanager
def opened(kind: str, threads: int, kernels: Path | None = None) -> Iterator[Bench]:
    """kind "cuda": two wide lanes of the first GPU. "cpu": the same code on `threads` cores, to try it out.

    kernels: the model cache whose decode kernels make single tokens, as in the product; None: ONNX Runtime does.

    Raises DeviceUnavailable without a usable GPU.
    """
    if kind == "cpu":
        yield Bench("CPU, standing in", STAND_IN, lambda _: CpuPlacement(threads), _nothing, resident_bytes, ("a", "b"))
        return
    from benchmarks.harness.gpu import open_lanes
    from cockpit.device.cuda.driver import BoundDriver
    from cockpit.device.cuda.kernel_store import KernelStore
    from cockpit.device.cuda.placement import CudaEngines
    from cockpit.device.cuda_decode.serving import StepDecoders

    driver = BoundDriver()
    device = open_lanes(driver)
    decoders = None if kernels is None else StepDecoders(driver, device.facts, KernelStore(kernels))
    engines = CudaEngines(device, decoders=decoders)
    lanes = ("dialogue:2", "navigation:2")

    def settle() -> None:
        for lane in lanes:
            device.synchronise(lane)

    try:
        extra = {"cuda": device, "engines": engines, "driver": driver}
        yield Bench(device.name, ON_CUDA, engines.placement, settle, nvml_used_bytes, lanes, extra)
    finally:
        engines.close()
        device.close()


def model_folder(name: str, store: Store, folder: Path | None) -> Path:
    """`folder`/name where a folder of built models was given, else what the store has built. Raises ModelMissing."""
    return folder / name if folder is not None else store.built(name)


def nvml_used_bytes() -> int:
    """Memory in use on the first GPU, by all processes."""
    import pynvml

    pynvml.nvmlInit()
    return int(pynvml.nvmlDeviceGetMemoryInfo(pynvml.nvmlDeviceGetHandleByIndex(0)).used)


def resident_bytes() -> int:
    """Memory of this process that is in RAM."""
    pages = int(Path("/proc/self/statm").read_text(encoding="ascii").split()[1])
    return pages * os.sysconf("SC_PAGE_SIZE")


def _nothing() -> None:
    return None
