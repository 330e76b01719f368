"""`orchestration` and `tasks`: red lines, clusters, eviction, policy, and quality of service per task.

Fields are checked by their types; what lies between fields (masks against clusters, budgets against memory) by the
functions below, on whatever is readable, so that one fault hides no other. The result is the arbiter's `ArbiterConfig`.
"""

from __future__ import annotations

import re
from collections.abc import Collection, Iterator, Mapping
from dataclasses import dataclass, field
from typing import Annotated, Any, Literal

from pydantic import AfterValidator, Field, GetCoreSchemaHandler, GetJsonSchemaHandler, ValidationInfo, field_validator
from pydantic.json_schema import JsonSchemaValue
from pydantic_core import CoreSchema, PydanticCustomError, core_schema

from cockpit.arbiter.config import (
    BACKGROUND,
    DIALOGUE,
    NAVIGATION,
    SPEECH,
    VEHICLE,
    ArbiterConfig,
    EvictionPolicy,
    GlobalLimits,
    PolicyBounds,
    TaskProfile,
)
from cockpit.profile.base import Flag, OneOrMore, Section, Violation, suggestion, validated
from cockpit.profile.units import Duration, between

_LIMITS, _EVICTION, _POLICY = GlobalLimits(), EvictionPolicy(), PolicyBounds()
_WARMUPS = {DIALOGUE: 3}
_DEFAULT_TIMEOUT_NS = 30_000_000_000
_LRU_TEXT = re.compile(r" *lru_k *= *([0-9]+) *")

WARMED_TASKS = (NAVIGATION, VEHICLE, DIALOGUE, SPEECH, BACKGROUND)
"""Tasks that the voice chain runs something as, so that there is something to warm up."""


@dataclass(frozen=True, slots=True)
class Facts:
    """What is known about machine, registry and engines at check time; None or empty where it is not known.

    The rules that need a fact are left out where it is None: the simulator's tasks, for example, run no models.
    """

    device: Literal["cpu", "cuda"] = "cpu"
    units: int | None = None
    granularity: int = 1
    memory_total_mb: int | None = None
    models: Collection[str] | None = None
    task_models: Mapping[str, tuple[str, ...]] | None = None
    """Task -> the models that it really runs."""
    warmed: Collection[str] | None = None
    """Tasks on whose `warmup_requests` something acts."""
    baseline_ms: Mapping[str, float] = field(default_factory=dict)
    """Task -> shortest latency measured with nothing beside it; for a task that streams, to its first token."""
    baseline_source: str = "here"
    """Where these were measured."""
    engines_gate_kv: bool = True
    """False: no engine changes its `kv_keep_ratio` as it runs, so any but 1.0 is refused. The simulator's do."""
    engines_hold_l2: bool = True
    """False: no engine acts on `l2_window_mb`, so any but 0 is refused."""


@dataclass(frozen=True, slots=True)
class Context:
    """What single fields are checked against. `clusters`: the names that masks may use."""

    facts: Facts
    clusters: tuple[str, ...]

    @classmethod
    def of(cls, data: Mapping[str, Any], facts: Facts) -> Context:
        """data: a profile's mapping, not checked yet."""
        return cls(facts, tuple(_mapping(_mapping(data.get("orchestration")).get("clusters"))))


# --- orchestration -------------------------------------------------------------------------------------------------
class GlobalLimitsSection(Section):
    """Limits no task may break."""

    max_gpu_memory_percent: Annotated[float, Field(strict=True, ge=1, le=100)] = _LIMITS.max_gpu_memory_percent
    """Share of device memory all tasks together may plan for."""
    min_token_per_second: Annotated[float, Field(strict=True, ge=0, le=1e6)] = _LIMITS.min_token_per_second
    """A promise: five seconds below it pause low-priority tasks. 0: no promise."""


