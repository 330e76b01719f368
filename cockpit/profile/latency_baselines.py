"""Times measured with nothing beside them, by device: a profile's latency is estimated from them, and its SLAs are held
to them.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass
from typing import Any

from cockpit.arbiter.config import DIALOGUE, SPEECH


@dataclass(frozen=True, slots=True)
class LatencyBaseline:
    """Medians of English turns with these models (recognition, language model, English voice). Units: ms."""

    source: str
    models: tuple[str, str, str]
    vad_ms: float
    """From the end of speech to the VAD model's decision, beyond the silence that is asked for."""
    asr_ms: float
    first_token_ms: float
    """Of a free answer: the prompt's new part and one step."""
    first_clause_ms: float
    """Of a free answer, from its question to the text of the first clause."""
    tts_ms: float


LATENCY_BASELINES = {
    "cpu": LatencyBaseline(
        "turns on two cores of an AMD EPYC, 2026-11-29",
        ("whisper-base", "qwen2.5-coder-0.5b-instruct", "piper-en-joe"),
        vad_ms=6.0,
        asr_ms=105.0,
        first_token_ms=79.0,
        first_clause_ms=215.0,
        tts_ms=55.0,
    ),
    "cuda": LatencyBaseline(
        "turns on one H200, 2026-11-29",
        ("whisper-base-f16", "qwen2.5-coder-0.5b-instruct-f16", "piper-en-joe-gpu"),
        vad_ms=6.0,
        asr_ms=24.0,
        first_token_ms=9.0,
        first_clause_ms=45.0,
        tts_ms=29.0,
    ),
}
"""By device."""


def task_baselines_ms(data: Mapping[str, Any]) -> tuple[dict[str, float], str]:
    """(task -> ms with nothing beside it, where that was measured) of a profile's mapping; empty for other models."""
    baselines = LATENCY_BASELINES["cuda" if data.get("device") == "cuda" else "cpu"]
    keys = (("asr", "model"), ("llm", "dialogue", "model"), ("tts", "en_voice"))
    asr, llm, voice = (_named(data, key) for key in keys)
    found = {}
    if llm == baselines.models[1]:
        found[DIALOGUE] = baselines.first_token_ms
    if (asr, voice) == (baselines.models[0], baselines.models[2]):
        found[SPEECH] = max(baselines.asr_ms, baselines.tts_ms)
    return found, baselines.source


def _named(data: Any, path: tuple[str, ...]) -> Any:
    """A value that may be missing or wrong: other checks say so."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data
