"""The gate on a device, as far as the host can tell: the word that kernels read follows who holds it."""

from __future__ import annotations

import ctypes
import struct
import threading
from typing import Any, cast

from cockpit.device.cuda.driver import BoundDriver
from cockpit.device.cuda.gate import DeviceGate


class FakeLauncher:
    """Records the arguments of launches."""

    def __init__(self) -> None:
        self.launches: list[tuple[bytes, ...]] = []

    def launch(self, kernel: Any, grid: tuple[int, int, int], block: int, stream: int, *arguments: bytes) -> None:
        self.launches.append(arguments)


def make_gate(launcher: FakeLauncher) -> DeviceGate:
    page = (ctypes.c_uint32 * 1024)()
    word = ctypes.c_uint32.from_buffer(page)
    return DeviceGate(cast(BoundDriver, launcher), "gate", word, 0x1000)


def test_gate_word_follows_the_holders() -> None:
    gate = make_gate(FakeLauncher())
    with gate.hold():
        assert (gate._word.value, gate.closed) == (1, True)
        with gate.hold():
            pass
        assert (gate._word.value, gate.closed) == (1, True), "another still holds it"
    assert (gate._word.value, gate.closed) == (0, False)


def test_gate_kernel_is_told_where_the_word_is() -> None:
    launcher = FakeLauncher()
    make_gate(launcher).launch(9)
    (launch,) = launcher.launches
    assert struct.unpack("Q", launch[0]) == (0x1000,)
    assert struct.unpack("Q", launch[2])[0] > 0, "a parked kernel must give up some day"


def test_gate_word_is_never_left_closed_by_a_race() -> None:
    gate = make_gate(FakeLauncher())

    def urgent() -> None:
        for _ in range(300):
            with gate.hold():
                assert gate._word.value == 1

    threads = [threading.Thread(target=urgent) for _ in range(4)]
    for thread in threads:
        thread.start()
    for thread in threads:
        thread.join()
    assert (gate._word.value, gate.holders) == (0, 0)
