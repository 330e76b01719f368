"""cuBLAS through its C interface: the matrix work of prefill on a lane's stream, without torch.

Only what prefill needs: y = x . W^T in fp16 with fp32 accumulation. Everything is captured into graphs at start; cuBLAS
is told how many SMs the lane has, because its heuristics otherwise size grids for the whole device.
"""

from __future__ import annotations

import ctypes
from importlib.util import find_spec
from pathlib import Path

from cockpit.device.cuda.driver import BoundDriver
from models.errors import DeviceUnavailable

_R_16F, _COMPUTE_32F, _DEFAULT_ALGORITHM = 2, 68, -1
_NOT_TRANSPOSED, _TRANSPOSED = 0, 1
_WORKSPACE_BYTES = 64 << 20


def _load() -> ctypes.CDLL:
    packages = find_spec("nvidia")
    for root in (packages and packages.submodule_search_locations) or ():
        for found in sorted(Path(root).glob("*/lib/libcublas.so.*")):
            return ctypes.CDLL(str(found), mode=ctypes.RTLD_GLOBAL)
    raise DeviceUnavailable("cuBLAS is not installed; run: pip install 'cockpit-voice[gpu]'")


class Gemm:
    """One cuBLAS handle for one stream. Made by `open_gemm`; not thread-safe."""

    def __init__(self, library: ctypes.CDLL, handle: ctypes.c_void_p, stream: int) -> None:
        self._library = library
        self._handle = handle
        self.stream = stream

    def multiply(self, x: int, weights: int, out: int, rows: int, columns: int, inner: int) -> None:
        """out (rows, columns) = x (rows, inner) . weights (columns, inner)^T; fp16 addresses, row-major."""
        one, zero = ctypes.c_float(1.0), ctypes.c_float(0.0)
        pointer = ctypes.c_void_p
        status = self._library.cublasGemmEx(
            self._handle,
            _TRANSPOSED,
            _NOT_TRANSPOSED,
            ctypes.c_int(columns),
            ctypes.c_int(rows),
            ctypes.c_int(inner),
            ctypes.byref(one),
            pointer(weights),
            _R_16F,
            ctypes.c_int(inner),
            pointer(x),
            _R_16F,
            ctypes.c_int(inner),
            ctypes.byref(zero),
            pointer(out),
            _R_16F,
            ctypes.c_int(columns),
            _COMPUTE_32F,
            _DEFAULT_ALGORITHM,
        )
        _check(status, "cublasGemmEx")


def _check(status: int, call: str) -> None:
    if status != 0:
        raise DeviceUnavailable(f"{call} failed with status {status}: see `cockpit doctor`")


def open_gemm(driver: BoundDriver, stream: int, sms: int, whole_sms: int) -> Gemm:
    """A handle on `stream`. sms: what the stream's lane has; whole_sms: what the device has."""
    library = _load()
    handle = ctypes.c_void_p()
    with driver.current():
        _check(library.cublasCreate_v2(ctypes.byref(handle)), "cublasCreate")
        _check(library.cublasSetStream_v2(handle, ctypes.c_void_p(stream)), "cublasSetStream")
        workspace = driver.allocate(_WORKSPACE_BYTES)
        size = ctypes.c_size_t(_WORKSPACE_BYTES)
        _check(library.cublasSetWorkspace_v2(handle, ctypes.c_void_p(workspace), size), "cublasSetWorkspace")
        if sms < whole_sms:
            _check(library.cublasSetSmCountTarget(handle, ctypes.c_int(sms)), "cublasSetSmCountTarget")
    return Gemm(library, handle, stream)
