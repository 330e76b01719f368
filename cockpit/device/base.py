"""What a compute device gives the arbiter: clusters, lanes, placement that is proved, and a gate to yield at.

A backend creates every cluster and lane when it is opened; afterwards lanes are only chosen among. No policy
lives here.
"""

from __future__ import annotations

import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, field
from importlib import import_module
from typing import Protocol, cast

from models.errors import ConfigError


@dataclass(frozen=True, slots=True)
class Cluster:
    """A fixed set of compute units. `unit_ids`: cores on a CPU, SM ids on a GPU (empty until they were observed).

    `units` 0 is legal on a CPU only: a cluster without cores of its own, whose threads the kernel places on any core.
    """

    name: str
    units: int
    unit_ids: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class LaneSpec:
    """A lane as asked for: a union of clusters. Lanes may overlap when the lower priority one yields."""

    name: str
    clusters: tuple[str, ...]
    memory_budget_bytes: int = 0
    priority: int = 5
    """0-10, 10 most urgent. A backend may map it to a stream priority; the arbiter does not count on that."""


@dataclass(frozen=True, slots=True)
class Lane:
    """A task's place to run, ready to use.

    stream: address of the lane's CUDA stream (a non-blocking stream of its green context), 0 on a CPU.
    cores: CPU cores that the lane's host threads are pinned to; empty means not pinned.
    units: compute units the lane may use (SMs or cores), after rounding to the device's granularity.
    memory_budget_bytes: device memory the lane may hold, 0 when it has no budget of its own.
    """

    name: str
    clusters: tuple[str, ...]
    units: int
    memory_budget_bytes: int = 0
    priority: int = 5
    stream: int = 0
    cores: tuple[int, ...] = ()


@dataclass(frozen=True, slots=True)
class SessionSettings:
    """What an engine must hand to ONNX Runtime so that a session runs in its lane and nowhere else.

    providers: in order; the session's active provider must equal the first one or start-up fails.
    provider_options: one mapping per provider (`user_compute_stream` on CUDA). config: session config entries.
    """

    providers: tuple[str, ...]
    provider_options: tuple[Mapping[str, str], ...]
    intra_op_num_threads: int = 0
    inter_op_num_threads: int = 1
    config: Mapping[str, str] = field(default_factory=dict)


@dataclass(frozen=True, slots=True)
class PlacementProbe:
    """Where a lane really ran. `observed`: every unit id seen; `ok`: it ran, and nowhere outside what it may use."""

    lane: str
    allowed: tuple[int, ...]
    observed: tuple[int, ...]
    ok: bool
    detail: str = ""


@dataclass(frozen=True, slots=True)
class MemoryInfo:
    """Device memory in bytes (system memory on a CPU)."""

    total_bytes: int
    free_bytes: int

    @property
    def used_bytes(self) -> int:
        return self.total_bytes - self.free_bytes

    @property
    def pressure(self) -> float:
        """Share in use, 0 to 1."""
        return self.used_bytes / self.total_bytes if self.total_bytes else 0.0


@dataclass(frozen=True, slots=True)
class SyncCost:
    """Cost of one event record + synchronise (CUDA) or one thread event set + wait (CPU), microseconds."""

    what: str
    p50_us: float
    p99_us: float


class Device(Protocol):
    """One accelerator (or the CPU), opened once. Methods may be called from any thread unless stated.

    Opening raises DeviceUnavailable when the device, its driver or enough units are missing: never a fallback.
    """

    kind: str
    """"cpu" or "cuda"."""
    name: str
    granularity: int
    """Smallest step of a cluster in units, read from the device: 8 on Hopper, 2 on Orin/Thor, 1 on a CPU."""
    units: int
    """All compute units of the device."""
    clusters: Mapping[str, Cluster]
    lanes: Mapping[str, Lane]
    fingerprint: str
    """Stable id of this hardware and driver, fit for a file name."""

    def session_settings(self, lane: str) -> SessionSettings:
        """How a session is made for `lane`. Raises KeyError for a lane that was not asked for at start."""
        ...

    def enter(self, lane: str) -> AbstractContextManager[Lane]:
        """Bind the calling thread to the lane (pin it, make its green context current) and undo that on exit."""
        ...

    def verify_placement(self, lane: str) -> PlacementProbe:
        """Run a probe in the lane and report where it ran. Not while navigation runs."""
        ...

    def memory(self) -> MemoryInfo: ...

    def synchronise(self, lane: str) -> None:
        """Wait until the lane's queued work is done (returns at once on a CPU)."""
        ...

    def event_sync_cost(self, samples: int = 1000) -> SyncCost:
        """Measure the cheapest wait the device offers: the yardstick for one arbiter decision."""
        ...

    def close(self) -> None:
        """Free lanes, then clusters. Safe to call twice."""
        ...


