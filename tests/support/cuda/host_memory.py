"""Device memory that is host memory."""

from __future__ import annotations

import ctypes
from typing import Any


class HostMemory:
    """Copies happen when the stream is waited for, as late as a device may do them."""

    def __init__(self) -> None:
        self.blocks: dict[int, Any] = {}
        self.queued: list[tuple[int, int, int]] = []

    def allocate(self, size_bytes: int) -> int:
        block = ctypes.create_string_buffer(b"\xff" * size_bytes, size_bytes)
        self.blocks[ctypes.addressof(block)] = block
        return ctypes.addressof(block)

    pinned = allocate

    def free(self, address: int) -> None:
        del self.blocks[address]

    free_pinned = free

    def zero(self, address: int, size_bytes: int, stream: int) -> None:
        ctypes.memset(address, 0, size_bytes)

    def upload(self, address: int, host: int, size_bytes: int, stream: int) -> None:
        self.queued.append((address, host, size_bytes))

    def download(self, host: int, address: int, size_bytes: int, stream: int) -> None:
        self.queued.append((host, address, size_bytes))

    def move(self, target: int, source: int, size_bytes: int, stream: int) -> None:
        self.queued.append((target, source, size_bytes))

    def synchronise(self, stream: int) -> None:
        for to, source, size in self.queued:
            ctypes.memmove(to, source, size)
        self.queued.clear()
