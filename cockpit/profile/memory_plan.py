"""What a profile would take and how fast it would be, before anything of it is loaded.

Memory is counted from the files of built models (from their sources where they are not built), KV caches from the
language model's own shape, and allowances measured on the CPU chain. Latency comes from turns that were measured.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Mapping, Sequence
from dataclasses import dataclass, replace
from pathlib import Path

from cockpit.arbiter.budget import kv_bytes
from cockpit.arbiter.config import DIALOGUE, ArbiterConfig
from cockpit.arbiter.lanes import plan_lanes
from cockpit.profile.language_models import LanguageModel, LlmRole
from cockpit.profile.latency_baselines import LATENCY_BASELINES
from cockpit.profile.load import LoadedProfile
from cockpit.profile.memory_budget import MIB, MemoryLine, MemoryPlan, TaskNeed, kv_arena, lane_caps
from cockpit.profile.sections import Profile
from cockpit.scheduling.tasks import names_of
from cockpit.telemetry.watch import open_watch
from models.errors import ModelUnusable
from models.store.store import Store

KV_SESSIONS = 6
"""Running texts with a cache of their own: two of talk, one each of their summary, choosing, the agent, warming up."""
WARM_TEXTS = 1
"""The same of a background model of its own: the one that warms up."""
PROCESS_BYTES = 150 * MIB
"""Interpreter and libraries before any model is loaded (141 MiB measured)."""
ACTIVATION_BYTES = {"asr": 112 * MIB, "llm": 32 * MIB, "tts": 40 * MIB}
"""Per stage: activations and packed copies of weights. Measured as peak memory less weights and caches: 176 MiB."""
_ON_GPU = {"asr", "llm", "tts"}
"""Kinds of models that run on the GPU under a profile for one; the others stay on the CPU."""
_VALUE_BYTES = {"f16": 2}
"""Size of a cached value by the model's `quant`, where it is not float32."""
_MODEL_FILES = {".onnx", ".bin", ".tflite", ".so", ".dat"}
"""What counts as weights in a built folder; tokenizers and descriptions are part of the process."""


def plan_memory(loaded: LoadedProfile, store: Store, peaks: Mapping[str, int] | None = None) -> MemoryPlan:
    """What a loaded profile would hold at its peak on its device here. peaks: see `plan_of`."""
    return plan_of(loaded.profile, loaded.arbiter, store, device_memory_bytes(loaded.profile.device), peaks)


def plan_of(
    profile: Profile,
    arbiter: ArbiterConfig | None,
    store: Store,
    total_bytes: int | None,
    peaks: Mapping[str, int] | None = None,
    kv_sessions: int = KV_SESSIONS,
) -> MemoryPlan:
    """The plan of `profile` on a device with `total_bytes`. Models that are not built count as their sources.

    peaks: activations measured on this device, lane name -> bytes; a GPU lane that is not in it counts with its cap. On
    a CPU activations are the process's own, so they count per stage. kv_sessions: texts with a cache of their own.
    """
    arenas = list(_arenas(profile, arbiter, store, kv_sessions))
    lines = [*_weights(profile, store), *(line for _, line in arenas)]
    if profile.device == "cpu":
        if kv_sessions > KV_SESSIONS and profile.api.parked_mb:
            lines.append(MemoryLine("parked texts", "kv", profile.api.parked_mb * MIB, "api.parked_mb"))
        lines += _allowances(profile)
    elif arbiter is not None:
        lines += lane_caps(plan_lanes(arbiter), peaks or {})
    if arbiter is None:
        return MemoryPlan(tuple(lines), 100.0, total_bytes)
    needs = _needs(arbiter, arenas)
    return MemoryPlan(tuple(lines), arbiter.limits.max_gpu_memory_percent, total_bytes, needs)


def _arenas(
    profile: Profile, arbiter: ArbiterConfig | None, store: Store, kv_sessions: int
) -> Iterator[tuple[LlmRole, MemoryLine]]:
    """Keys and values of each language model's texts, the dialogue's first, with the role whose task owns them."""
    talk, *_ = named = profile.llm.models
    agent = profile.agent.model
    models = list(named)
    if agent is not None and agent not in {model.name for model in named}:
        models.append(LanguageModel(agent, (), talk.threads, talk.context_tokens))
    for model in models:
        name, slot = arena_name(model), _kv_slot(model, store)
        role: LlmRole = model.roles[0] if model.roles else "dialogue"
        if slot is None:
            yield role, MemoryLine(name, "kv", 0, f"{model.name} is not built here, so its shape is not known")
            continue
        own = own_texts(profile, model)
        texts = kv_sessions if model is talk else own + (profile.api.requests if model.roles else 0)
        yield role, replace(_arena(profile, arbiter, role, slot, own, texts), name=name)


def own_texts(profile: Profile, model: LanguageModel) -> int:
    """Texts of a model that are the process's own, beside those of requests."""
    if "dialogue" in model.roles:
        return KV_SESSIONS
    return (WARM_TEXTS if model.roles else 0) + (profile.agent.model == model.name)


