"""CUDA backend: the device is split once into units, clusters are unions of units, lanes are unions of clusters.

Every lane is a green context with one non-blocking stream, made when the device opens and only chosen among later.
Nothing ever runs in the primary context. Lanes with the same clusters share a green context; lanes whose clusters
overlap are legal (the lower priority one yields). Where a lane really runs is proved by a kernel, not assumed.
"""

from __future__ import annotations

import contextlib
import hashlib
import io
import re
from collections.abc import Iterator, Mapping, Sequence
from contextlib import AbstractContextManager, contextmanager
from typing import Any

from cockpit.device.base import Cluster, Lane, LaneSpec, MemoryInfo, PlacementProbe, SessionSettings, SyncCost
from cockpit.device.cuda.driver import BoundDriver, DeviceFacts, Driver, Partition
from models.errors import ConfigError, DeviceUnavailable

_URGENT = 7
"""Lanes of this priority or more get the greatest stream priority (a hint: the arbiter does not count on it)."""


def open_cuda(
    clusters: Mapping[str, int], lanes: Sequence[LaneSpec], driver: Driver | None = None, ordinal: int = 0
) -> CudaDevice:
    """Split the device, make every cluster and lane, and observe which SMs each cluster got.

    clusters: name -> SMs, rounded up to the device's granularity. When the full units are used up, the last cluster
    may take the rest that the split left over (12 of 132 SMs on an H200) if that is large enough.
    Raises ConfigError for a cluster without SMs, DeviceUnavailable when there is no device or it is too small.
    """
    bound = driver if driver is not None else BoundDriver()
    facts = bound.open(ordinal)
    if (empty := [name for name, sms in clusters.items() if sms <= 0]) != []:
        raise ConfigError(f"clusters {empty} have no SMs: give each at least {facts.unit_sms} on {facts.name}")
    resources = _carve(clusters, facts, bound)
    contexts: dict[tuple[str, ...], Partition] = {}
    streams: list[int] = []
    try:
        observed = {}
        for name in clusters:
            contexts[(name,)] = bound.partition(resources[name])
            probe = bound.stream(contexts[(name,)], urgent=False)
            streams.append(probe)
            observed[name] = Cluster(name, contexts[(name,)].sms, tuple(sorted(bound.observe(probe))))
        made, partitions = {}, {}
        for spec in lanes:
            key = tuple(name for name in clusters if name in spec.clusters)
            if key not in contexts:
                contexts[key] = bound.partition([unit for name in key for unit in resources[name]])
            stream = bound.stream(contexts[key], urgent=spec.priority >= _URGENT)
            streams.append(stream)
            partitions[spec.name] = contexts[key]
            made[spec.name] = Lane(
                spec.name, spec.clusters, contexts[key].sms, spec.memory_budget_bytes, spec.priority, stream
            )
    except DeviceUnavailable:
        bound.destroy(tuple(contexts.values()), streams)
        raise
    return CudaDevice(bound, facts, observed, made, partitions, (tuple(contexts.values()), tuple(streams)))


