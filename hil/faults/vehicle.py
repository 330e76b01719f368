"""A car that lets down: writes that fail, are taken and ignored, or are slow; or no car at all."""

from __future__ import annotations

import time
from collections.abc import Iterator
from contextlib import contextmanager
from typing import Literal

from hil.faults.base import Evidence
from pipeline.vehicle.signals import EmbeddedTree, SignalError, Value

VehicleFault = Literal["fails", "sticks", "slow", "gone"]


class FaultyTree(EmbeddedTree):
    """The embedded signals with a switch. path: the only signal that lets down; None: every one of them. `hits` counts
    the reads and writes that met the fault.
    """

    def __init__(self) -> None:
        super().__init__()
        self.fault: VehicleFault | None = None
        self.path: str | None = None
        self.delay_s = 0.0
        self.hits = 0

    def _meets(self, path: str) -> bool:
        met = self.fault is not None and self.path in (None, path)
        self.hits += met
        return met

    def read(self, path: str) -> Value:
        """See SignalBackend."""
        if self.fault == "gone" and self._meets(path):
            raise SignalError("unavailable", path)
        return super().read(path)

    def write(self, path: str, value: Value) -> None:
        """See SignalBackend."""
        if self.fault is not None and self._meets(path):
            if self.fault in ("fails", "gone"):
                raise SignalError("unavailable", path)
            if self.fault == "sticks":
                return
            time.sleep(self.delay_s)
        super().write(path, value)


@contextmanager
def vehicle(tree: FaultyTree, kind: VehicleFault, path: str | None, delay_s: float) -> Iterator[Evidence]:
    """gone: nothing can be read or written, as behind a databroker that went away. path: only this signal."""
    evidence = Evidence(f"vehicle {kind}")
    before, began_s = tree.hits, time.monotonic()
    tree.path, tree.delay_s, tree.fault = path, delay_s, kind
    try:
        yield evidence
    finally:
        tree.fault = None
        if tree.hits > before:
            what = f"{tree.hits - before} accesses met it within {time.monotonic() - began_s:.1f} s"
            evidence.add(what + (f", each {delay_s * 1e3:.0f} ms late" if kind == "slow" else ""))
