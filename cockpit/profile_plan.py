"""What a profile would take and how fast it would be, before anything of it is loaded.

Memory is counted from the files of built models (from their sources where they are not built), KV caches from the
language model's own shape, and allowances measured on the CPU chain. Latency comes from turns measured on two cores.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path

from cockpit.profile import Profile
from cockpit.profile_load import LoadedProfile
from cockpit.telemetry.watch import open_watch
from models.errors import FingerprintMismatch, ModelMissing
from models.store import Store

MIB = 1 << 20
KV_SESSIONS = 4
"""Running texts with a cache of their own: two of talk, one of choosing, one of warming up."""
PROCESS_BYTES = 150 * MIB
"""Interpreter and libraries before any model is loaded (141 MiB measured)."""
ACTIVATION_BYTES = {"asr": 112 * MIB, "llm": 32 * MIB, "tts": 40 * MIB}
"""Per stage: activations and packed copies of weights. Measured as peak memory less weights and caches: 176 MiB."""
_MODEL_FILES = {".onnx", ".bin", ".tflite", ".so", ".dat"}
"""What counts as weights in a built folder; tokenizers and descriptions are part of the process."""


@dataclass(frozen=True, slots=True)
class MemoryItem:
    """One line of the plan. `note`: where the figure comes from."""

    name: str
    kind: str
    count_bytes: int
    note: str


@dataclass(frozen=True, slots=True)
class MemoryPlan:
    """All lines and what may be used. `total_bytes` is None where no such device answers: then nothing is refused."""

    items: tuple[MemoryItem, ...]
    limit_percent: float
    total_bytes: int | None

    @property
    def sum_bytes(self) -> int:
        return sum(item.count_bytes for item in self.items)

    @property
    def limit_bytes(self) -> int | None:
        return None if self.total_bytes is None else int(self.total_bytes * self.limit_percent / 100)

    @property
    def fits(self) -> bool:
        return self.limit_bytes is None or self.sum_bytes <= self.limit_bytes

    @property
    def refusal(self) -> str:
        """The sum and the limit in words, for a plan that does not fit."""
        sums = " + ".join(f"{item.name} {item.count_bytes / MIB:.0f}" for item in self.items)
        limit, total = (self.limit_bytes or 0) / MIB, (self.total_bytes or 0) / MIB
        return (
            f"{sums} = {self.sum_bytes / MIB:.0f} MiB, the limit is {limit:.0f} MiB ({self.limit_percent:g} % of "
            f"{total:.0f}): choose smaller models, lower llm.context_tokens or raise max_gpu_memory_percent"
        )


def plan_memory(loaded: LoadedProfile, store: Store) -> MemoryPlan:
    """What `loaded` would hold at its peak. Raises nothing for models that are not built: their sources count."""
    profile = loaded.profile
    items = (*_weights(profile, store), _kv_cache(profile, store), *_allowances())
    percent = 100.0 if loaded.arbiter is None else loaded.arbiter.limits.max_gpu_memory_percent
    return MemoryPlan(items, percent, device_memory_bytes(profile.device))


def device_memory_bytes(device: str) -> int | None:
    """Memory of the device here; None where it does not answer."""
    if device == "cpu":
        return os.sysconf("SC_PHYS_PAGES") * os.sysconf("SC_PAGE_SIZE")
    watch = open_watch()
    try:
        return watch.sample().memory_total_bytes if watch.present else None
    finally:
        watch.close()


def _weights(profile: Profile, store: Store) -> Iterator[MemoryItem]:
    for name in profile.models:
        folder = _built(store, name)
        if folder is not None:
            files = [path for path in folder.rglob("*") if path.is_file() and path.suffix in _MODEL_FILES]
            yield MemoryItem(name, "weights", sum(path.stat().st_size for path in files), "files of the built model")
        else:
            size = store.registry.source_entry(name).size_bytes
            yield MemoryItem(name, "weights", size, "its sources: not built here, so an estimate")


def _built(store: Store, name: str) -> Path | None:
    try:
        return store.built(name)
    except (ModelMissing, FingerprintMismatch):
        return None


def _kv_cache(profile: Profile, store: Store) -> MemoryItem:
    """Keys and values of every running text, each as long as the context."""
    folder = _built(store, profile.llm.model)
    tokens = profile.llm.context_tokens
    if folder is None:
        return MemoryItem("kv cache", "kv", 0, f"{profile.llm.model} is not built here, so its shape is not known")
    shape = json.loads((folder / "config.json").read_text(encoding="utf-8"))
    values_per_token = 2 * shape["layers"] * shape["kv_heads"] * shape["head_dim"]
    note = f"{KV_SESSIONS} texts x {tokens} tokens x {values_per_token} float32"
    return MemoryItem("kv cache", "kv", KV_SESSIONS * tokens * values_per_token * 4, note)


def _allowances() -> Iterator[MemoryItem]:
    for stage, count_bytes in ACTIVATION_BYTES.items():
        yield MemoryItem(f"{stage} activations", "activations", count_bytes, "allowance, measured with default models")
    yield MemoryItem("process", "process", PROCESS_BYTES, "interpreter and libraries, measured")


@dataclass(frozen=True, slots=True)
class Floors:
    """Medians of whole turns with the default models. Units: ms."""

    source: str
    judge_ms: float
    """From the end of speech until its silence is known, beyond the silence that is asked for."""
    asr_ms: float
    first_clause_ms: float
    """Of a free answer, from its question to the text of the first clause."""
    tts_ms: float


CPU_FLOORS = Floors("turns on two cores of an AMD EPYC, default models, 2026-11-29", 75.0, 105.0, 640.0, 55.0)


@dataclass(frozen=True, slots=True)
class LatencyEstimate:
    """End of speech to first sample of the reply, ms; None where nothing was measured (`source` says so)."""

    source: str
    command_ms: float | None = None
    question_ms: float | None = None


def estimate_latency(profile: Profile) -> LatencyEstimate:
    """From measured floors and the profile's own silences. Work begins at the candidate, beside the silence."""
    measured = Profile()
    if profile.device != "cpu":
        return LatencyEstimate(f"no whole turn was measured on {profile.device} yet")
    others = [
        name
        for name, ours in (
            (profile.asr.model, measured.asr.model),
            (profile.llm.model, measured.llm.model),
            (profile.tts.en_voice, measured.tts.en_voice),
        )
        if name != ours
    ]
    if others:
        return LatencyEstimate(f"no turn was measured with {', '.join(others)}")
    floors, silences = CPU_FLOORS, profile.endpoint
    ready_ms = silences.candidate_silence.ms + floors.judge_ms + floors.asr_ms
    command_ms = max(silences.early_end_silence.ms + floors.judge_ms, ready_ms) + floors.tts_ms
    question_ms = max(silences.end_silence.ms, ready_ms + floors.first_clause_ms) + floors.tts_ms
    return LatencyEstimate(floors.source, command_ms, question_ms)


def restart_reason(key: str) -> str:
    """Why a change of this key takes effect at the next start only."""
    section = key.partition(".")[0]
    if section in ("orchestration", "tasks"):
        return "lanes and limits are made at start"
    if section in ("device", "asr", "llm", "tts", "wake"):
        return "models are loaded at start"
    return "read at start"
