"""The decode kernels on the host: their files compiled with the host's C++ compiler, behind the driver's own calls.

One block after the other, every thread a fiber, so that indexing, barriers and arithmetic are the kernels' own. What it
does not show: timing, races between blocks, and whether the PTX does what the replacement here does.
"""

from __future__ import annotations

import ctypes
import re
import subprocess
from collections.abc import Callable, Sequence
from contextlib import AbstractContextManager, nullcontext
from pathlib import Path
from typing import Any

import numpy as np

SHIM = Path(__file__).with_name("cuda_on_host.hpp")
NAMES = ("qkv", "attention", "o_proj", "gate_up", "down", "lm_head")
"""The kernels of benchmarks/gemma/decode.cu."""
PTX = {
    "cvt.f32.f16": "f = half_float(bits)",
    "cvt.rn.f16.f32": "out = float_half(lo) | float_half(hi) << 16",
    "no_allocate.L2": "std::memcpy(w, p, sizeof w)",
    "cp.async.cg": "std::memcpy(to, from, 16)",
    "cp.async.wait_all": "",
    "mma.sync": "mma_host(c, a, b0, b1)",
    "no_allocate.v4": "v = *p",
    "no_allocate.u16": "v = *p",
    "prefetch": "(void)p",
    "dp4a": "d = dot4_host(a, b, c)",
    "griddepcontrol": "",
}


def host_source(text: str) -> str:
    """A kernel file with PTX and dynamic shared memory put in C++."""
    out, at = [], 0
    for found in re.finditer(r'\basm(?: volatile)?\((?:"[^"]*"|[^"])*?\);', text):
        (plain,) = {replaced for said, replaced in PTX.items() if said in found.group()}
        out += [text[at : found.start()], plain + ";"]
        at = found.end()
    code = "".join([*out, text[at:]])
    names = re.findall(r'extern "C" __global__ void (?:__\w+__\([^)]*\)\s+)?(\w+)\(', code)
    code = code.replace("extern __shared__ __align__(16) char shared[];", "char* shared = dynamic_shared;")
    calls = "\n".join(
        f'  if (!strcmp(name, "{name}")) launch({name}, grid, block, shared, arguments);' for name in names
    )
    parameters = "const char* name, const unsigned* grid, unsigned block, unsigned shared, void** arguments"
    return f'#include "{SHIM}"\n{code}\nextern "C" void run({parameters}) {{\n{calls}\n}}\n'


def compile_for_host(folder: Path, defines: Sequence[str], file: Path) -> ctypes.CDLL:
    """Build and load the kernels in `file`. Raises CalledProcessError when the compiler refuses."""
    source, library = folder / "decode.cpp", folder / "decode.so"
    source.write_text(host_source(file.read_text(encoding="utf-8")), encoding="utf-8")
    options = ["-std=c++17", "-O1", "-w", "-shared", "-fPIC", *(f"-D{define}" for define in defines)]
    subprocess.run(["g++", *options, "-o", str(library), str(source)], check=True, capture_output=True, text=True)
    return ctypes.CDLL(str(library))


class HostDriver:
    """The calls of BoundDriver that sessions and checkpoints make, over host memory. A kernel is its name."""

    def __init__(self, library: ctypes.CDLL) -> None:
        self.held: dict[int, Any] = {}
        self._library = library
        self._captured: list[Callable[[], None]] | None = None
        self.replayed = 0
        """Graphs that ran."""

    def allocate(self, size_bytes: int) -> int:
        memory = np.full(size_bytes + 256, 0xFF, np.uint8)  # NaN in every float format
        address = -(-memory.ctypes.data // 256) * 256
        self.held[address] = memory
        return address

    def free(self, address: int) -> None:
        del self.held[address]

    def zero(self, address: int, size_bytes: int, stream: int) -> None:
        ctypes.memset(address, 0, size_bytes)

    def write(self, address: int, data: bytes, stream: int) -> None:
        ctypes.memmove(address, data, len(data))

    def read(self, address: int, size_bytes: int, stream: int) -> bytes:
        return ctypes.string_at(address, size_bytes)

    def launch(
        self,
        kernel: str,
        grid: tuple[int, int, int],
        block: int,
        stream: int,
        *arguments: bytes,
        shared_bytes: int = 0,
        early: bool = False,
    ) -> None:
        buffers = [ctypes.create_string_buffer(data, len(data)) for data in arguments]
        pointers = (ctypes.c_void_p * len(buffers))(*[ctypes.addressof(buffer) for buffer in buffers])

        def work(buffers: list[Any] = buffers) -> None:
            self._library.run(kernel.encode(), (ctypes.c_uint * 3)(*grid), block, shared_bytes, pointers)

        assert self._captured is not None, "sessions launch while they are captured"
        self._captured.append(work)

    def library(self, image: bytes) -> bytes:
        return image

    def kernel(self, library: bytes, name: str) -> str:
        return name

    def allow_shared(self, kernel: str, size_bytes: int) -> None:
        """Host memory has no such limit."""

    def current(self) -> AbstractContextManager[None]:
        return nullcontext()

    def capture(self, stream: int, work: Callable[[], None]) -> list[Callable[[], None]]:
        self._captured = []
        work()
        graph, self._captured = self._captured, None
        return graph

    def replay(self, graph: list[Callable[[], None]], stream: int) -> None:
        self.replayed += 1
        for work in graph:
            work()
