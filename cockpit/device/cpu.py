"""CPU backend: clusters are sets of cores, lanes are threads pinned to them. Real isolation, used where no GPU is.

Linux only. A thread enters a lane by `sched_setaffinity`; ONNX Runtime pins its pool through the session's settings.
"""

from __future__ import annotations

import hashlib
import os
import platform
import threading
import time
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from pathlib import Path

from cockpit.device.base import (
    Cluster,
    Lane,
    LaneSpec,
    MemoryInfo,
    PlacementProbe,
    SessionSettings,
    SyncCost,
)
from models.errors import ConfigError, DeviceUnavailable

LONGEST_CHUNK = 64
"""Tokens of a prompt in one run of a language model: 0.6 s with the default one on two cores. Longer runs are no faster
per token, and whoever is more urgent waits for them.
"""
_PROBE_S = 0.02
_STAT_PROCESSOR = 38
"""Index of field `processor` (39th) in /proc/PID/stat."""


def open_cpu(clusters: Mapping[str, int], lanes: Sequence[LaneSpec]) -> CpuDevice:
    """Carve `clusters` from the cores this process may use, in order. Raises DeviceUnavailable when there are too few.

    A cluster of 0 units has no cores of its own: a lane made of such clusters alone is not pinned.
    """
    cores = sorted(os.sched_getaffinity(0))
    wanted = sum(clusters.values())
    if wanted > len(cores):
        raise DeviceUnavailable(
            f"clusters ask for {wanted} cores, this process may use {len(cores)} ({_ranges(cores)}): "
            "lower the units in `clusters` (0: no core of its own), or widen the service's CPUAffinity"
        )
    carved: dict[str, Cluster] = {}
    taken = 0
    for name, units in clusters.items():
        carved[name] = Cluster(name, units, tuple(cores[taken : taken + units]))
        taken += units
    made = {spec.name: _lane(spec, carved) for spec in lanes}
    return CpuDevice(tuple(cores), carved, made)


def _lane(spec: LaneSpec, clusters: Mapping[str, Cluster]) -> Lane:
    cores = tuple(sorted({core for name in spec.clusters for core in clusters[name].unit_ids}))
    return Lane(spec.name, spec.clusters, len(cores), spec.memory_budget_bytes, spec.priority, 0, cores)


