"""A placement on the CPU whose single tokens the decode kernels compute: decode_rows.cu on the host, same memory."""

from __future__ import annotations

import json
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast

import numpy as np
import onnxruntime as ort

from cockpit.device.base import Lane
from cockpit.device.cuda.driver import KERNELS, BoundDriver, DeviceFacts
from cockpit.device.cuda.kernel_store import KernelSource, KernelStore
from cockpit.device.cuda_decode.serving import StepDecoders, served_sources
from models.engines.llm.steps import StepDecoder, StepModel
from models.engines.placement import WEIGHT_INDEX, CpuPlacement
from tests.support.cuda.cuda_host import HostDriver, compile_for_host

FACTS = DeviceFacts("host", 2, 2, (9, 0), 13000, "00" * 16, 1 << 30)


class HostStore:
    """The kernels of one model, compiled for the host, as what a KernelStore would load."""

    def __init__(self, source: KernelSource) -> None:
        self.source = source

    def load(self, source: KernelSource, facts: DeviceFacts) -> bytes:
        assert source == self.source
        return b"cubin"


class KernelPlacement(CpuPlacement):
    """See models.engines.llm.steps.DecodesSteps. folder: the built model; scratch: where the kernels are compiled."""

    def __init__(self, folder: Path, scratch: Path) -> None:
        super().__init__(2)
        (source,) = served_sources([folder])
        self.driver = HostDriver(compile_for_host(scratch, source.defines, KERNELS / source.file))
        self.decoders = StepDecoders(cast(BoundDriver, self.driver), FACTS, cast(KernelStore, HostStore(source)))
        self._kept: list[Any] = []

    def load_weights(self, folder: Path) -> dict[str, ort.OrtValue]:
        index = json.loads((folder / WEIGHT_INDEX).read_text(encoding="utf-8"))
        file = np.memmap(folder / index["file"], np.uint8, "r")
        out = {}
        for name, said in index["tensors"].items():
            dtype, shape = np.dtype(said["dtype"]), tuple(said["shape"])
            size = int(np.prod(shape)) * dtype.itemsize
            values = np.array(file[said["offset"] : said["offset"] + size]).view(dtype).reshape(shape)
            self._kept.append(values)
            out[name] = ort.OrtValue.ortvalue_from_numpy(values)
        return out

    def step_decoder(self, model: StepModel) -> StepDecoder | str:
        lane = cast(Lane, SimpleNamespace(stream=9, units=2))
        return self.decoders.open(model, self, lane, self.driver.allocate, self.driver)
