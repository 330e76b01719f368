"""Commands spoken over a reply, and replies that say commands themselves: with the front end of `listen` and without.

    python -m benchmarks audio_front [--json] [--each N] [--levels -6,0,6] [--snr 10] [--parts over,false,barge]

The cabin is synthetic (`hil.cabin`): the loudspeaker distorts, its clock is 50 ppm off, its echo arrives 60 ms later
and reverberates. What it plays are recorded commands, so that whatever is heard of it could be obeyed. A command begins
half a second after the reply does; two replies before it have let the canceller settle.

right: share of commands that end exactly right, by loudness of the reply at the microphone against the driver and by
road noise (dB of the driver above it). turns, acted: replies that nobody spoke over which became a turn, and which then
acted on the car. ducked, stopped: audio time from the first sound of a command over a reply until the reply is
12 dB quieter, and until it is silent because the speech is too long for a backchannel (words may stop it before);
recognition's time is not in it.
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator, Sequence
from dataclasses import dataclass
from typing import Any

import numpy as np
import soundfile
from rich.console import Console
from rich.table import Table

from benchmarks.harness.paths import AUDIO
from benchmarks.harness.report import Report, command_line, report_options
from benchmarks.quality.scoring import Command, spoken_commands
from hil.acoustics.noise import active_level, road_noise
from hil.cabin import EchoPath, Loudspeaker, frames, heard
from hil.judge import run_command
from models.engines.base import Audio
from models.engines.vad.silero import SileroVad
from models.engines.vad.webrtc_gate import WebRtcGate
from models.engines.whisper.engine import WhisperEngine
from models.store.store import Store
from pipeline.audio.far_end import PlayedSound
from pipeline.audio.front_end import FrontConfig, FrontEnd
from pipeline.dialogue.manager import DialogueManager
from pipeline.endpointing.backchannel import LONGEST_MS
from pipeline.endpointing.endpointer import EndpointConfig, Endpointer
from pipeline.frames import SAMPLE_RATE_HZ, AudioFrame, Language, Utterance
from pipeline.nlu.lexicon import hotwords
from pipeline.turns import Generations, TurnIds
from pipeline.vehicle.signals import EmbeddedTree

VARIANTS = {
    "none": FrontConfig(echo="off"),
    "cancel": FrontConfig(),
    "half_duplex": FrontConfig(echo="half_duplex"),
    "cancel, noise low": FrontConfig(noise="low"),
    "cancel, noise high": FrontConfig(noise="high"),
    "cancel, gain": FrontConfig(gain="adaptive"),
}
LANGUAGES: tuple[Language, ...] = ("en", "zh")
PAUSE = np.zeros(SAMPLE_RATE_HZ * 6 // 10, np.float32)
BEFORE_COMMAND = SAMPLE_RATE_HZ // 2
BLOCK_MS = 10.0
"""The loudspeaker's: it is quieter, or silent, from its next block on."""
PPM = 50.0
BUDGET_S = 600.0


@dataclass(frozen=True, slots=True)
class Cabin:
    """One stretch of time: what is played, what the driver says beside road noise, and where in the samples."""

    played: Audio
    near: Audio
    command_at: int
    echo_gain: float

    def frames(self, config: FrontConfig) -> Iterator[AudioFrame]:
        """What reaches the wake word."""
        source = Loudspeaker(PlayedSound(SAMPLE_RATE_HZ), self.played, start_s=0.3, ppm=PPM)
        microphone, _ = heard(self.near, [source], EchoPath(), self.echo_gain)
        clipped = np.clip(microphone, -1.0, 1.0)
        yield from FrontEnd(config, lambda: source.sound).frames(frames(clipped, [source], late_ms=3.0))


class Ear:
    """Endpointing and recognition of frames, as the chain does them."""

    def __init__(self, engine: WhisperEngine, vad: SileroVad) -> None:
        self._engine = engine
        self._vad = vad
        self._words = [word for language in LANGUAGES for word in hotwords(language)]

    def endpointer(self) -> Endpointer:
        self._vad.reset()
        return Endpointer(EndpointConfig(), WebRtcGate.load(), self._vad, Generations(), TurnIds())

    def turns(self, source: Iterator[AudioFrame]) -> list[Utterance]:
        """The turns as they ended."""
        endpointer = self.endpointer()
        ended = [pushed for frame in source for pushed in endpointer.push(frame) if pushed.stage == "final"]
        return list({utterance.turn_id: utterance for utterance in ended}.values())

    def text(self, utterance: Utterance) -> tuple[str, Language, float]:
        result = self._engine.transcribe(utterance.samples, languages=LANGUAGES, hotwords=self._words)
        return result.text, "zh" if result.language == "zh" else "en", result.avg_logprob


