"""Recorded commands played to a runtime at the speed they were spoken, timed from the acoustic end of speech."""

from __future__ import annotations

import time
from typing import Any

from ruamel.yaml import YAML

from cockpit.runtime import Runtime
from hil import AUDIO
from pipeline.audio.source import WavSource
from pipeline.frames import SAMPLE_RATE_HZ
from pipeline.turn_log import TurnRecord

ANSWER_LIMIT_S = 60.0


def chosen_commands(count: int) -> list[dict[str, Any]]:
    """The manifest's entries of the first `count` commands, half English, half Mandarin."""
    commands = YAML(typ="safe").load(AUDIO / "manifest.yaml")
    half = count // 2
    return [row for lang in ("en", "zh") for row in [r for r in commands if r["lang"] == lang][:half]]


def play(runtime: Runtime, row: dict[str, Any]) -> tuple[TurnRecord | None, int]:
    """Play one command and wait for its answer. Returns the turn (None: nothing was heard) and when it began, ns."""
    known = {record.turn_id for record in runtime.turn_log.closed()}
    start_ns = time.monotonic_ns()
    runtime.listen(WavSource(AUDIO / row["file"], pace="realtime"))
    runtime.wait_idle(ANSWER_LIMIT_S)
    turns = [record for record in runtime.turn_log.closed() if record.turn_id not in known]
    return (turns[-1] if turns else None), start_ns


def turn_row(row: dict[str, Any], ours: TurnRecord | None, start_ns: int) -> dict[str, Any]:
    """`first_audio_ms` from the acoustic end of speech: the turn's own zero is corrected by the VAD's error."""
    true_end_ns = start_ns + row["last_speech_sample"] * 1_000_000_000 // SAMPLE_RATE_HZ
    heard = ours is not None and bool(ours.first_audio_ns)
    return {
        "id": row["id"],
        "lang": row["lang"],
        "transcript": ours.transcript if ours else "",
        "reply": ours.reply if ours else "",
        "first_audio_ms": (ours.first_audio_ns - true_end_ns) / 1e6 if ours is not None and heard else None,
        "decided_ms": (ours.decided_ns - true_end_ns) / 1e6 if ours else None,
    }
