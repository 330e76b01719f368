"""A whole turn on the GPU: recorded commands at the speed they were spoken, end of speech -> first audio.

    python -m benchmarks gpu_turn [--profile h200] [--commands 24] [--compare-cpu] [--out FILE.json] [--plot FILE.png]
    python -m benchmarks gpu_turn --saved FILE.json --plot FILE.png

The zero is acoustic, as in benchmarks/chain/turn.py: the known last sample of speech of each WAV. Commands mostly need
no model step, so free questions follow, asked in words: there the zero is the end of recognition, and what is timed is
the plan, the model's first token, its first clause and the voice. `--compare-cpu` plays the same commands to profile
`cpu` afterwards, in the same process. Times per stage come from the turn log.
"""

from __future__ import annotations

import argparse
import json
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Any

import numpy as np

from benchmarks.harness.playback import ANSWER_LIMIT_S, chosen_commands, play, turn_row
from benchmarks.harness.plots import plot_first_audio
from benchmarks.harness.report import Report, command_line, head, percentiles, report_options
from cockpit.assemble import Assembly, assemble
from cockpit.profile.load import load_profile
from cockpit.runtime import NullSink, Runtime
from cockpit.scheduling.service import SchedulingPlan
from models.errors import CockpitError
from models.store.store import Store
from pipeline.frames import Language

LIMIT_MS = 300.0
"""The issue's bar for P50 on the GPU."""
STAGES = ("endpoint", "asr", "llm_ttft", "llm", "tts_first")
QUESTIONS: tuple[tuple[str, Language], ...] = (
    ("Why is the sky blue?", "en"),
    ("What is the capital of Australia?", "en"),
    ("Tell me something about dolphins.", "en"),
    ("Who wrote the play Hamlet?", "en"),
    ("天空为什么是蓝色的？", "zh"),
    ("澳大利亚的首都是哪里？", "zh"),
    ("给我讲讲海豚。", "zh"),
    ("红楼梦是谁写的？", "zh"),
)


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    if options.saved is not None:
        _show(json.loads(options.saved.read_text(encoding="utf-8")), options)
        return 0
    report = Report(options.out, options.budget_s)
    report.put(**head(), profile=options.profile, limit_ms=LIMIT_MS)
    chosen = chosen_commands(options.commands)
    try:
        ours = run_profile(options.profile, chosen, report, "turns", 0.55 if options.compare_cpu else 0.95)
        report.put(**_summary(ours, LIMIT_MS))
        if options.compare_cpu:
            played = [row for row in chosen if row["id"] in {turn["id"] for turn in ours["commands"]}]
            theirs = run_profile("cpu", played, report, "cpu_turns", 0.98)
            report.put(cpu=_summary(theirs, 600.0), compared=_compare(ours, theirs))
    except CockpitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    _show(report.values, options)
    return 0


def _show(values: dict[str, Any], options: argparse.Namespace) -> None:
    if options.plot is not None:
        runs = {values["profile"]: "turns", "cpu": "cpu_turns"}
        drawn = {
            f"profile {name}": [row["first_audio_ms"] for row in values[key]["commands"]]
            for name, key in runs.items()
            if key in values
        }
        plot_first_audio(drawn, LIMIT_MS, options.plot)
    if options.json:
        print(json.dumps(values, ensure_ascii=False))
    else:
        _print(values)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--profile", default="h200")
    parser.add_argument("--commands", type=int, default=24, help="how many spoken commands, half en, half zh (24)")
    parser.add_argument("--compare-cpu", action="store_true", help="the same commands with profile cpu")
    parser.add_argument("--plot", type=Path, help="write the distributions as a picture")
    parser.add_argument("--saved", type=Path, help="play nothing: show what an earlier run wrote with --out")
    report_options(parser, 145.0)
    return parser.parse_args(arguments)


def run_profile(
    name: str, commands: list[dict[str, Any]], report: Report, key: str, share: float
) -> dict[str, list[dict[str, Any]]]:
    """Commands, then questions, on a fresh assembly of profile `name`. What does not fit in the time is left out."""
    loaded = load_profile(name)
    plan = None if loaded.arbiter is None else SchedulingPlan(loaded.arbiter)
    ready: dict[str, float] = {}

    def announce(what: str, milliseconds: float | None) -> None:
        if milliseconds is None:
            return
        ready[what] = round(milliseconds, 1)
        report.say(f"{name}: ready: {what} in {milliseconds:.0f} ms")

    assembly = assemble(loaded.profile, Store.open(), NullSink(), announce=announce, scheduling=plan)
    report.put(**{f"{key}_ready_ms": ready})
    runtime = Runtime(assembly.parts)
    runtime.start()
    rows: dict[str, list[dict[str, Any]]] = {"commands": [], "questions": []}
    try:
        for text, language in QUESTIONS:
            rows["questions"].append(_asked(runtime, assembly, text, language))
            report.put(**{key: rows})
            report.say(f"{name}: {_line(rows['questions'][-1])}")
        for row in commands:
            if report.over(share):
                report.say(f"{name}: time is up after {len(rows['commands'])} of {len(commands)} commands")
                break
            ours, start_ns = play(runtime, row)
            stages = {} if ours is None else {stage: ours.ms.get(stage) for stage in STAGES}
            rows["commands"].append(turn_row(row, ours, start_ns) | {"ms": stages})
            report.put(**{key: rows})
            report.say(f"{name}: {_line(rows['commands'][-1])}")
        runtime.stop()
    finally:
        assembly.close()
    return rows


