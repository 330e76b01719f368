"""The red lines, clusters and task profiles, checked together: every fault comes back at once, each with its key path.

The caller holds the file and turns key paths into file:line:column; nothing here reads a file.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Mapping
from dataclasses import dataclass, field
from difflib import get_close_matches
from typing import Any, Literal

from cockpit.arbiter.reader import Fault, KeyPath, Reader

DIALOGUE = "dialogue_task"
"""The task that the voice chain's language model runs as."""
URGENT_PRIORITY = 8
"""Tasks from this priority on never yield and are never overtaken by ageing (navigation, vehicle safety)."""

BACKGROUND_PRIORITY = 3
"""Tasks up to this priority wait while heat or power slows the hardware down."""

_LRU_K = re.compile(r"lru_k=(\d+)")


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
    models: tuple[str, ...] = ()
    queue_limit: int = 8
    timeout_ns: int = 30_000_000_000

    @property
    def yields(self) -> bool:
        """True when the task stops at its next token or chunk boundary for a more urgent one."""
        return self.priority < URGENT_PRIORITY


@dataclass(frozen=True, slots=True)
class ArbiterConfig:
    """Everything the arbiter obeys. `clusters`: name -> units, carved in this order."""

    limits: GlobalLimits
    eviction: EvictionPolicy
    clusters: Mapping[str, int]
    tasks: Mapping[str, TaskProfile]
    policy: PolicyBounds


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about the machine and the registry at check time; None or empty where it is not known."""

    device: Literal["cpu", "cuda"] = "cpu"
    units: int | None = None
    granularity: int = 1
    memory_total_mb: int | None = None
    models: Collection[str] | None = None
    floor_ms: Mapping[str, float] = field(default_factory=dict)
    """Task -> shortest latency measured with nothing beside it; for a task that streams, to its first token."""
    floor_source: str = "here"
    """Where these were measured."""
    engines_gate_kv: bool = True
    """False: no engine acts on `kv_keep_ratio`, so any but 1.0 is refused. The simulator's do."""
    engines_hold_l2: bool = True
    """False: no engine acts on `l2_window_mb`, so any but 0 is refused."""


@dataclass(frozen=True, slots=True)
class Checked:
    """Outcome of `parse`. `config` is None exactly when `errors` is not empty."""

    config: ArbiterConfig | None
    errors: tuple[Fault, ...]
    warnings: tuple[Fault, ...]


def parse(mapping: Mapping[str, Any], facts: Facts | None = None) -> Checked:
    """Check the `orchestration` and `tasks` sections (or the same keys at top level) together.

    Other top-level keys belong to the profile and are left alone when `orchestration` is present.
    """
    facts = facts or Facts()
    reader = Reader()
    nested = "orchestration" in mapping
    root: KeyPath = ("orchestration",) if nested else ()
    red = reader.section(mapping.get("orchestration") if nested else mapping, root)
    allowed = ("global_limits", "eviction_policy", "clusters", "policy") + (() if nested else ("tasks",))
    reader.unknown_keys(red, root, allowed)
    for key in ("global_limits", "eviction_policy", "clusters"):
        if key not in red:
            reader.fault((*root, key), f"{key} is required")
    if "tasks" not in mapping:
        reader.fault(("tasks",), "tasks is required")
    limits = _limits(reader, red.get("global_limits"), (*root, "global_limits"))
    eviction = _eviction(reader, red.get("eviction_policy", "lru_k=3"), (*root, "eviction_policy"))
    clusters = _clusters(reader, red.get("clusters"), (*root, "clusters"), facts)
    policy = _policy(reader, red.get("policy"), (*root, "policy"), facts)
    tasks = _tasks(reader, mapping.get("tasks"), clusters, facts)
    _system_keeps_a_cluster(reader, clusters, tasks, (*root, "clusters"))
    _budgets_fit(reader, limits, tasks, facts)
    _floors(reader, tasks, facts)
    errors = tuple(reader.errors)
    config = None if errors else ArbiterConfig(limits, eviction, clusters, tasks, policy)
    return Checked(config, errors, tuple(reader.warnings))


def _limits(reader: Reader, value: Any, path: KeyPath) -> GlobalLimits:
    section = reader.section(value, path)
    reader.unknown_keys(section, path, ("max_gpu_memory_percent", "min_token_per_second"))
    return GlobalLimits(
        reader.number(section, "max_gpu_memory_percent", path, 85.0, (1, 100)),
        reader.number(section, "min_token_per_second", path, 0.0, (0, 1e6)),
    )


