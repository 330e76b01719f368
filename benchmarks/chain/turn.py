"""End of speech -> first reply sample, beside faster-whisper + llama.cpp + piper glued in the obvious way.

    python -m benchmarks turn [--json] [--commands N] [--plot FILE.png]

Both hear the same commands with the same weights. The zero is acoustic: the known last sample of speech of each WAV,
not what a VAD says. Cockpit runs as it does in the car: frames at the speed they were spoken, first audio when the sink
takes the first reply sample. The peer waits for silence (stated in benchmarks/peers/glued.py) and its stages are timed
on the same samples right after, turn by turn, so that both meet the same load of the machine. `ratio_compute` leaves
both waits out: what follows once a turn is known to be over."""

from __future__ import annotations

import argparse
import json
import sys
import tempfile
from collections.abc import Iterator
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.commands import AUDIO, chosen_commands, play, plot_first_audio, turn_row
from benchmarks.peers.glued import END_SILENCE_MS, GluedPeer, PeerTurn
from benchmarks.quality.asr import ctranslate2_folder
from cockpit.assemble import Assembly, assemble
from cockpit.profile.load import load_profile
from cockpit.runtime import NullSink, Runtime
from models.engines.tts.espeak import EspeakVoice
from models.store.store import Store
from pipeline.audio.wav import read_wav
from pipeline.dialogue.manager import DialogueManager, Plan
from pipeline.frames import SAMPLE_RATE_HZ, Language, ToolCall
from pipeline.vehicle.schemas import TOOL_NAMES, schema_of

PERCENTILES = (50, 99)
LIMIT_MS = 600.0
"""The bar for P50 on two cores."""


def main() -> None:
    arguments = _arguments()
    chosen = chosen_commands(arguments.commands)
    with tempfile.TemporaryDirectory() as folder:
        assembly = assemble(load_profile(arguments.profile).profile, Store.open(), NullSink())
        runtime = Runtime(assembly.parts)
        runtime.start()
        peer = _peer(assembly, Store.open(), Path(folder))
        rows = list(_turns(runtime, peer, chosen))
        runtime.stop()
        assembly.close()
    result = _summary(rows)
    if arguments.plot:
        series = {"Cockpit": "first_audio_ms", "faster-whisper + llama.cpp + piper": "peer_first_audio_ms"}
        drawn = {label: [row[key] for row in rows] for label, key in series.items()}
        plot_first_audio(drawn, LIMIT_MS, arguments.plot)
    if arguments.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        _print(rows, result)


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--commands", type=int, default=48, help="how many spoken commands, half en, half zh (48)")
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--plot", type=Path, help="write the two distributions as a picture")
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    return parser.parse_args()


def _turns(runtime: Runtime, peer: GluedPeer, commands: list[dict[str, Any]]) -> Iterator[dict[str, Any]]:
    warm = read_wav(AUDIO / "en01.wav")
    peer.turn(warm)
    for number, row in enumerate(commands, 1):
        sys.stderr.write(f"\r{number}/{len(commands)} {row['id']} ")
        ours, start_ns = play(runtime, row)
        theirs = peer.turn(_until_end_of_wait(row))
        yield turn_row(row, ours, start_ns) | _peer_row(theirs)
    sys.stderr.write("\n")


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


def _summary(rows: list[dict[str, Any]]) -> dict[str, Any]:
    answered = [row for row in rows if row["first_audio_ms"] is not None]
    ours = [row["first_audio_ms"] for row in answered]
    theirs = [row["peer_first_audio_ms"] for row in answered]
    after = [row["first_audio_ms"] - row["decided_ms"] for row in answered]
    compute = [row["peer_compute_ms"] for row in answered]
    return {
        "commands": len(rows),
        "answered": len(answered),
        "first_audio_ms": _percentiles(ours),
        "peer_first_audio_ms": _percentiles(theirs),
        "ratio": float(np.median(ours) / np.median(theirs)),
        "ratio_p99": float(np.percentile(ours, 99) / np.percentile(theirs, 99)),
        "ratio_compute": float(np.median(after) / np.median(compute)),
        "by_language": {
            lang: _percentiles([row["first_audio_ms"] for row in answered if row["lang"] == lang])
            for lang in ("en", "zh")
        },
        "peer_end_silence_ms": END_SILENCE_MS,
        "turns": rows,
    }


def _percentiles(values: list[float]) -> dict[str, float]:
    return {f"p{q}": round(float(np.percentile(values, q)), 1) for q in PERCENTILES} if values else {}


def _print(rows: list[dict[str, Any]], result: dict[str, Any]) -> None:
    print(f"{'id':5} {'first audio':>11} {'peer':>7} {'peer asr':>9} {'llm':>6} {'tts':>5}  reply")
    for row in rows:
        ours = "-" if row["first_audio_ms"] is None else f"{row['first_audio_ms']:.0f}"
        parts = row["peer_ms"]
        print(
            f"{row['id']:5} {ours:>11} {row['peer_first_audio_ms']:7.0f} {parts['asr']:9.0f} {parts['llm']:6.0f} "
            f"{parts['tts']:5.0f}  {row['reply'][:60]}"
        )
    print(f"\nfirst audio after the last sample of speech, ms   P50 {result['first_audio_ms']['p50']:.0f}  ", end="")
    print(f"P99 {result['first_audio_ms']['p99']:.0f}   (limit {LIMIT_MS:.0f} P50)")
    print(
        f"faster-whisper + llama.cpp + piper, ms             P50 {result['peer_first_audio_ms']['p50']:.0f}  ", end=""
    )
    print(f"P99 {result['peer_first_audio_ms']['p99']:.0f}   ({END_SILENCE_MS:.0f} of them waiting for silence)")
    print(f"ratio P50 {result['ratio']:.2f}   P99 {result['ratio_p99']:.2f}   ", end="")
    print(f"without either wait for silence {result['ratio_compute']:.2f}")


def _peer(assembly: Assembly, store: Store, folder: Path) -> GluedPeer:
    return GluedPeer.load(
        whisper_dir=ctranslate2_folder(store.source_folder("whisper-base"), folder),
        gguf=store.source("qwen2.5-coder-0.5b-instruct", "qwen2.5-coder-0.5b-instruct-q4_k_m.gguf"),
        piper_onnx=store.source("piper-en-joe", "en_US-joe-medium.onnx"),
        piper_json=store.source("piper-en-joe", "en_US-joe-medium.onnx.json"),
        mandarin=EspeakVoice(assembly.espeak, "cmn").synthesise,
        tools={name: schema_of(name) for name in TOOL_NAMES},
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


if __name__ == "__main__":
    main()