def recording(command: Command) -> Audio:
    """float32 at 16 kHz, without the second of silence behind it."""
    assert command.audio is not None
    samples, _ = soundfile.read(command.audio, dtype="float32")
    return np.asarray(samples[: len(samples) - SAMPLE_RATE_HZ * 8 // 10], np.float32)


def cabin(commands: Sequence[Command], index: int, reply_db: float, snr_db: float | None, *, speaks: bool) -> Cabin:
    """Command `index` over a reply that says another one, after two replies that say others."""
    others = [command for command in commands if command.language == commands[index].language]
    place = others.index(commands[index])
    *before, second = (recording(others[(place + step) % len(others)]) for step in (5, 7, 13))
    first = np.concatenate([part for reply in before for part in (reply, PAUSE)])
    played = np.concatenate([first, second])
    said = recording(commands[index])
    at = round(0.3 * SAMPLE_RATE_HZ) + len(first) + BEFORE_COMMAND
    near = np.zeros(max(at + len(said), len(played)) + SAMPLE_RATE_HZ * 3 // 2, np.float32)
    level = active_level(said)
    if speaks:
        near[at : at + len(said)] += said
    quiet = road_noise(len(near), 11 + index) * level * 10.0 ** (-(60.0 if snr_db is None else snr_db) / 20.0)
    gain = level / active_level(second) * 10.0 ** (reply_db / 20.0)
    return Cabin(played, (near + quiet).astype(np.float32), at, gain)


def first_sound(samples: Audio) -> int:
    """Where speech begins: the first 10 ms within 30 dB of the loudest."""
    blocks = np.abs(samples[: len(samples) // 160 * 160].reshape(-1, 160)).max(axis=1)
    return int(np.flatnonzero(blocks > blocks.max() * 10 ** (-30 / 20))[0]) * 160


def over_a_reply(ear: Ear, scene: Cabin, config: FrontConfig) -> tuple[str, Language, float]:
    """What is understood of all turns that go on behind the command's first sound."""
    texts, language, logprob = [], "en", 0.0
    for utterance in ear.turns(scene.frames(config)):
        if utterance.speech_end_sample > scene.command_at:
            text, heard_language, said = ear.text(utterance)
            if text:
                texts.append(text)
                language, logprob = heard_language, min(logprob, said)
    return " ".join(texts), "zh" if language == "zh" else "en", logprob


def barge_in(ear: Ear, scene: Cabin, config: FrontConfig, onset: int) -> tuple[float | None, float | None]:
    """Milliseconds of audio from `onset` until the reply is quieter, and until it is silent."""
    endpointer = ear.endpointer()
    ducked = stopped = None
    for frame in scene.frames(config):
        endpointer.push(frame)
        end = frame.first_sample + len(frame.samples)
        if end <= onset:
            continue
        after_ms = (end - onset) * 1000 / SAMPLE_RATE_HZ + BLOCK_MS
        if ducked is None and endpointer.speech_ms >= endpointer.config.barge_in_ms:
            ducked = after_ms
        if stopped is None and endpointer.speech_ms > LONGEST_MS:
            stopped = after_ms
    return ducked, stopped


@dataclass(slots=True)
class Run:
    """One run of the benchmark. `dialogue`: rules and the car, as every benchmark of commands has them."""

    ear: Ear
    tree: EmbeddedTree
    dialogue: DialogueManager
    commands: list[Command]
    report: Report

    def accuracy(self, names: Sequence[str], levels: Sequence[float], snrs: Sequence[float | None]) -> None:
        right: dict[str, list[int]] = {}
        for index, command in self._by_turns():
            for reply_db in levels:
                for snr_db in snrs:
                    if self.report.over(0.95):
                        continue
                    scene = cabin(self.commands, index, reply_db, snr_db, speaks=True)
                    noise = "quiet" if snr_db is None else f"{snr_db:g} dB"
                    for name in names:
                        text, language, logprob = over_a_reply(self.ear, scene, VARIANTS[name])
                        verdict = run_command(
                            self.dialogue, self.tree, text, language, command.expect, 1, avg_logprob=logprob
                        )
                        counted = right.setdefault(f"{name} | {reply_db:+g} dB | {noise}", [0, 0])
                        counted[0] += verdict.right
                        counted[1] += 1
            self.report.put(right=right)
            self.report.say(f"{command.id} over a reply")

    def _by_turns(self) -> list[tuple[int, Command]]:
        """The commands, one of each language after another, so that a run cut short has both."""
        order = sorted(enumerate(self.commands), key=lambda item: item[0] % (len(self.commands) // len(LANGUAGES)))
        return order

    def false_triggers(self, names: Sequence[str], snrs: Sequence[float | None]) -> None:
        counted: dict[str, dict[str, int]] = {}
        for index, command in enumerate(self.commands):
            for snr_db in snrs:
                scene = cabin(self.commands, index, 0.0, snr_db, speaks=False)
                noise = "quiet" if snr_db is None else f"{snr_db:g} dB"
                for name in names:
                    row = counted.setdefault(f"{name} | {noise}", {"replies": 0, "turns": 0, "acted": 0})
                    row["replies"] += 3
                    for utterance in self.ear.turns(scene.frames(VARIANTS[name])):
                        row["turns"] += 1
                        row["acted"] += self._acts(utterance)
            self.report.put(false_triggers=counted)
            self.report.say(f"{command.id}: nobody speaks")
            if self.report.over(0.9):
                return

    def _acts(self, utterance: Utterance) -> bool:
        text, language, logprob = self.ear.text(utterance)
        plan = self.dialogue.plan(text, language, avg_logprob=logprob)
        results = self.dialogue.execute(plan, 1)
        self.dialogue.roll_back(1)
        return any(result.status == "done" for result in results)

    def barge_ins(self, levels: Sequence[float]) -> None:
        found: dict[str, list[tuple[float | None, float | None]]] = {}
        for index, command in enumerate(self.commands):
            for reply_db in levels:
                scene = cabin(self.commands, index, reply_db, 20.0, speaks=True)
                onset = scene.command_at + first_sound(recording(command))
                times = barge_in(self.ear, scene, VARIANTS["cancel"], onset)
                found.setdefault(f"{reply_db:+g} dB", []).append(times)
        self.report.put(
            barge_in={
                level: {
                    what: _quantiles([row[place] for row in rows]) for place, what in enumerate(("ducked", "stopped"))
                }
                for level, rows in found.items()
            }
        )


def _quantiles(values: Sequence[float | None]) -> dict[str, float | int | None]:
    there = [value for value in values if value is not None]
    p50, p95 = (round(float(value)) for value in np.percentile(there, (50, 95))) if there else (None, None)
    return {"p50_ms": p50, "p95_ms": p95, "of": len(values), "never": len(values) - len(there)}


def show(values: dict[str, Any]) -> None:
    """Three tables."""
    console = Console()
    table = Table("front end | reply against driver | driver against road", "right", "of", title="Over a reply")
    for name, (right, total) in values.get("right", {}).items():
        table.add_row(name, f"{100 * right / total:.0f} %", str(total))
    console.print(table)
    table = Table("front end | noise", "replies", "turns", "acted", title="Nobody speaks")
    for name, row in values.get("false_triggers", {}).items():
        table.add_row(name, *(str(row[key]) for key in ("replies", "turns", "acted")))
    console.print(table)
    for level, row in values.get("barge_in", {}).items():
        console.print(f"barge-in, reply at {level}: {row}")
    console.print(f"load of the machine before and after: {values['load']}")


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--each", type=int, default=8, help="commands per language")
    parser.add_argument("--levels", default="-6,0,6", help="dB of the reply against the driver")
    parser.add_argument("--snr", default="10", help="dB of the driver above road noise, beside none")
    parser.add_argument("--variants", default="none,cancel", help=f"of {', '.join(VARIANTS)}, separated by ;")
    parser.add_argument("--parts", default="over,false,barge", help="which of the three to measure")
    report_options(parser, BUDGET_S)
    options = parser.parse_args(arguments)
    names = options.variants.split(";") if ";" in options.variants else options.variants.split(",")
    if unknown := [name for name in names if name not in VARIANTS]:
        parser.error(f"there is no variant {unknown[0]!r}: {', '.join(VARIANTS)}")
    store = Store.open()
    spoken = spoken_commands(AUDIO)
    chosen = [c for language in LANGUAGES for c in [s for s in spoken if s.language == language][: options.each]]
    tree = EmbeddedTree()
    dialogue = DialogueManager.create(tree)
    dialogue.warm_up()
    ear = Ear(WhisperEngine.load(store.ensure("whisper-base")), SileroVad.load(store.ensure("silero-vad")))
    run = Run(ear, tree, dialogue, chosen, Report(options.out, options.budget_s))
    levels = [float(level) for level in options.levels.split(",")]
    snrs = [None, *(float(level) for level in options.snr.split(",") if level)]
    before = os.getloadavg()[0]
    parts = options.parts.split(",")
    if "barge" in parts:
        run.barge_ins(levels)
    if "false" in parts:
        run.false_triggers(names, snrs)
    if "over" in parts:
        run.accuracy(names, levels, snrs)
    run.report.put(load=[round(before, 1), round(os.getloadavg()[0], 1)])
    if options.json:
        print(json.dumps(run.report.values))
    else:
        show(run.report.values)
    return 0
