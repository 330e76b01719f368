"""The lanes of the GPU benchmarks, and how work on a stream is timed. Nothing here needs torch."""

from __future__ import annotations

import statistics
from typing import Any

from benchmarks.gemma.session import DecodeSession, DecodeShape
from cockpit.device.base import LaneSpec
from cockpit.device.cuda.device import CudaDevice, open_cuda
from cockpit.device.cuda.driver import KERNELS, BoundDriver, compile_cubin

CAPACITY = 2048
"""Tokens of cache that the decode benchmarks allocate."""


def open_lanes(driver: BoundDriver, navigation_sms: int = 32) -> CudaDevice:
    """The lanes of the GPU benchmarks: disjoint ones and overlapping ones; a system cluster belongs to no task."""
    facts = driver.open(0)
    unit = facts.unit_sms
    units, _, rest = driver.split()
    dialogue = len(units) * unit - navigation_sms - (0 if rest >= unit else unit)
    clusters = {"navigation": navigation_sms, "dialogue": dialogue, "system": unit}
    both = ("navigation", "dialogue")
    lanes = [
        LaneSpec("navigation:1", ("navigation",), priority=9),
        LaneSpec("navigation:2", both, priority=9),
        LaneSpec("dialogue:1", ("dialogue",), priority=5),
        LaneSpec("dialogue:2", both, priority=5),
        LaneSpec("system", ("system",), priority=1),
    ]
    return open_cuda(clusters, lanes, driver)


def lane_library(driver: BoundDriver, device: CudaDevice) -> Any:
    """kernels/lane.cu, compiled and loaded."""
    return driver.library(compile_cubin((KERNELS / "lane.cu").read_text(), device.facts.capability, ()))


def bandwidth_gb_s(driver: BoundDriver, device: CudaDevice, stream: int) -> dict[str, float]:
    """Device-to-device copy (read + written bytes) and a read-only kernel, medians of 15, GB/s."""
    size = 4 << 30
    a, b, out = driver.allocate(size), driver.allocate(size), driver.allocate(16)
    read = driver.kernel(lane_library(driver, device), "stream_read")
    driver.check(driver.api.cuMemsetD32Async(a, 0x3C9D51E7, size // 4, stream))

    def copy() -> None:
        driver.check(driver.api.cuMemcpyDtoDAsync(b, a, size, stream))

    def stream_read() -> None:
        grid = (device.units * 4, 1, 1)
        arguments = (a.to_bytes(8, "little"), (size // 16).to_bytes(8, "little"), out.to_bytes(8, "little"))
        driver.launch(read, grid, 512, stream, *arguments)

    result = {}
    for name, work, moved in (("copy", copy, 2 * size), ("read", stream_read, size)):
        times = timed(driver, stream, work, 15)
        result[name] = moved / statistics.median(times) / 1e6
    for address in (a, b, out):
        driver.free(address)
    return result


def timed(driver: BoundDriver, stream: int, work: Any, rounds: int, warm: int = 3) -> list[float]:
    """Milliseconds of `work` on the device, `rounds` times."""
    began, ended = driver.event(), driver.event()
    for _ in range(warm):
        work()
    times = []
    for _ in range(rounds):
        driver.record(began, stream)
        work()
        driver.record(ended, stream)
        driver.wait_event(ended)
        times.append(driver.elapsed_ms(began, ended))
    return times


def token_ms(session: DecodeSession, context: int, tokens: int = 40, rounds: int = 7) -> float:
    """Milliseconds per token: median over rounds of `tokens` replays from the same position."""
    driver = session.driver

    def burst() -> None:
        for _ in range(tokens):
            session.replay()

    times = []
    for _ in range(rounds + 1):
        session.seek(7, context)
        times += timed(driver, session.stream, burst, 1, warm=0)
    return statistics.median(times[1:]) / tokens


def kernel_us(driver: BoundDriver, session: DecodeSession, shape: DecodeShape, copy: float) -> dict[str, Any]:
    """Microseconds of each kernel of a layer in a chain of its own kind over all layers, and its bandwidth bound."""
    launch, out = session.driver.launch, {}
    for kind, matrix in (
        ("qkv", "qkv"),
        ("attention", None),
        ("o_proj", "o"),
        ("gate_up", "gate_up"),
        ("down", "down"),
    ):
        wanted = session.kernels.functions[kind]

        def only(kernel: Any, *arguments: Any, wanted: Any = wanted, **options: Any) -> None:
            if kernel is wanted:
                launch(kernel, *arguments, **options)

        driver.launch = only  # type: ignore[method-assign]
        graph = driver.capture(session.stream, session.launch_token)
        driver.launch = launch  # type: ignore[method-assign]
        session.seek(7, 1024)
        times = timed(driver, session.stream, lambda graph=graph: driver.replay(graph, session.stream), 9)
        size = getattr(session.weights.layers[0], matrix).size_bytes if matrix else 0
        out[kind] = {"us": 1000 * statistics.median(times) / shape.layers, "bound_us": size / copy / 1e3}
    return out