def _eviction(reader: Reader, value: Any, path: KeyPath) -> EvictionPolicy:
    if isinstance(value, str):
        found = _LRU_K.fullmatch(value.replace(" ", ""))
        if not found or not 1 <= int(found[1]) <= 16:
            reader.fault(path, f'{value!r} is not an eviction policy: write "lru_k=3" (1 to 16) or a hybrid mapping')
            return EvictionPolicy()
        return EvictionPolicy("lru_k", int(found[1]))
    section = reader.section(value, path)
    known = ("type", "lru_k", "age_threshold_seconds", "memory_pressure_threshold")
    reader.unknown_keys(section, path, known)
    kind = section.get("type", "hybrid")
    if kind not in ("lru_k", "hybrid"):
        reader.fault((*path, "type"), f"{kind!r} is unknown; choose lru_k or hybrid")
        kind = "lru_k"
    return EvictionPolicy(
        kind,
        reader.integer(section, "lru_k", path, 3, (1, 16)),
        reader.number(section, "age_threshold_seconds", path, 180.0, (1, 86_400)),
        reader.number(section, "memory_pressure_threshold", path, 0.7, (0.05, 1.0)),
    )


def _clusters(reader: Reader, value: Any, path: KeyPath, facts: Facts) -> dict[str, int]:
    section = reader.section(value, path)
    lowest = 1 if facts.device == "cuda" else 0
    clusters = {str(name): reader.integer(section, name, path, 1, (lowest, 4096)) for name in section}
    if value is not None and not clusters:
        reader.fault(path, "must name at least one cluster and its units")
    step = facts.granularity
    for name, units in clusters.items():
        if units % step:
            reader.fault((*path, name), f"{units} units is not a multiple of {step}, this device's smallest step")
    total = sum(clusters.values())
    if facts.units is not None and total > facts.units:
        sums = " + ".join(str(units) for units in clusters.values())
        reader.fault(path, f"clusters ask for {sums} = {total} units, the device has {facts.units}")
    return clusters


def _policy(reader: Reader, value: Any, path: KeyPath, facts: Facts) -> PolicyBounds:
    section = reader.section(value, path)
    base = PolicyBounds()
    known = (
        "frozen",
        "update_every_requests",
        "prefill_chunk_tokens",
        "draft_tokens",
        "kv_keep_ratio",
        "l2_window_mb",
        "yielding",
    )
    reader.unknown_keys(section, path, known)
    frozen = section.get("frozen", False)
    if not isinstance(frozen, bool):
        reader.fault((*path, "frozen"), f"must be true or false, not {frozen!r}")
        frozen = True
    chunks = reader.choices(section, "prefill_chunk_tokens", path, base.prefill_chunk_tokens, (16, 8192))
    drafts = reader.choices(section, "draft_tokens", path, base.draft_tokens, (0, 16))
    keeps = reader.choices(section, "kv_keep_ratio", path, base.kv_keep_ratio, (0.6, 1.0))
    windows = reader.choices(section, "l2_window_mb", path, base.l2_window_mb, (0, 128))
    _knobs_act(reader, path, keeps, windows, facts)
    return PolicyBounds(
        frozen,
        reader.integer(section, "update_every_requests", path, 1000, (10, 1_000_000)),
        tuple(int(value) for value in chunks),
        tuple(int(value) for value in drafts),
        keeps,
        tuple(int(value) for value in windows),
        _yielding(reader, section, path),
    )


def _knobs_act(
    reader: Reader, path: KeyPath, keeps: tuple[float, ...], windows: tuple[float, ...], facts: Facts
) -> None:
    """A knob that turns nothing would be a silent default."""
    if not facts.engines_gate_kv and set(keeps) != {1.0}:
        reader.fault((*path, "kv_keep_ratio"), "no engine drops KV pairs yet, so it would do nothing: leave it at 1.0")
    if not facts.engines_hold_l2 and set(windows) != {0}:
        reader.fault((*path, "l2_window_mb"), "no engine sets an L2 window yet, so it would do nothing: leave it at 0")


def _yielding(reader: Reader, section: Mapping[str, Any], path: KeyPath) -> tuple[bool, ...]:
    value = section.get("yielding", True)
    values = tuple(value) if isinstance(value, list | tuple) else (value,)
    if not values or not all(isinstance(item, bool) for item in values):
        reader.fault((*path, "yielding"), f"must be true, false or a list of both, not {value!r}")
        return (True,)
    return tuple(dict.fromkeys(values))


def _tasks(reader: Reader, value: Any, clusters: Mapping[str, int], facts: Facts) -> dict[str, TaskProfile]:
    section = reader.section(value, ("tasks",))
    if value is not None and not section:
        reader.fault(("tasks",), "must name at least one task")
    return {str(name): _task(reader, str(name), section[name], clusters, facts) for name in section}