class CpuDevice:
    """The cores this process may use. See cockpit.device.base.Device."""

    kind = "cpu"
    granularity = 1

    def __init__(self, cores: tuple[int, ...], clusters: Mapping[str, Cluster], lanes: Mapping[str, Lane]) -> None:
        self.cores = cores
        self.units = len(cores)
        self.clusters = clusters
        self.lanes = lanes
        self.name = _model_name()
        self.fingerprint = _fingerprint(self.name, len(cores))

    def session_settings(self, lane: str) -> SessionSettings:
        """One intra-op thread per core of the lane; the calling thread is the first and enters the lane itself.

        Whether its threads spin between operators is the engine's to choose.
        """
        cores = self.lanes[lane].cores
        config = {}
        if len(cores) > 1:
            # ONNX Runtime counts processors from 1 and wants one entry per thread it makes itself.
            config["session.intra_op_thread_affinities"] = ";".join(str(core + 1) for core in cores[1:])
        threads = len(cores) or self.units
        return SessionSettings(("CPUExecutionProvider",), ({},), threads, 1, config)

    def enter(self, lane: str) -> AbstractContextManager[Lane]:
        """Pin the calling thread to the lane's cores for the body; its former affinity comes back afterwards."""
        return self._entered(self.lanes[lane])

    @contextmanager
    def _entered(self, lane: Lane) -> Iterator[Lane]:
        if not lane.cores:
            yield lane
            return
        thread = threading.get_native_id()
        before = os.sched_getaffinity(thread)
        try:
            os.sched_setaffinity(thread, lane.cores)
        except OSError as error:
            raise DeviceUnavailable(
                f"lane {lane.name!r} may not run on cores {_ranges(lane.cores)} ({error.strerror}): "
                "widen the service's CPUAffinity or lower the units in `clusters`"
            ) from error
        try:
            yield lane
        finally:
            os.sched_setaffinity(thread, before)

    def verify_placement(self, lane: str) -> PlacementProbe:
        """Run one busy thread per core inside the lane for 20 ms and read from the kernel where each ran."""
        chosen = self.lanes[lane]
        allowed = chosen.cores or self.cores
        seen: set[int] = set()
        masks: list[set[int]] = []
        failures: list[DeviceUnavailable] = []

        def probe() -> None:
            try:
                with self.enter(lane):
                    thread = threading.get_native_id()
                    masks.append(os.sched_getaffinity(thread))
                    ends = time.monotonic() + _PROBE_S
                    while time.monotonic() < ends:
                        seen.add(_current_core(thread))
            except DeviceUnavailable as error:
                failures.append(error)

        threads = [threading.Thread(target=probe, name=f"probe-{lane}", daemon=True) for _ in allowed]
        for thread in threads:
            thread.start()
        for thread in threads:
            thread.join()
        if failures:
            raise failures[0]
        pinned = all(mask == set(allowed) for mask in masks)
        ok = bool(seen) and seen <= set(allowed) and pinned
        detail = f"{len(threads)} threads on cores {_ranges(sorted(seen))}, allowed {_ranges(allowed)}"
        return PlacementProbe(lane, tuple(allowed), tuple(sorted(seen)), ok, detail)

    def memory(self) -> MemoryInfo:
        """MemTotal and MemAvailable of the system."""
        fields = {}
        for line in Path("/proc/meminfo").read_text(encoding="ascii").splitlines():
            key, _, rest = line.partition(":")
            if key in ("MemTotal", "MemAvailable"):
                fields[key] = int(rest.split()[0]) * 1024
        return MemoryInfo(fields["MemTotal"], fields["MemAvailable"])

    def synchronise(self, lane: str) -> None:
        """Nothing is queued on a CPU; only an unknown lane is an error."""
        if lane not in self.lanes:
            raise KeyError(lane)

    def event_sync_cost(self, samples: int = 1000) -> SyncCost:
        """Set an event for another thread and wait for its answer: the cheapest hand-over between two stages."""
        if samples < 1:
            raise ConfigError(f"samples is {samples}: measure at least one")
        ping, pong = threading.Event(), threading.Event()

        def answer() -> None:
            for _ in range(samples):
                ping.wait()
                ping.clear()
                pong.set()

        thread = threading.Thread(target=answer, name="event-cost", daemon=True)
        thread.start()
        spent = []
        for _ in range(samples):
            began = time.perf_counter_ns()
            ping.set()
            pong.wait()
            spent.append(time.perf_counter_ns() - began)
            pong.clear()
        thread.join()
        spent.sort()
        return SyncCost(
            "thread event set + answer (CPU)",
            spent[len(spent) // 2] / 1e3,
            spent[min(len(spent) - 1, len(spent) * 99 // 100)] / 1e3,
        )

    def close(self) -> None:
        """Nothing is held: threads leave their lanes themselves."""


def _current_core(thread: int) -> int:
    stat = Path(f"/proc/self/task/{thread}/stat").read_text(encoding="ascii")
    # The command name may hold spaces and parentheses: fields are counted after its last one.
    return int(stat[stat.rindex(")") + 2 :].split()[_STAT_PROCESSOR - 2])


def _model_name() -> str:
    for line in Path("/proc/cpuinfo").read_text(encoding="utf-8", errors="replace").splitlines():
        if line.lower().startswith(("model name", "cpu model", "hardware")):
            return line.partition(":")[2].strip()
    return platform.machine()


def _fingerprint(name: str, units: int) -> str:
    text = f"{platform.machine()}|{name}|{units}"
    return f"cpu-{units}-{hashlib.sha256(text.encode()).hexdigest()[:12]}"


def _ranges(cores: Sequence[int]) -> str:
    parts: list[str] = []
    start = 0
    for index, core in enumerate(cores):
        if index + 1 == len(cores) or cores[index + 1] != core + 1:
            first = cores[start]
            parts.append(str(core) if first == core else f"{first}-{core}")
            start = index + 1
    return ",".join(parts) or "none"
