"""A CUDA driver without a device: SMs are counted, contexts and streams are records, nothing is computed."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from typing import Any

from cockpit.device.cuda.driver import DeviceFacts, Partition


class FakeDriver:
    """A device of `sms` SMs that splits like an H200: full units, then a rest. Unit i holds SMs unit*i .. unit*i+unit.

    wander: SM ids that a stream's blocks also run on, against what was asked for.
    """

    def __init__(self, sms: int = 132, unit: int = 8, kept_back: int = 1, wander: frozenset[int] = frozenset()) -> None:
        self.sms, self.unit, self.wander = sms, unit, wander
        self.count = sms // unit - kept_back
        self.partitions: list[Partition] = []
        self.streams: dict[int, tuple[Partition, bool]] = {}
        self.destroyed: list[Any] = []
        self.splits = 0
        self.current: list[Partition] = []
        self.waited: list[int] = []

    def open(self, ordinal: int) -> DeviceFacts:
        return DeviceFacts("Fake GPU", self.sms, self.unit, (9, 0), 13000, "ab" * 16, 1 << 30)

    def split(self) -> tuple[list[Any], Any, int]:
        self.splits += 1
        units = [frozenset(range(self.unit * i, self.unit * (i + 1))) for i in range(self.count)]
        rest = frozenset(range(self.unit * self.count, self.sms))
        return list(units), rest, len(rest)

    def partition(self, resources: Sequence[Any]) -> Partition:
        held = frozenset().union(*resources)
        assert len(held) == sum(len(resource) for resource in resources), "a unit was put in twice"
        made = Partition(held, f"context {len(self.partitions)}", len(held))
        self.partitions.append(made)
        return made

    def stream(self, partition: Partition, urgent: bool) -> int:
        self.streams[100 + len(self.streams)] = (partition, urgent)
        return 99 + len(self.streams)

    @contextmanager
    def enter(self, partition: Partition) -> Iterator[None]:
        self.current.append(partition)
        yield
        self.current.pop()

    def observe(self, stream: int) -> frozenset[int]:
        held: frozenset[int] = self.streams[stream][0].handle
        return held | (self.wander if self.streams[stream][1] else frozenset())

    def synchronise(self, stream: int) -> None:
        self.waited.append(stream)

    def memory(self) -> tuple[int, int]:
        return 3, 10

    def event_sync_us(self, stream: int, samples: int) -> list[float]:
        return [float(i) for i in range(samples)]

    def destroy(self, partitions: Sequence[Partition], streams: Sequence[int]) -> None:
        self.destroyed += [*streams, *partitions]