def _task(reader: Reader, name: str, value: Any, clusters: Mapping[str, int], facts: Facts) -> TaskProfile:
    path: KeyPath = ("tasks", name)
    section = reader.section(value, path)
    required = ("priority", "latency_sla", "memory_budget_mb", "affinity_mask")
    reader.unknown_keys(section, path, (*required, "warmup_requests", "model", "models", "queue_limit", "timeout"))
    for key in required:
        if key not in section:
            reader.fault((*path, key), f"{key} is required")
    sla_ns = reader.duration(section, "latency_sla", path, 1_000_000_000)
    return TaskProfile(
        name,
        reader.integer(section, "priority", path, 5, (0, 10)),
        sla_ns,
        reader.integer(section, "memory_budget_mb", path, 0, (0, 1 << 24)),
        _mask(reader, section.get("affinity_mask"), (*path, "affinity_mask"), clusters),
        reader.integer(section, "warmup_requests", path, 3, (0, 1000)),
        _models(reader, section, path, facts),
        reader.integer(section, "queue_limit", path, 8, (1, 4096)),
        reader.duration(section, "timeout", path, max(30_000_000_000, sla_ns)),
    )


def _mask(reader: Reader, value: Any, path: KeyPath, clusters: Mapping[str, int]) -> tuple[str, ...]:
    if value is None:
        return ()
    if not isinstance(value, str) or not value.strip():
        reader.fault(path, f'must be cluster names joined by commas, such as "a,b", not {value!r}')
        return ()
    names = tuple(part.strip() for part in value.split(","))
    for name in names:
        if name not in clusters:
            close = get_close_matches(name, list(clusters), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(clusters) or 'none'}"
            reader.fault(path, f"unknown cluster {name!r}{hint}")
    if len(set(names)) < len(names):
        reader.fault(path, "names a cluster twice")
    return names


def _models(reader: Reader, section: Mapping[str, Any], path: KeyPath, facts: Facts) -> tuple[str, ...]:
    key = "models" if "models" in section else "model"
    value = section.get(key)
    if value is None:
        return ()
    names = tuple(value) if isinstance(value, list | tuple) else (value,)
    for name in names:
        if not isinstance(name, str):
            reader.fault((*path, key), f"must be a model's name, not {name!r}")
        elif facts.models is not None and name not in facts.models:
            close = get_close_matches(name, list(facts.models), n=1)
            hint = f"; did you mean {close[0]!r}?" if close else f"; known: {', '.join(sorted(facts.models)) or 'none'}"
            reader.fault((*path, key), f"unknown model {name!r}{hint}")
    return tuple(str(name) for name in names)


def _system_keeps_a_cluster(
    reader: Reader, clusters: Mapping[str, int], tasks: Mapping[str, TaskProfile], path: KeyPath
) -> None:
    taken = {name for task in tasks.values() for name in task.clusters}
    if clusters and tasks and not set(clusters) - taken:
        reader.fault(
            path,
            "every cluster is in some task's affinity_mask: leave one out of all masks for the system "
            "(such as `system: 8`, or `system: 0` on a CPU)",
        )


def _budgets_fit(reader: Reader, limits: GlobalLimits, tasks: Mapping[str, TaskProfile], facts: Facts) -> None:
    if facts.memory_total_mb is None or not tasks:
        return
    limit = int(facts.memory_total_mb * limits.max_gpu_memory_percent / 100)
    for name, task in tasks.items():
        if task.memory_budget_mb > limit:
            reader.fault(
                ("tasks", name, "memory_budget_mb"),
                f"{task.memory_budget_mb} MB is above the limit of {limit} MB "
                f"({limits.max_gpu_memory_percent:g} % of {facts.memory_total_mb} MB)",
            )
    total = sum(task.memory_budget_mb for task in tasks.values())
    if total > limit:
        sums = " + ".join(f"{name} {task.memory_budget_mb}" for name, task in tasks.items())
        reader.fault(("tasks",), f"memory budgets {sums} = {total} MB, the limit is {limit} MB")


def _floors(reader: Reader, tasks: Mapping[str, TaskProfile], facts: Facts) -> None:
    for name, task in tasks.items():
        floor_ms = facts.floor_ms.get(name)
        if floor_ms is not None and task.latency_sla_ns < floor_ms * 1e6:
            reader.warnings.append(
                Fault(
                    ("tasks", name, "latency_sla"),
                    f"{task.latency_sla_ns / 1e6:g} ms is shorter than the {floor_ms:g} ms measured with nothing "
                    f"beside it ({facts.floor_source}): it cannot be met; raise it or choose a smaller model",
                )
            )