class EvictionSection(Section):
    """LRU-K, with age once memory is short."""

    type: Literal["lru_k", "hybrid"] = "hybrid"
    """The rule: `lru_k` ranks by use alone, `hybrid` counts age too once memory is short."""
    lru_k: Annotated[int, Field(strict=True, ge=1, le=16)] = _EVICTION.lru_k
    """Rank by the K-th last use."""
    age_threshold_seconds: Annotated[float, Field(strict=True, ge=1, le=86_400)] = _EVICTION.age_threshold_seconds
    """Older than this goes first under pressure."""
    memory_pressure_threshold: Annotated[float, Field(strict=True, ge=0.05, le=1)] = _EVICTION.memory_pressure_threshold
    """Share of memory in use that is pressure."""


@dataclass(frozen=True, slots=True)
class LruText:
    """Annotation of an eviction policy: `"lru_k=3"` is short for the mapping."""

    def __get_pydantic_core_schema__(self, source: Any, handler: GetCoreSchemaHandler) -> CoreSchema:
        return core_schema.no_info_before_validator_function(self._mapping, handler(source))

    def __get_pydantic_json_schema__(self, schema: CoreSchema, handler: GetJsonSchemaHandler) -> JsonSchemaValue:
        return {"anyOf": [{"type": "string", "pattern": f"^{_LRU_TEXT.pattern}$"}, handler(schema)]}

    @staticmethod
    def _mapping(value: Any) -> Any:
        if not isinstance(value, str):
            return value
        found = _LRU_TEXT.fullmatch(value)
        if found is None:
            raise ValueError(f'{value!r} is not an eviction policy: write "lru_k=3" or a hybrid mapping')
        return {"type": "lru_k", "lru_k": int(found[1])}


def _fits_device(units: int, info: ValidationInfo) -> int:
    if isinstance(info.context, Context):
        facts = info.context.facts
        if units < 1 and facts.device == "cuda":
            raise ValueError("a cluster of a GPU needs at least one unit")
        if units % facts.granularity:
            raise ValueError(f"{units} units is not a multiple of {facts.granularity}, this device's smallest step")
    return units


Units = Annotated[int, Field(strict=True, ge=0, le=4096), AfterValidator(_fits_device)]
ChunkTokens = Annotated[int, Field(strict=True, ge=16, le=8192)]
DraftTokens = Annotated[int, Field(strict=True, ge=0, le=16)]
KeepRatio = Annotated[float, Field(strict=True, ge=0.6, le=1)]
WindowMb = Annotated[int, Field(strict=True, ge=0, le=128)]


class PolicySection(Section):
    """What the online policy may try; one value pins a knob."""

    frozen: Flag = _POLICY.frozen
    """Keep the arm that is in use."""
    update_every_requests: Annotated[int, Field(strict=True, ge=10, le=1_000_000)] = _POLICY.update_every_requests
    """Requests between two choices."""
    prefill_chunk_tokens: Annotated[tuple[ChunkTokens, ...], Field(min_length=1), OneOrMore()] = (
        _POLICY.prefill_chunk_tokens
    )
    """Tokens per prefill chunk: how long a more urgent task waits."""
    draft_tokens: Annotated[tuple[DraftTokens, ...], Field(min_length=1), OneOrMore()] = _POLICY.draft_tokens
    """Tokens drafted ahead."""
    kv_keep_ratio: Annotated[tuple[KeepRatio, ...], Field(min_length=1), OneOrMore()] = _POLICY.kv_keep_ratio
    """Share of KV kept beyond the recent window. Only 1.0 so far: `llm.dialogue.kv_keep_ratio` sets it, for good."""
    l2_window_mb: Annotated[tuple[WindowMb, ...], Field(min_length=1), OneOrMore()] = _POLICY.l2_window_mb
    """Persisting L2 window for the urgent task's weights. Only 0 so far: no engine sets one."""
    yielding: Annotated[tuple[Flag, ...], Field(min_length=1), OneOrMore()] = _POLICY.yielding
    """Whether a task gives way to an urgent one on units of its own too."""

    @field_validator("kv_keep_ratio")
    @classmethod
    def _gated(cls, values: tuple[float, ...], info: ValidationInfo) -> tuple[float, ...]:
        if isinstance(info.context, Context) and not info.context.facts.engines_gate_kv and set(values) != {1.0}:
            raise ValueError(
                "no policy chooses it yet: leave it at 1.0 and set llm.dialogue.kv_keep_ratio, which is fixed"
            )
        return values

    @field_validator("l2_window_mb")
    @classmethod
    def _held(cls, values: tuple[int, ...], info: ValidationInfo) -> tuple[int, ...]:
        if isinstance(info.context, Context) and not info.context.facts.engines_hold_l2 and set(values) != {0}:
            raise ValueError("no engine sets an L2 window yet, so it would do nothing: leave it at 0")
        return values


