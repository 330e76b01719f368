"""Hand memory to another library without copying it, by the DLPack protocol. Source: dlpack.h (legacy capsule)."""

from __future__ import annotations

import ctypes
from collections.abc import Sequence
from typing import Any

import numpy as np

KINDS = {"cpu": 1, "cuda": 2}
"""kDLCPU, kDLCUDA."""
_CODES = {"i": 0, "u": 1, "f": 2}
"""numpy's kind -> kDLInt, kDLUInt, kDLFloat."""


class _Device(ctypes.Structure):
    _fields_ = [("device_type", ctypes.c_int32), ("device_id", ctypes.c_int32)]


class _DataType(ctypes.Structure):
    _fields_ = [("code", ctypes.c_uint8), ("bits", ctypes.c_uint8), ("lanes", ctypes.c_uint16)]


class _Tensor(ctypes.Structure):
    _fields_ = [
        ("data", ctypes.c_void_p),
        ("device", _Device),
        ("ndim", ctypes.c_int32),
        ("dtype", _DataType),
        ("shape", ctypes.POINTER(ctypes.c_int64)),
        ("strides", ctypes.POINTER(ctypes.c_int64)),
        ("byte_offset", ctypes.c_uint64),
    ]


class _Managed(ctypes.Structure):
    _fields_ = [("tensor", _Tensor), ("manager_ctx", ctypes.c_void_p), ("deleter", ctypes.c_void_p)]


_NOTHING = ctypes.cast(ctypes.CDLL(None).getpid, ctypes.c_void_p).value
"""What the taker calls when it is done: a C function that ignores its argument. One of Python's would be gone by the
time that values are destroyed at the end of the process."""
_new_capsule = ctypes.pythonapi.PyCapsule_New
_new_capsule.restype = ctypes.py_object
_new_capsule.argtypes = [ctypes.c_void_p, ctypes.c_char_p, ctypes.c_void_p]


class Lent:
    """A C-contiguous tensor at an address, for one library that takes DLPack. It owns nothing.

    The memory must outlive the taker. The description (100 bytes) is never freed: the taker reads it once more when it
    is done, which may be after the interpreter. Raises KeyError for an unknown device or type.
    """

    def __init__(self, address: int, shape: Sequence[int], dtype: np.dtype[Any], device: str) -> None:
        self._shape = (ctypes.c_int64 * max(1, len(shape)))(*shape)
        self._device = (KINDS[device], 0)
        kind = _DataType(_CODES[dtype.kind], dtype.itemsize * 8, 1)
        tensor = _Tensor(address, _Device(*self._device), len(shape), kind, self._shape, None, 0)
        self._managed = _Managed(tensor, None, _NOTHING)

    def __dlpack__(self, *, stream: Any = None, **_: Any) -> Any:
        for part in (self._managed, self._shape):
            ctypes.pythonapi.Py_IncRef(ctypes.py_object(part))
        return _new_capsule(ctypes.addressof(self._managed), b"dltensor", None)

    def __dlpack_device__(self) -> tuple[int, int]:
        return self._device
