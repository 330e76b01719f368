"""Which lanes exist and which of them a policy arm gives to each task. Pure: a backend makes them at start."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cockpit.arbiter.config import ArbiterConfig, TaskProfile


@dataclass(frozen=True, slots=True)
class LanePlan:
    """One lane to create at start: a union of clusters of its task's affinity mask."""

    name: str
    task: str
    clusters: tuple[str, ...]
    units: int
    cluster_bits: int
    """One bit per cluster, in the order of the configuration; two lanes overlap when their bits do."""
    memory_budget_bytes: int
    priority: int


def plan_lanes(config: ArbiterConfig) -> tuple[LanePlan, ...]:
    """Every lane any arm may choose: per task the prefixes of its mask, narrowest first.

    `affinity_mask: "b,c"` gives `dialogue_task:1` on b and `dialogue_task:2` on b and c. A mask is a bound that no
    policy leaves; tasks may share clusters by naming them in both masks (the lower priority one yields there).
    """
    bits = {name: 1 << index for index, name in enumerate(config.clusters)}
    lanes = []
    for task in config.tasks.values():
        for count in range(1, len(task.clusters) + 1):
            names = task.clusters[:count]
            lanes.append(
                LanePlan(
                    f"{task.name}:{count}",
                    task.name,
                    names,
                    sum(config.clusters[name] for name in names),
                    sum(bits[name] for name in names),
                    task.memory_budget_mb << 20,
                    task.priority,
                )
            )
    return tuple(lanes)


def lanes_of(lanes: Sequence[LanePlan], task: str) -> tuple[LanePlan, ...]:
    """The task's lanes, narrowest first."""
    return tuple(lane for lane in lanes if lane.task == task)


def widest(lanes: Sequence[LanePlan], task: TaskProfile) -> LanePlan:
    """The lane over the task's whole mask: what runs when no policy has learnt anything better."""
    return lanes_of(lanes, task.name)[-1]