class OrchestrationSection(Section):
    """Red lines, clusters, eviction and the bounds of the online policy."""

    global_limits: GlobalLimitsSection
    """Limits no task may break."""
    eviction_policy: Annotated[EvictionSection, LruText()]
    """Who gives up KV memory: "lru_k=3", or a hybrid that also counts age once memory is short."""
    clusters: Annotated[dict[str, Units], Field(min_length=1)]
    """Name -> compute units (SMs on a GPU, cores on a CPU). One must stay out of all masks."""
    policy: PolicySection = PolicySection()
    """What the online policy may try."""


# --- tasks ---------------------------------------------------------------------------------------------------------
def _names_clusters(mask: str, info: ValidationInfo) -> str:
    names = mask_names(mask)
    if not names or not all(names):
        raise ValueError(f'must be cluster names joined by commas, such as "a,b", not {mask!r}')
    if len(set(names)) < len(names):
        raise ValueError("names a cluster twice")
    known = list(info.context.clusters) if isinstance(info.context, Context) else names
    for name in names:
        if name not in known:
            message = f"unknown cluster {name!r}; {suggestion(name, list(known))}"
            raise PydanticCustomError("unknown_cluster", "{message}", {"message": message, "name": name})
    return mask


def mask_names(mask: str) -> tuple[str, ...]:
    """`"a, b"` -> ("a", "b")."""
    return tuple(name.strip() for name in mask.split(","))


class TaskSection(Section):
    """Quality of service of one task."""

    priority: Annotated[int, Field(strict=True, ge=0, le=10)]
    """10 is the most urgent. From 8 on a task never yields."""
    latency_sla: Annotated[Duration, between(Duration, "1us", "60min")]
    """The latency promised for one request."""
    memory_budget_mb: Annotated[int, Field(strict=True, ge=0, le=1 << 24)]
    """Device memory this task may use, in MB."""
    affinity_mask: Annotated[str, AfterValidator(_names_clusters)]
    """Cluster names joined by commas, narrowest lane first."""
    warmup_requests: Annotated[int, Field(strict=True, ge=0, le=1000)] | None = None
    """Requests of the task's own kinds, run at start, and at wake-up after a minute of rest, before the first real one.
    Default: 3 for dialogue_task, 1 for the others. Only for tasks that the voice chain runs something as."""
    model: str | None = None
    """The registry's name of its model, for the reader: it must be one that a stage's own section names."""
    models: tuple[str, ...] = ()
    """Several models of one task, likewise."""
    queue_limit: Annotated[int, Field(strict=True, ge=1, le=4096)] = 8
    """Requests that may wait; more are refused."""
    timeout: Annotated[Duration, between(Duration, "1us", "1440min")] | None = None
    """A request older than this is degraded instead of blocking. Default: 30s, or latency_sla where that is longer."""

    def config(self, name: str) -> TaskProfile:
        """The same, as the arbiter takes it."""
        default_ns = max(_DEFAULT_TIMEOUT_NS, self.latency_sla.ns)
        return TaskProfile(
            name=name,
            priority=self.priority,
            latency_sla_ns=self.latency_sla.ns,
            memory_budget_mb=self.memory_budget_mb,
            clusters=mask_names(self.affinity_mask),
            warmup_requests=_WARMUPS.get(name, 1) if self.warmup_requests is None else self.warmup_requests,
            queue_limit=self.queue_limit,
            timeout_ns=default_ns if self.timeout is None else self.timeout.ns,
        )