_BACKENDS = {"cpu": ("cockpit.device.cpu", "open_cpu"), "cuda": ("cockpit.device.cuda.device", "open_cuda")}


def open_device(kind: str, clusters: Mapping[str, int], lanes: Sequence[LaneSpec]) -> Device:
    """Open `kind` with clusters (name -> units, carved in this order) and all lanes that will ever be used.

    Raises ConfigError for an unknown kind or cluster, DeviceUnavailable when the device cannot give what was asked.
    """
    if kind not in _BACKENDS:
        raise ConfigError(f"device {kind!r} is unknown; choose one of: {', '.join(sorted(_BACKENDS))}")
    for spec in lanes:
        unknown = [name for name in spec.clusters if name not in clusters]
        if unknown or not spec.clusters:
            raise ConfigError(f"lane {spec.name!r} names clusters {unknown or 'none'}; known: {', '.join(clusters)}")
    module, factory = _BACKENDS[kind]
    return cast(Device, getattr(import_module(module), factory)(clusters, lanes))


class YieldGate:
    """Tells a running task to stop at its next token or chunk boundary, without a lock on that task's hot path.

    The running task, at each boundary (its GPU work of that step finished, so that nothing of it is still queued):

        if gate.closed:          # a plain attribute read
            gate.wait(timeout_s)

    The urgent task runs inside `with gate.hold():`. Holds nest and may come from several threads; the gate opens again
    when the last one leaves.
    """

    __slots__ = ("_lock", "_open", "_parked", "closed", "holders", "parked", "waited_ns", "waits")

    def __init__(self) -> None:
        self.closed = False
        self.holders = 0
        self.parked = 0
        self.waits = 0
        self.waited_ns = 0
        self._lock = threading.Lock()
        self._open = threading.Event()
        self._open.set()
        self._parked = threading.Event()

    def close(self) -> None:
        """Ask the running task to yield. Returns at once; every call needs one `open`."""
        with self._lock:
            self.holders += 1
            self._open.clear()
            self.closed = True

    def open(self) -> None:
        """Take back one `close`. Raises RuntimeError when there is none."""
        with self._lock:
            if self.holders == 0:
                raise RuntimeError("the gate is opened more often than it was closed: pair each close with one open")
            self.holders -= 1
            if self.holders == 0:
                self.closed = False
                self._open.set()

    @contextmanager
    def hold(self, parked_within_s: float = 0.0) -> Iterator[bool]:
        """Close the gate for the body. Yields whether a task parked within `parked_within_s` (0: do not wait)."""
        self.close()
        try:
            yield self._parked.wait(parked_within_s) if parked_within_s > 0 else self.parked > 0
        finally:
            self.open()

    def wait(self, timeout_s: float | None = None) -> int:
        """Park until the gate opens; called by the yielding task only. Returns ns waited (up to the timeout).

        After a timeout `closed` is still True: the caller degrades or gives up its request, it does not spin.
        """
        began = time.monotonic_ns()
        with self._lock:
            self.parked += 1
            self._parked.set()
        self._open.wait(timeout_s)
        waited = time.monotonic_ns() - began
        with self._lock:
            self.parked -= 1
            if self.parked == 0:
                self._parked.clear()
            self.waits += 1
            self.waited_ns += waited
        return waited
