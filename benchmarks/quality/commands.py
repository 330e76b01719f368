"""Share of commands, typed and recorded, that end in exactly the right state, answer or refusal.

Per language: typed text, and the whole chain (voice activity, recogniser, understanding) on the recorded commands,
clean and in road noise at 20, 10 and 5 dB. Beside it the chain without biasing (no hot words, no matching by
sound) and without the grammar (the language model writes JSON freely; what is no call counts as nothing done), both
clean. A wrong action: something changed although the command was to be refused. A stray action: another command changed
what it should not have.

    python -m benchmarks commands [--json] [--text-only] [--audio DIR] [--snr 20,10,5] [--no-model] [--parser both]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Sequence
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf
from rich.console import Console
from rich.table import Table

from benchmarks.harness.front_end import LANGUAGES, RATE_HZ, FrontEnd
from benchmarks.harness.paths import AUDIO
from benchmarks.harness.report import command_line
from benchmarks.quality.free_json import FreeJson, acting_freely
from benchmarks.quality.scoring import Command, Score, spoken_commands, typed_commands
from hil.acoustics.noise import mix, road_noise
from hil.judge import Verdict, run_command
from models.engines.base import Audio
from models.engines.llm.causal_lm import CausalLM
from models.engines.parser import ParserEngine
from models.engines.vad.silero import SileroVad
from models.engines.whisper.engine import WhisperEngine
from models.store.store import Store
from pipeline.dialogue.manager import DialogueManager
from pipeline.frames import Language
from pipeline.vehicle.signals import EmbeddedTree

NOISE_SEED = 11
VARIANTS = ("unbiased", "no_grammar")
"""Beside the whole chain: without hot words and matching by sound, and without grammar."""


def samples_of(command: Command, snr_db: int | None) -> Audio:
    """The recording at 16 kHz, in noise where asked for."""
    assert command.audio is not None
    samples, rate_hz = sf.read(command.audio, dtype="float32")
    if rate_hz != RATE_HZ:
        raise ValueError(f"{command.audio} is at {rate_hz} Hz, not {RATE_HZ}")
    if snr_db is None:
        return np.asarray(samples, np.float32)
    return mix(samples, road_noise(len(samples), NOISE_SEED), snr_db)[0]


def measure_text(score: Score, commands: Sequence[Command], dialogue: DialogueManager, tree: EmbeddedTree) -> None:
    """Typed commands through understanding."""
    for turn, command in enumerate(commands):
        verdict = run_command(dialogue, tree, command.text, command.language, command.expect, turn)
        score.add("text", command, command.text, verdict)


def measure_audio(
    score: Score,
    commands: Sequence[Command],
    front_end: FrontEnd,
    variants: dict[str, tuple[bool, Callable[[Command, str, Language, float], Verdict]]],
    levels: Sequence[int],
) -> None:
    """Recorded commands through the chain; the variants beside the full chain run on clean audio."""
    for command in commands:
        for snr_db in (None, *levels):
            condition = "clean" if snr_db is None else f"{snr_db}dB"
            heard = {}
            for name, (biased, act) in variants.items():
                if snr_db is not None and name != "full":
                    continue
                if biased not in heard:
                    heard[biased] = front_end.recognise(samples_of(command, snr_db), biased=biased)
                text, language, logprob = heard[biased]
                label = condition if name == "full" else name
                score.add(label, command, text, act(command, text, language, logprob))


def acting(dialogue: DialogueManager, tree: EmbeddedTree) -> Callable[[Command, str, Language, float], Verdict]:
    """The chain's own way from text to car."""
    return lambda command, text, language, logprob: run_command(
        dialogue, tree, text, language, command.expect, 1, avg_logprob=logprob
    )


def report(score: Score) -> dict[str, Any]:
    """All figures as one object."""
    clean = "clean" if score.total["clean", "en"] or score.total["clean", "zh"] else "text"
    own = [line for line in score.wrong_actions if not line.startswith(VARIANTS)]
    conditions = sorted({condition for condition, _ in score.total})
    result: dict[str, Any] = {
        "accuracy_en": score.share(clean, "en"),
        "accuracy_zh": score.share(clean, "zh"),
        "wrong_actions": len(own),
        "stray_actions": sum(not line.startswith(VARIANTS) for line in score.stray_actions),
        "measured_on": clean,
    }
    result["conditions"] = {c: {lang: score.share(c, lang) for lang in LANGUAGES} for c in conditions}
    result["decided_by"] = {c: dict(score.decided_by[c]) for c in conditions if c not in VARIANTS}
    for name in VARIANTS:
        if name in conditions:
            result |= {f"{name}_accuracy_{lang}": score.share(name, lang) for lang in LANGUAGES}
            acted = score.wrong_actions + score.stray_actions
            result[f"{name}_wrong_actions"] = sum(line.startswith(name) for line in acted)
    result["wrong"] = score.wrong_actions + score.stray_actions
    result["misses"] = score.misses
    return result


def show(result: dict[str, Any]) -> None:
    """The table."""
    table = Table("condition", "English", "Mandarin", title="Commands that end exactly right")
    for name, shares in result["conditions"].items():
        table.add_row(name, *(f"{100 * share:.1f} %" if share is not None else "-" for share in shares.values()))
    console = Console()
    console.print(table)
    console.print(f"wrong actions: {result['wrong_actions']}, stray actions: {result['stray_actions']}")
    for name, counts in result["decided_by"].items():
        console.print(f"decided by, {name}: {', '.join(f'{who} {count}' for who, count in counts.items())}")
    for line in result["wrong"]:
        console.print(f"  acted {line}", markup=False)
    for line in result["misses"]:
        console.print(f"  missed {line}", markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--text-only", action="store_true", help="typed commands only: needs no model but the LLM")
    parser.add_argument("--audio", type=Path, default=AUDIO, help="folder with manifest.yaml and WAVs")
    parser.add_argument("--snr", default="20,10,5", help="road noise levels in dB, comma-separated; empty for none")
    parser.add_argument("--no-model", action="store_true", help="leave the LLM out: open choices go to the words")
    parser.add_argument("--parser", choices=("both", "rules"), default="both", help="as `nlu.parser` of a profile")
    options = parser.parse_args(arguments)
    store = Store.open()
    reader = ParserEngine.load(store.ensure("command-parser")) if options.parser == "both" else None
    lm = None if options.no_model else CausalLM.load(store.ensure("qwen2.5-coder-0.5b-instruct"), context_tokens=1024)
    tree = EmbeddedTree()
    dialogue = DialogueManager.create(tree, lm, parser=reader)
    dialogue.warm_up()
    score = Score()
    measure_text(score, typed_commands() + spoken_commands(options.audio), dialogue, tree)
    if not options.text_only:
        front_end = FrontEnd(
            WhisperEngine.load(store.ensure("whisper-base")), SileroVad.load(store.ensure("silero-vad"))
        )
        unbiased = DialogueManager.create(tree, None, by_sound=False, parser=reader)
        variants = {"full": (True, acting(dialogue, tree)), "unbiased": (False, acting(unbiased, tree))}
        if lm is not None:
            variants["no_grammar"] = (True, acting_freely(FreeJson(lm), dialogue, tree))
        levels = [int(level) for level in options.snr.split(",") if level]
        measure_audio(score, spoken_commands(options.audio), front_end, variants, levels)
    result = report(score)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        show(result)
    return 0