def arbiter_config(orchestration: OrchestrationSection, tasks: Mapping[str, TaskSection]) -> ArbiterConfig:
    """The two sections as the arbiter takes them."""
    return ArbiterConfig(
        limits=GlobalLimits(**dict(orchestration.global_limits)),
        eviction=EvictionPolicy(**dict(orchestration.eviction_policy)),
        clusters=dict(orchestration.clusters),
        tasks={name: task.config(name) for name, task in tasks.items()},
        policy=PolicyBounds(**dict(orchestration.policy)),
    )


# --- rules between fields ------------------------------------------------------------------------------------------
def cross_violations(data: Mapping[str, Any], facts: Facts) -> Iterator[Violation]:
    """What is wrong between fields of a profile's mapping, which may hold other faults too."""
    if "orchestration" not in data and "tasks" not in data:
        return
    for key in ("orchestration", "tasks"):
        if not _mapping(data.get(key)):
            yield Violation((key,), f"{key} is required")
    orchestration, tasks = _mapping(data.get("orchestration")), _mapping(data.get("tasks"))
    clusters = _mapping(orchestration.get("clusters"))
    masks = {name: _mapping(task).get("affinity_mask") for name, task in tasks.items()}
    taken = {name for mask in masks.values() if isinstance(mask, str) for name in mask_names(mask)}
    if clusters and tasks and not set(clusters) - taken:
        yield Violation(
            ("orchestration", "clusters"),
            "every cluster is in some task's affinity_mask: leave one out of all masks for the system "
            "(such as `system: 8`, or `system: 0` on a CPU)",
            tuple(("tasks", name, "affinity_mask") for name in masks),
        )
    for name, task in tasks.items():
        yield from _unused_keys(str(name), _mapping(task), facts)
    budgets = {name: _whole(_mapping(task).get("memory_budget_mb")) for name, task in tasks.items()}
    limits = _mapping(orchestration.get("global_limits"))
    percent = limits.get("max_gpu_memory_percent", _LIMITS.max_gpu_memory_percent)
    yield from unit_violations({name: _whole(units) for name, units in clusters.items()}, facts.units)
    if isinstance(percent, int | float):
        yield from budget_violations(budgets, float(percent), facts.memory_total_mb)


def _unused_keys(name: str, task: Mapping[str, Any], facts: Facts) -> Iterator[Violation]:
    """Keys that nothing would act on."""
    if facts.warmed is not None and name not in facts.warmed and "warmup_requests" in task:
        yield Violation(
            ("tasks", name, "warmup_requests"),
            f"nothing of {name} can be warmed up (only {', '.join(facts.warmed)} can): leave it out",
        )
    for key in ("model", "models"):
        value = task.get(key)
        for model in value if isinstance(value, list | tuple) else () if value is None else (value,):
            if facts.models is not None and model not in facts.models:
                yield Violation(
                    ("tasks", name, key), f"unknown model {model!r}; {suggestion(str(model), list(facts.models))}"
                )
            elif facts.task_models is not None and model not in facts.task_models.get(name, ()):
                runs = facts.task_models.get(name)
                why = f"{name} runs {', '.join(runs)}" if runs else f"{name} runs no model yet"
                yield Violation(("tasks", name, key), f"{why}, so {model} would do nothing here: leave it out")


