"""Share of spoken commands that end in exactly the right state, answer or refusal.

Per language: typed text, and the whole chain (voice activity, recogniser, understanding) on the recorded commands,
clean and in road noise at 20, 10 and 5 dB. Beside it the same chain without biasing (no hot words, no matching by
sound) and without the grammar (the language model writes JSON freely; what is no call counts as nothing done), both
clean. A wrong action: something changed although the command was to be refused. A stray action: another command changed
what it should not have.

    python benchmarks/quality/commands.py [--json] [--text-only] [--audio DIR] [--snr 20,10,5] [--no-model]
"""

from __future__ import annotations

import argparse
import json
import sys
from collections import Counter
from collections.abc import Callable, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf
from rich.console import Console
from rich.table import Table
from ruamel.yaml import YAML

from benchmarks.quality.commands_free import FreeJson
from hil.judge import Verdict, judge, prepare, run_command
from hil.noise import mix, road_noise
from models.engines.base import Audio
from models.engines.llm.causal_lm import CausalLM
from models.engines.vad.silero import SileroVad
from models.engines.vad.webrtc_gate import WebRtcGate
from models.engines.whisper.engine import WhisperEngine
from models.store.store import Store
from pipeline.dialogue.manager import DialogueManager, Plan
from pipeline.endpointing.endpointer import EndpointConfig, Endpointer
from pipeline.frames import AudioFrame, Language
from pipeline.nlu.lexicon import hotwords
from pipeline.turns import Generations, TurnIds
from pipeline.vehicle.signals import EmbeddedTree

ROOT = Path(__file__).resolve().parents[2]
AUDIO = ROOT / "hil" / "audio"
TEXTS = ROOT / "tests" / "data" / "commands_text.yaml"
LANGUAGES: tuple[Language, ...] = ("en", "zh")
FRAME_SAMPLES = 320
RATE_HZ = 16_000
NOISE_SEED = 11


@dataclass(frozen=True, slots=True)
class Command:
    """One command: what is said, how, and what must come of it."""

    id: str
    language: Language
    text: str
    expect: tuple[str, ...]
    audio: Path | None = None


class Score:
    """Right ends per language and condition, and every wrong action by name."""

    def __init__(self) -> None:
        self.right: Counter[tuple[str, str]] = Counter()
        self.total: Counter[tuple[str, str]] = Counter()
        self.wrong_actions: list[str] = []
        self.stray_actions: list[str] = []
        self.misses: list[str] = []

    def add(self, condition: str, command: Command, heard: str, verdict: Verdict) -> None:
        """Count one verdict."""
        key = (condition, command.language)
        self.total[key] += 1
        self.right[key] += verdict.right
        if verdict.wrong_action:
            kept = self.wrong_actions if command.expect[0] == "refuse" else self.stray_actions
            kept.append(f"{condition} {command.id}: {heard}")
        if not verdict.right:
            self.misses.append(f"{condition} {command.id}: {heard}")

    def share(self, condition: str, language: str) -> float | None:
        """Share right, None when nothing was counted."""
        total = self.total[condition, language]
        return round(self.right[condition, language] / total, 4) if total else None


def spoken_commands(folder: Path) -> list[Command]:
    """The recorded commands of a folder with manifest.yaml."""
    rows = YAML(typ="safe").load((folder / "manifest.yaml").read_text(encoding="utf-8"))
    return [Command(r["id"], r["lang"], r["text"], tuple(r["expect"]), folder / r["file"]) for r in rows]


def typed_commands() -> list[Command]:
    """The typed commands of the tests."""
    splits = YAML(typ="safe").load(TEXTS.read_text(encoding="utf-8"))
    rows = [(split, i, row) for split in splits for i, row in enumerate(splits[split])]
    return [Command(f"{split}{i}", row[0], row[1], tuple(row[2:])) for split, i, row in rows]


class Ear:
    """Voice activity and recogniser: samples to text, as the chain does it."""

    def __init__(self, engine: WhisperEngine, judge_of_speech: SileroVad) -> None:
        self._engine = engine
        self._vad = judge_of_speech

    def hear(self, samples: Audio, *, biased: bool) -> tuple[str, Language, float]:
        """The text of everything said, its language and the lowest mean log-probability; empty when the endpointer
        found no speech.
        """
        texts: list[str] = []
        language: Language = "en"
        logprob = 0.0
        for utterance in self._turns(samples):
            result = self._engine.transcribe(
                utterance,
                languages=LANGUAGES,
                hotwords=[w for lang in LANGUAGES for w in hotwords(lang)] if biased else (),
            )
            if result.text:
                texts.append(result.text)
                language = "zh" if result.language == "zh" else "en"
                logprob = min(logprob, result.avg_logprob)
        return " ".join(texts), language, logprob

    def _turns(self, samples: Audio) -> list[Audio]:
        self._vad.reset()
        endpointer = Endpointer(EndpointConfig(), WebRtcGate.load(), self._vad, Generations(), TurnIds())
        finals = {}
        for start in range(0, len(samples), FRAME_SAMPLES):
            part = samples[start : start + FRAME_SAMPLES]
            last = start + FRAME_SAMPLES >= len(samples)
            captured_ns = (start + len(part)) * 1_000_000_000 // RATE_HZ
            for utterance in endpointer.push(AudioFrame(part, start, captured_ns, last)):
                if utterance.stage == "final":
                    finals[utterance.turn_id] = utterance.samples
        return list(finals.values())