def _asked(runtime: Runtime, assembly: Assembly, text: str, language: Language) -> dict[str, Any]:
    """One question in words: from the end of recognition to the first reply sample."""
    turn_id = assembly.turn_ids.next()
    runtime.ask(text, language, turn_id)
    runtime.wait_idle(ANSWER_LIMIT_S)
    record = runtime.turn_log.get(turn_id)
    answered = record is not None and bool(record.first_audio_ns)
    return {
        "id": text,
        "lang": language,
        "transcript": text,
        "reply": record.reply if record else "",
        "first_audio_ms": (record.first_audio_ns - record.decided_ns) / 1e6 if record and answered else None,
        "ms": {stage: record.ms.get(stage) for stage in STAGES} if record else {},
    }


def _line(row: dict[str, Any]) -> str:
    first = row["first_audio_ms"]
    stages = " ".join(f"{name} {value:.0f}" for name, value in row["ms"].items() if value is not None)
    return f"{row['id'][:32]}: first audio {'-' if first is None else f'{first:.0f} ms'} ({stages}) {row['reply'][:50]}"


def _summary(rows: dict[str, list[dict[str, Any]]], limit_ms: float) -> dict[str, Any]:
    """`first_audio_ms` of commands, `chat_first_audio_ms` of questions that the model answered."""
    commands = [row for row in rows["commands"] if row["first_audio_ms"] is not None]
    chats = [row for row in rows["questions"] if row["first_audio_ms"] is not None and row["ms"].get("llm_ttft")]
    first = percentiles([row["first_audio_ms"] for row in commands])
    after = [row["first_audio_ms"] - row["decided_ms"] for row in commands]
    return {
        "played": len(rows["commands"]),
        "answered": len(commands),
        "first_audio_ms": first,
        "after_the_decision_ms": percentiles(after),
        "by_language": {
            lang: percentiles([row["first_audio_ms"] for row in commands if row["lang"] == lang])
            for lang in ("en", "zh")
        },
        "stage_ms": _stages(commands),
        "within_limit": bool(first) and first["p50"] <= limit_ms,
        "chats": len(chats),
        "chat_first_audio_ms": percentiles([row["first_audio_ms"] for row in chats]),
        "chat_stage_ms": _stages(chats),
    }


def _stages(rows: list[dict[str, Any]]) -> dict[str, dict[str, float]]:
    found = {name: [row["ms"][name] for row in rows if row["ms"].get(name) is not None] for name in STAGES}
    return {name: percentiles(values) for name, values in found.items() if values}


def _compare(ours: dict[str, list[dict[str, Any]]], theirs: dict[str, list[dict[str, Any]]]) -> dict[str, Any]:
    """Ratios below 1: the GPU is faster. Only turns that both profiles played and answered count."""
    out: dict[str, Any] = {}
    for kind, name in (("commands", "ratio"), ("questions", "chat_ratio")):
        other = {row["id"]: row for row in theirs[kind]}
        pairs = [(row, other[row["id"]]) for row in ours[kind] if row["id"] in other]
        timed = [(a["first_audio_ms"], b["first_audio_ms"]) for a, b in pairs]
        timed = [pair for pair in timed if None not in pair]
        if timed:
            out[f"{name}_p50"] = float(np.median([a for a, _ in timed]) / np.median([b for _, b in timed]))
        if kind == "commands" and pairs:
            out["transcripts_equal"] = sum(a["transcript"] == b["transcript"] for a, b in pairs)
            out["transcripts"] = len(pairs)
            out["replies_equal"] = sum(a["reply"] == b["reply"] for a, b in pairs)
            out["differing"] = [
                {"id": a["id"], "ours": a["transcript"], "cpu": b["transcript"]}
                for a, b in pairs
                if a["transcript"] != b["transcript"]
            ]
    return out


def _print(values: dict[str, Any]) -> None:
    runs = [(values["profile"], values, LIMIT_MS)]
    if "cpu" in values:
        runs.append(("cpu", values["cpu"], 600.0))
    print(f"{values['command']}, {values['date']}, ONNX Runtime {values['onnxruntime']}")
    print("| profile | answered | first audio P50 | P99 | limit P50 | chat first audio P50 | P99 | stages, P50 ms |")
    print("|---|---|---|---|---|---|---|---|")
    for name, run, limit in runs:
        first, chat = run["first_audio_ms"], run["chat_first_audio_ms"]
        bar = f"{limit:.0f}: {'yes' if run['within_limit'] else 'NO'}"
        stages = ", ".join(f"{stage} {value['p50']:.0f}" for stage, value in run["stage_ms"].items())
        chats = ", ".join(f"{stage} {value['p50']:.0f}" for stage, value in run["chat_stage_ms"].items())
        print(
            f"| {name} | {run['answered']}/{run['played']} | {first.get('p50', '-')} | {first.get('p99', '-')} | "
            f"{bar} | {chat.get('p50', '-')} | {chat.get('p99', '-')} | "
            f"{stages}; chat: {chats} |"
        )
    if "compared" in values:
        print(json.dumps(values["compared"], ensure_ascii=False))