def _carve(clusters: Mapping[str, int], facts: DeviceFacts, driver: Driver) -> dict[str, list[Any]]:
    """Cluster -> its units, in order; the rest of the split serves one last cluster that fits in it."""
    units, rest, rest_sms = driver.split()
    free: list[Any] = list(units)
    rest_taken = rest_sms < facts.unit_sms
    out: dict[str, list[Any]] = {}
    for name, sms in clusters.items():
        count = -(-sms // facts.unit_sms)
        if count <= len(free):
            out[name], free = free[:count], free[count:]
        elif sms <= rest_sms and not rest_taken:
            out[name], rest_taken = [rest], True
        else:
            raise DeviceUnavailable(
                f"clusters ask for {sum(clusters.values())} SMs; {facts.name} gives {len(units)} units of "
                f"{facts.unit_sms} and a rest of {rest_sms}: cluster {name!r} ({sms}) does not fit, lower `clusters`"
            )
    return out


class CudaDevice:
    """One GPU split into lanes. See cockpit.device.base.Device; made by `open_cuda`."""

    kind = "cuda"

    def __init__(
        self,
        driver: Driver,
        facts: DeviceFacts,
        clusters: Mapping[str, Cluster],
        lanes: Mapping[str, Lane],
        partitions: Mapping[str, Partition],
        owned: tuple[tuple[Partition, ...], tuple[int, ...]],
    ) -> None:
        self.driver = driver
        self.facts = facts
        self.name = facts.name
        self.granularity = facts.unit_sms
        self.units = facts.sms
        self.clusters = clusters
        self.lanes = lanes
        self.fingerprint = _fingerprint(facts)
        self._partitions = partitions
        self._owned = owned
        self._open = True

    def session_settings(self, lane: str) -> SessionSettings:
        """CUDA sessions take the lane's stream. Raises DeviceUnavailable when ONNX Runtime here has no CUDA provider:
        such a session would run on the CPU without a word."""
        stream = self.lanes[lane].stream
        try:
            import onnxruntime
        except ImportError as error:
            raise DeviceUnavailable("ONNX Runtime is not installed; run: pip install 'cockpit-voice[gpu]'") from error
        available = onnxruntime.get_available_providers()
        if "CUDAExecutionProvider" not in available:
            raise DeviceUnavailable(
                f"lane {lane!r} is on CUDA but ONNX Runtime here offers {', '.join(available)}: "
                "run: pip uninstall onnxruntime && pip install 'cockpit-voice[gpu]'"
            )
        _load_libraries(onnxruntime)
        options = {"device_id": "0", "user_compute_stream": str(stream), "arena_extend_strategy": "kSameAsRequested"}
        if self.lanes[lane].memory_budget_bytes:
            options["gpu_mem_limit"] = str(self.lanes[lane].memory_budget_bytes)
        return SessionSettings(("CUDAExecutionProvider",), (options,), 1, 1)

    def enter(self, lane: str) -> AbstractContextManager[Lane]:
        """Make the lane's green context current in the calling thread for the body."""
        return self._entered(self.lanes[lane])

    @contextmanager
    def _entered(self, lane: Lane) -> Iterator[Lane]:
        with self.driver.enter(self._partitions[lane.name]):
            yield lane

    def verify_placement(self, lane: str) -> PlacementProbe:
        """Fill the lane with blocks that report their SM and compare with what its clusters were seen on."""
        chosen = self.lanes[lane]
        allowed = tuple(sorted({unit for name in chosen.clusters for unit in self.clusters[name].unit_ids}))
        seen = tuple(sorted(self.driver.observe(chosen.stream)))
        ok = bool(seen) and set(seen) <= set(allowed) and len(allowed) == chosen.units
        return PlacementProbe(lane, allowed, seen, ok, f"{len(seen)} of {chosen.units} SMs ran, {len(allowed)} allowed")

    def memory(self) -> MemoryInfo:
        free, total = self.driver.memory()
        return MemoryInfo(total, free)

    def synchronise(self, lane: str) -> None:
        self.driver.synchronise(self.lanes[lane].stream)

    def event_sync_cost(self, samples: int = 1000) -> SyncCost:
        """One event record + synchronise on an idle lane."""
        stream = next(iter(self.lanes.values())).stream
        times = sorted(self.driver.event_sync_us(stream, samples))
        return SyncCost("CUDA event record + synchronise", times[len(times) // 2], times[int(len(times) * 0.99)])

    def close(self) -> None:
        if self._open:
            self._open = False
            self.driver.destroy(*self._owned)


def _load_libraries(onnxruntime: Any) -> None:
    """Find CUDA's and cuDNN's libraries where pip puts them. What it prints of missing ones is noise: a session that
    cannot be opened for want of one is an error by itself."""
    if hasattr(onnxruntime, "preload_dlls"):
        with contextlib.redirect_stdout(io.StringIO()):
            onnxruntime.preload_dlls()


def _fingerprint(facts: DeviceFacts) -> str:
    name = re.sub(r"[^a-z0-9]+", "-", facts.name.lower()).strip("-")
    unit = hashlib.sha256(facts.uuid.encode()).hexdigest()[:8]
    return f"cuda-{name}-sm{facts.capability[0]}{facts.capability[1]}-driver{facts.driver_version}-{unit}"
