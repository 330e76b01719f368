"""A gate that the device itself stops at: yielding inside a CUDA graph, without the host on the way.

The running task's graphs hold a one-thread gate kernel at every boundary (some layers apart). The urgent task's thread
writes one word of pinned host memory; work already queued stops at its next boundary and goes on by itself when the
word is cleared. The host side is an ordinary YieldGate, so a task that checks `closed` between graphs parks too.
"""

from __future__ import annotations

import ctypes
import struct
from typing import Any

from cockpit.device.base import YieldGate
from cockpit.device.cuda.driver import BoundDriver

_TIMEOUT_NS = 2_000_000_000
"""A parked kernel goes on after this long and counts it: a lost urgent task must not hang the device."""


class DeviceGate(YieldGate):
    """A YieldGate whose state is also a word that kernels read. `stops`: boundaries at which the device waited."""

    __slots__ = ("_address", "_driver", "_kernel", "_state", "_word")

    def __init__(self, driver: BoundDriver, kernel: Any, word: ctypes.c_uint32, address: int) -> None:
        super().__init__()
        self._driver = driver
        self._kernel = kernel
        self._word = word
        self._address = address
        # Written by the device, in the same pinned page: stops, then stops that timed out.
        self._state = (ctypes.c_uint32 * 2).from_address(ctypes.addressof(word) + 64)

    def close(self) -> None:
        super().close()
        self._publish()

    def open(self) -> None:
        super().open()
        self._publish()

    def _publish(self) -> None:
        with self._lock:  # the last writer must be the one that saw the last holder
            self._word.value = 1 if self.holders else 0

    def launch(self, stream: int) -> None:
        """Put one boundary on `stream` (also while it is being captured)."""
        arguments = (
            struct.pack("Q", self._address),
            struct.pack("Q", self._address + 64),
            struct.pack("Q", _TIMEOUT_NS),
        )
        self._driver.launch(self._kernel, (1, 1, 1), 1, stream, *arguments)

    @property
    def stops(self) -> int:
        return int(self._state[0])

    @property
    def timeouts(self) -> int:
        return int(self._state[1])


def open_gate(driver: BoundDriver, library: Any) -> DeviceGate:
    """Make a gate. library: the loaded kernels/lane.cu."""
    word, address = driver.host_word()
    kernel = driver.kernel(library, "gate")
    # A parked gate must not reshape its SM's shared memory: the urgent task's blocks would no longer fit there.
    driver.allow_shared(kernel, 0)
    return DeviceGate(driver, kernel, word, address)
