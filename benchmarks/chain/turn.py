"""End of speech -> first reply sample, beside faster-whisper + llama.cpp + piper, one after the other.

    python -m benchmarks turn [--json] [--commands N] [--plot FILE.png]

Both hear the same commands with the same weights. The zero is acoustic: the known last sample of speech of each WAV,
not what a VAD says. Cockpit runs as it does in the car: frames at the speed they were spoken, first audio when the sink
takes the first reply sample. The peer waits for silence (stated in benchmarks/peers/sequential.py) and its stages are
timed on the same samples right after, turn by turn, so that both meet the same load of the machine. `ratio_compute`
leaves both waits out: what follows once a turn is known to be over. When the peer is not installed, dies or hangs, the
result says so and every ratio is null.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.paths import AUDIO
from benchmarks.harness.playback import chosen_commands, play, turn_row
from benchmarks.harness.plots import plot_first_audio
from benchmarks.harness.report import command_line, percentiles
from benchmarks.peers.sequential import END_SILENCE_MS, PeerTurn, SequentialPeer
from cockpit.assemble import Assembly, assemble
from cockpit.profile.load import load_profile
from cockpit.runtime import NullSink, Runtime
from models.engines.tts.espeak import EspeakVoice
from models.store.store import Store
from pipeline.audio.wav import read_wav
from pipeline.dialogue.manager import DialogueManager
from pipeline.dialogue.plan import Plan
from pipeline.frames import SAMPLE_RATE_HZ, Language, ToolCall
from pipeline.vehicle.schemas import TOOL_NAMES, schema_of

PEER = "faster-whisper + llama.cpp + piper"
LIMIT_MS = 600.0
"""The bar for P50 on two cores."""


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    options = _options(arguments)
    chosen = chosen_commands(options.commands)
    store = Store.open()
    assembly = assemble(load_profile(options.profile).profile, store, NullSink())
    runtime = Runtime(assembly.parts)
    runtime.start()
    peer = _peer(assembly, store)
    rows: list[dict[str, Any]] = []
    try:
        peer.turn(read_wav(AUDIO / "en01.wav"))
        for number, row in enumerate(chosen, 1):
            sys.stderr.write(f"\r{number}/{len(chosen)} {row['id']} ")
            ours, start_ns = play(runtime, row)
            theirs = peer.turn(_until_end_of_wait(row))
            rows.append(turn_row(row, ours, start_ns) | ({} if theirs is None else _peer_row(theirs)))
        sys.stderr.write("\n")
        runtime.stop()
    finally:
        peer.close()
        assembly.close()
    result = summary(rows, peer.failure)
    if options.plot:
        series = {"Cockpit": "first_audio_ms", PEER: "peer_first_audio_ms"}
        drawn = {label: [row.get(key) for row in rows] for label, key in series.items()}
        plot_first_audio(drawn, LIMIT_MS, options.plot)
    print(json.dumps(result, ensure_ascii=False) if options.json else table(result))
    return 0


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--commands", type=int, default=48, help="how many spoken commands, half en, half zh (48)")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--plot", type=Path, help="write the two distributions as a picture")
    return parser.parse_args(arguments)


def _until_end_of_wait(row: dict[str, Any]) -> np.ndarray:
    """What the peer's endpointer hands on: the command with its trailing silence."""
    end = row["last_speech_sample"] + int(END_SILENCE_MS * SAMPLE_RATE_HZ / 1000)
    return read_wav(AUDIO / row["file"])[:end]


def _peer_row(theirs: PeerTurn) -> dict[str, Any]:
    return {
        "peer_transcript": theirs.transcript,
        "peer_call": theirs.call,
        "peer_first_audio_ms": theirs.first_audio_ms,
        "peer_compute_ms": theirs.compute_ms,
        "peer_ms": {"asr": theirs.asr_ms, "llm": theirs.llm_ms, "tts": theirs.tts_ms},
    }


