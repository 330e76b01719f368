"""Pages of memory that several places of the process show: written once, mapped where they are needed.

They lie in a file without a name (memfd_create). A place that shows some maps them privately: whoever writes there gets
a copy of that page from the kernel, so what is stored here never changes. Linux only; libc's own mmap, since Python's
cannot be told the address.
"""

from __future__ import annotations

import ctypes
import mmap
import os
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any
from weakref import finalize

from numpy.typing import NDArray

PAGE_BYTES = mmap.PAGESIZE
MAP_NORESERVE = getattr(mmap, "MAP_NORESERVE", 0x4000)
"""Python names it since 3.13; the number is Linux's on x86 and ARM."""
_MAP_FIXED = 0x10
_PUNCH_HOLE, _KEEP_SIZE = 0x02, 0x01
_PROTECTION = mmap.PROT_READ | mmap.PROT_WRITE
_FAILED = ctypes.c_void_p(-1).value


def _libc() -> ctypes.CDLL:
    libc = ctypes.CDLL(None, use_errno=True)
    libc.mmap.restype = ctypes.c_void_p
    libc.mmap.argtypes = (
        ctypes.c_void_p,
        ctypes.c_size_t,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_int,
        ctypes.c_longlong,
    )
    libc.madvise.argtypes = ctypes.c_void_p, ctypes.c_size_t, ctypes.c_int
    libc.fallocate.argtypes = ctypes.c_int, ctypes.c_int, ctypes.c_longlong, ctypes.c_longlong
    return libc


def why_not() -> str:
    """Why this system cannot map pages in several places; empty: it can."""
    if sys.platform != "linux" or not hasattr(os, "memfd_create"):
        return f"no memfd_create on {sys.platform}"
    if ctypes.sizeof(ctypes.c_void_p) < 8:
        return "32-bit addresses"
    return ""


class PageFile:
    """The file, its length a multiple of pages; parts of it that were never written take no memory.

    Raises OSError where the system has no memfd_create or gives none.
    """

    def __init__(self) -> None:
        reason = why_not()
        if reason:
            raise OSError(reason)
        self._libc = _libc()
        self._fd = os.memfd_create("cockpit-kv", os.MFD_CLOEXEC)
        self._size_bytes = 0
        finalize(self, os.close, self._fd).atexit = False

    @property
    def resident_bytes(self) -> int:
        """Memory that its pages take, however often they are shown."""
        return os.fstat(self._fd).st_blocks * 512

    def room(self, size_bytes: int) -> int:
        """Offset of so many further bytes. Raises OSError when the file cannot be so long."""
        offset = self._size_bytes
        os.ftruncate(self._fd, offset + size_bytes)
        self._size_bytes += size_bytes
        return offset

    def write(self, values: NDArray[Any], offset: int) -> None:
        """Store a contiguous array. Raises OSError when there is no memory."""
        left = values.data.cast("B")
        while left:
            done = os.pwrite(self._fd, left, offset)
            left, offset = left[done:], offset + done

    def read(self, into: NDArray[Any], offset: int) -> None:
        """Fill a contiguous array."""
        left = into.data.cast("B")
        while left:
            done = os.preadv(self._fd, [left], offset)
            if not done:
                raise OSError(f"nothing is stored at {offset}")
            left, offset = left[done:], offset + done

    def show(self, address: int, size_bytes: int, offset: int) -> None:
        """Map so much of the file at `address`, in place of what is there. Raises OSError; what is there may be either
        then.
        """
        self._map(address, size_bytes, mmap.MAP_PRIVATE, self._fd, offset)

    def hide(self, address: int, size_bytes: int) -> None:
        """Let empty pages be at `address`, in place of what is shown there. Raises OSError as `show`."""
        self._map(address, size_bytes, mmap.MAP_PRIVATE | mmap.MAP_ANONYMOUS, -1, 0)
        self._libc.madvise(address, size_bytes, mmap.MADV_NOHUGEPAGE)

    def drop(self, ranges: Sequence[tuple[int, int]]) -> None:
        """Give the memory of these (offset, bytes) back. Nobody may show them any more."""
        for offset, size_bytes in ranges:
            self._libc.fallocate(self._fd, _PUNCH_HOLE | _KEEP_SIZE, offset, size_bytes)

    def _map(self, address: int, size_bytes: int, flags: int, fd: int, offset: int) -> None:
        flags |= _MAP_FIXED | MAP_NORESERVE
        if self._libc.mmap(address, size_bytes, _PROTECTION, flags, fd, offset) == _FAILED:
            code = ctypes.get_errno()
            raise OSError(code, f"mapping {size_bytes} bytes: {os.strerror(code)}")


def mappings_left() -> int:
    """Half of the mappings that this process may still have (`vm.max_map_count`): the other half is everybody else's.

    Raises OSError where the system does not tell.
    """
    most = int(Path("/proc/sys/vm/max_map_count").read_text(encoding="ascii"))
    with open("/proc/self/maps", "rb") as maps:
        return max(0, most - sum(1 for _ in maps)) // 2