def samples_of(command: Command, snr_db: int | None) -> Audio:
    """The recording at 16 kHz, in noise where asked for."""
    assert command.audio is not None
    samples, rate_hz = sf.read(command.audio, dtype="float32")
    assert rate_hz == RATE_HZ, command.audio
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
    ear: Ear,
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
                    heard[biased] = ear.hear(samples_of(command, snr_db), biased=biased)
                text, language, logprob = heard[biased]
                label = condition if name == "full" else name
                score.add(label, command, text, act(command, text, language, logprob))


def acting(dialogue: DialogueManager, tree: EmbeddedTree) -> Callable[[Command, str, Language, float], Verdict]:
    """The chain's own way from text to car."""
    return lambda command, text, language, logprob: run_command(
        dialogue, tree, text, language, command.expect, 1, avg_logprob=logprob
    )


def acting_freely(
    free: FreeJson, dialogue: DialogueManager, tree: EmbeddedTree
) -> Callable[[Command, str, Language, float], Verdict]:
    """The same without grammar and words: whatever JSON the model writes is tried."""

    def act(command: Command, text: str, language: Language, logprob: float) -> Verdict:
        before = prepare(tree, command.expect)
        calls = free.calls(text)
        plan = Plan(text, language, calls, chat=not calls)
        results = dialogue.execute(plan, 2)
        reply = "(talk)" if plan.chat else dialogue.reply(plan, results, language)
        verdict = judge(command.expect, before, tree.snapshot(), plan, results, reply)
        dialogue.roll_back(2)
        return verdict

    return act


def report(score: Score) -> dict[str, Any]:
    """All figures as one object."""
    clean = "clean" if score.total["clean", "en"] or score.total["clean", "zh"] else "text"
    own = [line for line in score.wrong_actions if not line.startswith(("unbiased", "no_grammar"))]
    conditions = sorted({condition for condition, _ in score.total})
    result: dict[str, Any] = {
        "accuracy_en": score.share(clean, "en"),
        "accuracy_zh": score.share(clean, "zh"),
        "wrong_actions": len(own),
        "stray_actions": sum(not line.startswith(("unbiased", "no_grammar")) for line in score.stray_actions),
        "measured_on": clean,
    }
    result["conditions"] = {c: {lang: score.share(c, lang) for lang in LANGUAGES} for c in conditions}
    for name in ("unbiased", "no_grammar"):
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
    for line in result["wrong"]:
        console.print(f"  acted {line}", markup=False)
    for line in result["misses"]:
        console.print(f"  missed {line}", markup=False)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--text-only", action="store_true", help="typed commands only: needs no model but the LLM")
    parser.add_argument("--audio", type=Path, default=AUDIO, help="folder with manifest.yaml and WAVs")
    parser.add_argument("--snr", default="20,10,5", help="road noise levels in dB, comma-separated; empty for none")
    parser.add_argument("--no-model", action="store_true", help="leave the LLM out: open choices go to the words")
    options = parser.parse_args(arguments)
    store = Store.open()
    lm = None if options.no_model else CausalLM.load(store.ensure("qwen2.5-coder-0.5b-instruct"), context_tokens=1024)
    tree = EmbeddedTree()
    dialogue = DialogueManager.create(tree, lm)
    dialogue.warm_up()
    score = Score()
    measure_text(score, typed_commands() + spoken_commands(options.audio), dialogue, tree)
    if not options.text_only:
        ear = Ear(WhisperEngine.load(store.ensure("whisper-base")), SileroVad.load(store.ensure("silero-vad")))
        deaf = DialogueManager.create(tree, None, by_sound=False)
        variants = {"full": (True, acting(dialogue, tree)), "unbiased": (False, acting(deaf, tree))}
        if lm is not None:
            variants["no_grammar"] = (True, acting_freely(FreeJson(lm), dialogue, tree))
        levels = [int(level) for level in options.snr.split(",") if level]
        measure_audio(score, spoken_commands(options.audio), ear, variants, levels)
    result = report(score)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
    else:
        show(result)
    return 0


if __name__ == "__main__":
    sys.exit(main())