def summary(rows: list[dict[str, Any]], failure: str | None = None) -> dict[str, Any]:
    """All figures. failure: why the peer gave no answer from some turn on; every ratio is then None."""
    answered = [row for row in rows if row["first_audio_ms"] is not None]
    both = [] if failure else [row for row in answered if "peer_compute_ms" in row]
    ours = [row["first_audio_ms"] for row in both]
    theirs = [row["peer_first_audio_ms"] for row in both]
    after = [row["first_audio_ms"] - row["decided_ms"] for row in both]
    compute = [row["peer_compute_ms"] for row in both]
    first = [row["first_audio_ms"] for row in answered]
    return {
        "commands": len(rows),
        "answered": len(answered),
        "first_audio_ms": percentiles(first),
        "peer": {"name": PEER, "failed": failure},
        "peer_first_audio_ms": percentiles(theirs),
        "ratio": float(np.median(ours) / np.median(theirs)) if both else None,
        "ratio_p99": float(np.percentile(ours, 99) / np.percentile(theirs, 99)) if both else None,
        "ratio_compute": float(np.median(after) / np.median(compute)) if both else None,
        "by_language": {
            lang: percentiles([row["first_audio_ms"] for row in answered if row["lang"] == lang])
            for lang in ("en", "zh")
        },
        "peer_end_silence_ms": END_SILENCE_MS,
        "turns": rows,
    }


def table(result: dict[str, Any]) -> str:
    """The results for people."""
    lines = [f"{'id':5} {'first audio':>11} {'peer':>7} {'peer asr':>9} {'llm':>6} {'tts':>5}  reply"]
    for row in result["turns"]:
        ours = "-" if row["first_audio_ms"] is None else f"{row['first_audio_ms']:.0f}"
        peer = f"{'-':>7} {'-':>9} {'-':>6} {'-':>5}"
        if "peer_ms" in row:
            parts = row["peer_ms"]
            peer = f"{row['peer_first_audio_ms']:7.0f} {parts['asr']:9.0f} {parts['llm']:6.0f} {parts['tts']:5.0f}"
        lines.append(f"{row['id']:5} {ours:>11} {peer}  {row['reply'][:60]}")
    first, theirs = result["first_audio_ms"], result["peer_first_audio_ms"]
    lines.append("")
    if first:
        lines.append(
            f"first audio after the last sample of speech, ms   P50 {first['p50']:.0f}  P99 {first['p99']:.0f}   "
            f"(limit {LIMIT_MS:.0f} P50)"
        )
    if result["ratio"] is None:
        return "\n".join([*lines, f"{PEER}: no figures. {result['peer']['failed'] or 'nothing was answered'}"])
    lines.append(
        f"{PEER}, ms             P50 {theirs['p50']:.0f}  P99 {theirs['p99']:.0f}   "
        f"({END_SILENCE_MS:.0f} of them waiting for silence)"
    )
    lines.append(
        f"ratio P50 {result['ratio']:.2f}   P99 {result['ratio_p99']:.2f}   "
        f"without either wait for silence {result['ratio_compute']:.2f}"
    )
    return "\n".join(lines)


def _peer(assembly: Assembly, store: Store) -> SequentialPeer:
    return SequentialPeer.of_files(
        whisper=store.source_folder("whisper-base"),
        gguf=store.source("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
        piper=(
            store.source("piper-en-joe", "en_US-joe-medium.onnx"),
            store.source("piper-en-joe", "en_US-joe-medium.onnx.json"),
        ),
        tools={name: schema_of(name) for name in TOOL_NAMES},
        mandarin=EspeakVoice(assembly.engines.espeak, "cmn").synthesise,
        act=_Actor(assembly.parts.dialogue),
    )


class _Actor:
    """Does the peer's call on the same car, through the same validation, and words the reply the same way."""

    def __init__(self, dialogue: DialogueManager) -> None:
        self._dialogue = dialogue
        self._turn_id = 1_000_000

    def __call__(self, call: dict[str, Any], language: str) -> str:
        self._turn_id += 1
        made = ToolCall(call.get("name", ""), call.get("arguments", {}))
        spoken: Language = "zh" if language == "zh" else "en"
        plan = Plan("", spoken, (made,))
        return self._dialogue.reply(plan, self._dialogue.execute(plan, self._turn_id), spoken)
