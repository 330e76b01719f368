"""What each lane's engines really took of a GPU: measured while they load and warm up, kept for the next start's plan.

A lane's peak is what the device's memory grew by beyond the weights and caches, which the plan counts by themselves:
activations, workspaces, captured graphs. Engines are loaded one after the other and warmed up at their longest, so the
growth is theirs unless another process allocates at that moment; then the plan is too cautious until the next start.
"""

from __future__ import annotations

import hashlib
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from dataclasses import dataclass
from pathlib import Path

import orjson

from cockpit.arbiter.config import ArbiterConfig
from cockpit.arbiter.lanes import plan_lanes
from cockpit.profile.memory_budget import MemoryPlan
from cockpit.profile.memory_plan import device_memory_bytes
from cockpit.profile.sections import Profile
from cockpit.scheduling.state_file import StateFile
from models.store.store import Store


def nothing_used() -> int:
    """For devices whose memory tells nothing about one process."""
    return 0


@dataclass(frozen=True, slots=True)
class Stage:
    """Engines that load together. lanes: where they run. counted: lines of the plan that are theirs already."""

    lanes: tuple[str, ...]
    counted: tuple[str, ...]


class Growth:
    """By how much the memory in use grew around each stage."""

    def __init__(self, used_bytes: Callable[[], int]) -> None:
        self.of_stage: dict[str, int] = {}
        self._used_bytes = used_bytes

    @contextmanager
    def around(self, stage: str) -> Iterator[None]:
        """Around everything that loads and warms up `stage`."""
        before = self._used_bytes()
        yield
        self.of_stage[stage] = self.of_stage.get(stage, 0) + max(0, self._used_bytes() - before)


def lane_peaks(growth: Mapping[str, int], plan: MemoryPlan, stages: Mapping[str, Stage]) -> dict[str, int]:
    """Lane -> bytes. What several stages took in one lane adds up; what one stage took in several is shared equally."""
    lines = {line.name: line.count_bytes for line in plan.lines}
    peaks: dict[str, int] = {}
    for name, stage in stages.items():
        beyond = max(0, growth.get(name, 0) - sum(lines.get(line, 0) for line in stage.counted))
        for lane in stage.lanes:
            peaks[lane] = peaks.get(lane, 0) + beyond // len(stage.lanes)
    return peaks


class PeaksFile(StateFile):
    """`memory-KEY.json`: peaks hold for these models, this context, these lanes and this size of device only."""

    @classmethod
    def of(cls, folder: Path, profile: Profile, lanes: Sequence[str], total_bytes: int | None) -> PeaksFile:
        tokens = [model.context_tokens for model in profile.llm.models]
        key = [profile.device, *profile.model_names, *tokens, *lanes, total_bytes]
        return cls(folder / f"memory-{hashlib.sha256(orjson.dumps(key)).hexdigest()[:12]}.json")

    def peaks(self) -> dict[str, int]:
        """What was measured last time; empty when nothing was."""
        state = self.load() or {}
        return {str(lane): size for lane, size in state.items() if isinstance(size, int) and size >= 0}


def state_folder(store: Store) -> Path:
    """Where a process that stays keeps what it learns about this machine."""
    return store.root / "state"


def measured_peaks(profile: Profile, config: ArbiterConfig | None, store: Store) -> dict[str, int] | None:
    """The peaks that a start on this machine would plan with; None where it would plan with every lane's cap."""
    if profile.device == "cpu" or config is None:
        return None
    lanes = [lane.name for lane in plan_lanes(config)]
    return PeaksFile.of(state_folder(store), profile, lanes, device_memory_bytes(profile.device)).peaks()