def _arena(
    profile: Profile, arbiter: ArbiterConfig | None, role: LlmRole, slot: MemoryLine, own_texts: int, texts: int
) -> MemoryLine:
    """The slots of all texts of one model. On a GPU their memory is taken at start; on a CPU texts take it as they
    grow, and those of API requests within what is left of their task's budget.
    """
    whole = kv_arena(texts, slot.count_bytes, slot.note)
    own = kv_arena(own_texts, slot.count_bytes, slot.note)
    name = DIALOGUE if arbiter is None else names_of(arbiter.tasks)[role]
    task = None if arbiter is None else arbiter.tasks.get(name)
    if profile.device != "cpu" or task is None or texts == own_texts:
        return whole
    budget_bytes = task.memory_budget_mb * MIB
    if not own.count_bytes < budget_bytes < whole.count_bytes:
        return own if own.count_bytes >= budget_bytes else whole
    return MemoryLine("kv arena", "kv", budget_bytes, f"{texts} texts, as they grow, within memory_budget_mb of {name}")


def arena_name(model: LanguageModel) -> str:
    """What a plan calls the caches of a model."""
    return "kv arena" if "dialogue" in model.roles else f"kv arena of {model.name}"


def _needs(arbiter: ArbiterConfig, arenas: Sequence[tuple[LlmRole, MemoryLine]]) -> tuple[TaskNeed, ...]:
    """The caches against the budget of the task that owns them."""
    names = names_of(arbiter.tasks)
    kv: dict[str, int] = {}
    for role, line in arenas:
        kv[names[role]] = kv.get(names[role], 0) + line.count_bytes
    return tuple(
        TaskNeed(owner, count_bytes, arbiter.tasks[owner].memory_budget_mb * MIB)
        for owner, count_bytes in kv.items()
        if owner in arbiter.tasks
    )


def device_memory_bytes(device: str) -> int | None:
    """Memory of the device here; None where it does not answer."""
    if device == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    watch = open_watch()
    try:
        return watch.sample().memory_total_bytes if watch.present else None
    finally:
        watch.close()


def _weights(profile: Profile, store: Store) -> Iterator[MemoryLine]:
    """Once each, however many lanes run them. On a GPU only what runs there counts."""
    for name in profile.model_names:
        if profile.device != "cpu" and store.registry.get(name).kind not in _ON_GPU:
            continue
        folder = _built(store, name)
        if folder is not None:
            files = [path for path in folder.rglob("*") if path.is_file() and path.suffix in _MODEL_FILES]
            yield MemoryLine(name, "weights", sum(path.stat().st_size for path in files), "files of the built model")
        else:
            size = store.registry.source_entry(name).size_bytes
            yield MemoryLine(name, "weights", size, "its sources: not built here, so an estimate")


def _built(store: Store, name: str) -> Path | None:
    try:
        return store.built(name)
    except ModelUnusable:
        return None


def _kv_slot(model: LanguageModel, store: Store) -> MemoryLine | None:
    """Keys and values of one running text as long as the context; None where the model's shape is not known."""
    folder = _built(store, model.name)
    if folder is None:
        return None
    shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    tokens, value_bytes = model.context_tokens, _VALUE_BYTES.get(shape["quant"], 4)
    size = kv_bytes(shape["layers"], shape["kv_heads"], shape["head_dim"], tokens, value_bytes)
    return MemoryLine("kv slot", "kv", size, f"{tokens} tokens of float{8 * value_bytes}")


def _allowances(profile: Profile) -> Iterator[MemoryLine]:
    several = {"llm": len({*(model.name for model in profile.llm.models), profile.agent.model} - {None})}
    for stage, one_bytes in ACTIVATION_BYTES.items():
        count_bytes = one_bytes * several.get(stage, 1)
        yield MemoryLine(f"{stage} activations", "activations", count_bytes, "allowance, measured with default models")
    yield MemoryLine("process", "process", PROCESS_BYTES, "interpreter and libraries, measured")


@dataclass(frozen=True, slots=True)
class LatencyEstimate:
    """End of speech to first sample of the reply, ms: the median of English turns; None where nothing was measured
    (`source` says so).
    """

    source: str
    command_ms: float | None = None
    question_ms: float | None = None


def estimate_latency(profile: Profile) -> LatencyEstimate:
    """From measured baselines and the profile's own silences. Work begins at the candidate, beside the silence."""
    baselines, silences = LATENCY_BASELINES[profile.device], profile.endpoint
    ours = (profile.asr.model, profile.llm.dialogue.model, profile.tts.en_voice)
    others = [name for name, known in zip(ours, baselines.models, strict=True) if name != known]
    if others:
        return LatencyEstimate(f"no turn was measured with {', '.join(others)}")
    ready_ms = silences.candidate_silence.ms + baselines.vad_ms + baselines.asr_ms
    command_ms = max(silences.early_end_silence.ms + baselines.vad_ms, ready_ms) + baselines.tts_ms
    question_ms = max(silences.end_silence.ms, ready_ms + baselines.first_clause_ms) + baselines.tts_ms
    return LatencyEstimate(baselines.source, command_ms, question_ms)


def restart_reason(key: str) -> str:
    """Why a change of this key takes effect at the next start only."""
    section = key.partition(".")[0]
    if section in ("orchestration", "tasks"):
        return "lanes and limits are made at start"
    if section in ("device", "asr", "llm", "tts", "wake"):
        return "models are loaded at start"
    return "read at start"
