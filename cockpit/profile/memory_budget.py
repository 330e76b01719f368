"""Device memory as planned at start: weights once, one KV arena, a cap of activations per lane, held against the limit.

Pure: whoever has measured or read the figures hands them in (`cockpit/profile/memory_plan.py` does so for a profile).
"""

from __future__ import annotations

from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass
from typing import Literal

from cockpit.arbiter.lanes import LanePlan
from models.errors import ConfigError

MIB = 1 << 20
Kind = Literal["weights", "kv", "activations", "process"]


@dataclass(frozen=True, slots=True)
class MemoryLine:
    """One line of the sum. `note`: where the figure comes from."""

    name: str
    kind: Kind
    count_bytes: int
    note: str


@dataclass(frozen=True, slots=True)
class TaskNeed:
    """KV memory that a task's sessions take at most, against its own `memory_budget_mb`."""

    task: str
    kv_bytes: int
    budget_bytes: int


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """The whole sum and its limit. `total_bytes`: memory of the device, None where it does not answer (nothing is
    refused then).
    """

    lines: tuple[MemoryLine, ...]
    limit_percent: float
    total_bytes: int | None
    needs: tuple[TaskNeed, ...] = ()

    @property
    def sum_bytes(self) -> int:
        return sum(line.count_bytes for line in self.lines)

    @property
    def limit_bytes(self) -> int | None:
        return None if self.total_bytes is None else int(self.total_bytes * self.limit_percent / 100)

    @property
    def fits(self) -> bool:
        return not self.refusal

    @property
    def refusal(self) -> str:
        """Why it is refused, with every line of the sum; empty when all fits."""
        faults = [
            f"KV of {need.task} {_mib(need.kv_bytes)} is above its memory_budget_mb of {_mib(need.budget_bytes)}: "
            "raise the budget or lower context_tokens"
            for need in self.needs
            if need.kv_bytes > need.budget_bytes
        ]
        limit = self.limit_bytes
        if limit is not None and self.sum_bytes > limit:
            faults.append(
                f"the sum of {_mib(self.sum_bytes)} is above the limit of {self.limit_text}: choose smaller models, "
                "lower context_tokens or raise max_gpu_memory_percent"
            )
        if not faults:
            return ""
        rows = (f"  {_mib(line.count_bytes):>10}  {line.name} ({line.note})" for line in self.lines)
        return "\n".join(["memory does not fit:", *rows, f"  {_mib(self.sum_bytes):>10}  sum", *faults])

    @property
    def limit_text(self) -> str:
        """The limit in words."""
        if self.limit_bytes is None or self.total_bytes is None:
            return "unknown: no such device answers here"
        return f"{_mib(self.limit_bytes)} ({self.limit_percent:g} % of {_mib(self.total_bytes)})"

    def check(self) -> None:
        """Raises ConfigError, with the whole sum, when the plan does not fit."""
        if self.refusal:
            raise ConfigError(self.refusal)


def kv_arena(slots: int, slot_bytes: int, note: str = "") -> MemoryLine:
    """Keys and values of every running text: slots of one size, so that nothing can fragment between them."""
    text = f"{slots} texts x {_mib(slot_bytes)}" + (f": {note}" if note else "")
    return MemoryLine("kv arena", "kv", slots * slot_bytes, text)


def lane_caps(lanes: Sequence[LanePlan], peaks: Mapping[str, int]) -> Iterator[MemoryLine]:
    """Activations per lane: its measured peak where `peaks` (lane name -> bytes) has one, else what it may take."""
    for lane in lanes:
        peak = peaks.get(lane.name)
        if peak is None:
            yield MemoryLine(lane.name, "activations", lane.memory_budget_bytes, "its cap, memory_budget_mb")
        else:
            yield MemoryLine(lane.name, "activations", peak, "measured peak")


def _mib(count_bytes: int) -> str:
    return f"{count_bytes / MIB:.0f} MiB"