def unit_violations(clusters: Mapping[str, int], units: int | None) -> Iterator[Violation]:
    """units: compute units of the device; None: not known."""
    total = sum(clusters.values())
    if units is not None and total > units:
        sums = " + ".join(str(count) for count in clusters.values())
        path = ("orchestration", "clusters")
        yield Violation(
            path,
            f"clusters ask for {sums} = {total} units, the device has {units}",
            tuple((*path, name) for name in clusters),
        )


def budget_violations(budgets: Mapping[str, int], percent: float, total_mb: int | None) -> Iterator[Violation]:
    """budgets: task -> MB. percent: share of the device's `total_mb` (None: not known) that may be planned for."""
    if total_mb is None or not budgets:
        return
    limit = int(total_mb * percent / 100)
    share = ("orchestration", "global_limits", "max_gpu_memory_percent")
    for name, budget in budgets.items():
        if budget > limit:
            yield Violation(
                ("tasks", name, "memory_budget_mb"),
                f"{budget} MB is above the limit of {limit} MB ({percent:g} % of {total_mb} MB)",
                (share,),
            )
    if sum(budgets.values()) > limit:
        sums = " + ".join(f"{name} {budget}" for name, budget in budgets.items())
        yield Violation(
            ("tasks",),
            f"memory budgets {sums} = {sum(budgets.values())} MB, the limit is {limit} MB",
            (*(("tasks", name, "memory_budget_mb") for name in budgets), share),
        )


def baseline_warnings(config: ArbiterConfig, facts: Facts) -> Iterator[Violation]:
    """SLAs that are shorter than anything measured."""
    for name, task in config.tasks.items():
        baseline_ms = facts.baseline_ms.get(name)
        if baseline_ms is not None and task.latency_sla_ns < baseline_ms * 1e6:
            yield Violation(
                ("tasks", name, "latency_sla"),
                f"{task.latency_sla_ns / 1e6:g} ms is shorter than the {baseline_ms:g} ms measured with nothing "
                f"beside it ({facts.baseline_source}): it cannot be met; raise it or choose a smaller model",
            )


def _mapping(value: Any) -> Mapping[str, Any]:
    return value if isinstance(value, Mapping) else {}


def _whole(value: Any) -> int:
    return value if isinstance(value, int) and not isinstance(value, bool) else 0


# --- the two sections alone ----------------------------------------------------------------------------------------
class _ArbiterSections(Section):
    """A mapping that holds nothing but the arbiter's part of a profile."""

    orchestration: OrchestrationSection
    tasks: dict[str, TaskSection]


@dataclass(frozen=True, slots=True)
class Checked:
    """Outcome of `parse`. `config` is None exactly when `errors` is not empty."""

    config: ArbiterConfig | None
    errors: tuple[Violation, ...]
    warnings: tuple[Violation, ...]


def parse(mapping: Mapping[str, Any], facts: Facts | None = None) -> Checked:
    """Check the `orchestration` and `tasks` sections (or the same keys at top level) together.

    Other top-level keys belong to the profile and are left alone when `orchestration` is present.
    """
    facts = facts or Facts()
    nested = "orchestration" in mapping
    tasks = {"tasks": mapping["tasks"]} if "tasks" in mapping else {}
    red = mapping["orchestration"] if nested else {key: value for key, value in mapping.items() if key != "tasks"}
    data = {"orchestration": red, **tasks}
    sections, violations = validated(_ArbiterSections, data, Context.of(data, facts))
    known = {violation.path for violation in violations}
    violations += [found for found in cross_violations(data, facts) if found.path not in known]
    if not nested:
        violations = [Violation(_flat(found.path), found.message) for found in violations]
    if violations or sections is None:
        return Checked(None, tuple(violations), ())
    config = arbiter_config(sections.orchestration, sections.tasks)
    return Checked(config, (), tuple(baseline_warnings(config, facts)))


def _flat(path: tuple[str | int, ...]) -> tuple[str | int, ...]:
    return path[1:] if path[:1] == ("orchestration",) else path
