"""What the arbiter obeys: red lines, clusters, eviction, policy bounds and task profiles, as plain values.

They are made from a profile's checked sections (`cockpit.profile.orchestration`), which state the ranges.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Literal

NAVIGATION = "navigation_task"
"""Spoken navigation commands, and prompts of the head unit's navigation."""
VEHICLE = "vehicle_task"
"""Spoken commands to the car."""
DIALOGUE = "dialogue_task"
"""Talk. It stands in for every task that a profile leaves out."""
BACKGROUND = "background_task"
"""What nobody waits for: prefixes and summaries computed in idle time, and requests at low priority."""
SPEECH = "speech_task"
"""Recognition and voices; on a GPU they run in its widest lane. They cannot yield in time, so they get clusters of
their own; a profile without this task puts them beside the dialogue."""
URGENT_PRIORITY = 8
"""Tasks from this priority on never yield and are never overtaken by ageing (navigation, vehicle safety)."""

BACKGROUND_PRIORITY = 3
"""Tasks up to this priority wait while heat or power slows the hardware down."""


@dataclass(frozen=True, slots=True)
class GlobalLimits:
    """The red lines. `min_token_per_second` is a promise: five seconds below it enter degraded mode (0: no promise)."""

    max_gpu_memory_percent: float = 85.0
    min_token_per_second: float = 0.0


@dataclass(frozen=True, slots=True)
class EvictionPolicy:
    """Who gives up KV memory. `lru_k`: rank by the K-th last use; `hybrid`: age counts too once memory is short."""

    type: Literal["lru_k", "hybrid"] = "lru_k"
    lru_k: int = 3
    age_threshold_seconds: float = 180.0
    memory_pressure_threshold: float = 0.7


@dataclass(frozen=True, slots=True)
class PolicyBounds:
    """What the online policy may try. Every combination is an arm, one value pins a knob, the first values are safe.

    yielding: whether a task gives way to an urgent one on units of its own too (it frees the memory bandwidth).
    """

    frozen: bool = False
    update_every_requests: int = 1000
    prefill_chunk_tokens: tuple[int, ...] = (256, 512)
    draft_tokens: tuple[int, ...] = (0,)
    kv_keep_ratio: tuple[float, ...] = (1.0,)
    l2_window_mb: tuple[int, ...] = (0,)
    yielding: tuple[bool, ...] = (True,)


@dataclass(frozen=True, slots=True)
class TaskProfile:
    """Quality of service of one task. `clusters`: its affinity mask, in the order written (narrowest lane first)."""

    name: str
    priority: int
    latency_sla_ns: int
    memory_budget_mb: int
    clusters: tuple[str, ...]
    warmup_requests: int = 3
    queue_limit: int = 8
    timeout_ns: int = 30_000_000_000

    @property
    def yields(self) -> bool:
        """True when the task stops at its next token or chunk boundary for a more urgent one."""
        return self.priority < URGENT_PRIORITY


@dataclass(frozen=True, slots=True)
class ArbiterConfig:
    """Everything the arbiter obeys. `clusters`: name -> units, carved in this order.

    one_engine: tasks whose steps take turns on one engine: they give way to one another as if they shared units.
    widths_act: whether the engines run slower in a narrower lane; where they do not, every task has its whole mask.
    """

    limits: GlobalLimits
    eviction: EvictionPolicy
    clusters: Mapping[str, int]
    tasks: Mapping[str, TaskProfile]
    policy: PolicyBounds
    one_engine: frozenset[str] = frozenset()
    widths_act: bool = True
