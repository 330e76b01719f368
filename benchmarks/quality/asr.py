"""Word error rate and time of the recogniser beside faster-whisper: same weights, audio, threads and languages.

The peer: CTranslate2 int8 on the CPU, beam 1, its own language detection or, where that picks a language outside the
list, the likelier of the listed ones. English is scored by words, Chinese by characters, numbers read out in both.
`plain` is without hot words (as the peer runs), `biased` with the car's. Runs are interleaved; times are
medians. When the peer is not installed, dies or hangs, the result says so and its figures are null.

    python -m benchmarks asr [--json] [--limit N] [--threads 2]
"""

from __future__ import annotations

import json
import re
import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soundfile as sf
import soxr
from opencc import OpenCC
from rapidfuzz.distance import Levenshtein
from ruamel.yaml import YAML

from benchmarks.harness.front_end import LANGUAGES
from benchmarks.harness.paths import AUDIO
from benchmarks.harness.report import command_line
from benchmarks.peers.process import Peer, PeerProcess
from benchmarks.peers.whisper import FasterWhisper
from models.engines.base import Audio
from models.engines.whisper.engine import WhisperEngine
from models.store.store import Store
from pipeline.nlu.lexicon import hotwords
from pipeline.tts.normalise import spoken

RATE_HZ = 16_000

SIMPLIFIED = OpenCC("t2s")
TWO_CITIES = """It was the best of times, it was the worst of times, it was the age of wisdom, it was the age of
foolishness, it was the epoch of belief, it was the epoch of incredulity, it was the season of Light, it was the season
of Darkness, it was the spring of hope, it was the winter of despair, we had everything before us, we had nothing before
us, we were all going direct to Heaven, we were all going direct the other way – in short, the period was so far like
the present period, that some of its noisiest authorities insisted on its being received, for good or for evil, in the
superlative degree of comparison only."""
BECKETT = "Ever tried. Ever failed. No matter. Try again. Fail again. Fail better."


@dataclass(frozen=True, slots=True)
class Clip:
    """One recording and what is said in it. `group`: where its figures are counted."""

    name: str
    group: str
    language: str
    text: str
    samples: Audio


@dataclass(slots=True)
class Score:
    """Errors and times of one recogniser over one group."""

    errors: int = 0
    units: int = 0
    times_ms: list[float] = field(default_factory=list)

    @property
    def wer(self) -> float:
        return self.errors / max(1, self.units)

    @property
    def median_ms(self) -> float:
        return float(np.median(self.times_ms))


Recognise = Callable[[Audio], "tuple[str, float] | None"]
"""Samples to (text, ms); None: it gave no answer."""


def read_wav(path: Path) -> Audio:
    samples, rate_hz = sf.read(path, dtype="float32", always_2d=True)
    return np.asarray(soxr.resample(samples.mean(axis=1), rate_hz, RATE_HZ), dtype=np.float32)


def units(text: str, language: str) -> list[str]:
    """Words of English, characters of (simplified) Chinese, numbers read out, signs left out."""
    words = spoken(text, language).lower() if text else ""  # type: ignore[arg-type]
    if language == "en":
        return re.findall(r"[a-z']+", words.replace("-", " "))
    return list(re.sub(r"\W", "", SIMPLIFIED.convert(words)))


def clips(store: Store, limit: int | None) -> list[Clip]:
    """The commands of both languages, then real speech."""
    entries = YAML(typ="safe").load((AUDIO / "manifest.yaml").read_text(encoding="utf-8"))
    found = [Clip(e["id"], e["lang"], e["lang"], e["text"], read_wav(AUDIO / e["file"])) for e in entries]
    if limit is not None:
        found = [clip for name in LANGUAGES for clip in [c for c in found if c.language == name][:limit]]
    speech = store.ensure("test-audio")
    for name, text in (("two_cities", TWO_CITIES), ("beckett", BECKETT)):
        found.append(Clip(name, "real_speech", "en", text, read_wav(speech / f"{name}.wav")))
    return found


def own(engine: WhisperEngine, words: Sequence[str]) -> Recognise:
    """Cockpit's recogniser with these hot words."""

    def run(samples: Audio) -> tuple[str, float]:
        start_s = time.perf_counter()
        heard = engine.transcribe(samples, languages=LANGUAGES, hotwords=words)
        return heard.text, (time.perf_counter() - start_s) * 1e3

    return run


def theirs(peer: PeerProcess) -> Recognise:
    """The peer's, which takes its own time."""

    def run(samples: Audio) -> tuple[str, float] | None:
        heard = peer.attempt("transcribe", samples)
        return None if heard is None else (heard[0], heard[2])

    return run


def measure(found: Sequence[Clip], runs: dict[str, Recognise]) -> dict[str, dict[str, Score]]:
    """recogniser -> group -> score; every clip goes through every recogniser before the next one. One that gives no
    answer to some clip is left out of the result."""
    groups = (*dict.fromkeys(clip.group for clip in found), "overall")
    scores = {name: {group: Score() for group in groups} for name, run in runs.items() if run(found[0].samples)}
    for clip in found:
        expected = units(clip.text, clip.language)
        for name in list(scores):
            heard = runs[name](clip.samples)
            if heard is None:
                del scores[name]
                continue
            errors = Levenshtein.distance(units(heard[0], clip.language), expected)
            for group in (clip.group, "overall"):
                score = scores[name][group]
                score.errors += errors
                score.units += len(expected)
                score.times_ms.append(heard[1])
    return scores


def report(scores: dict[str, dict[str, Score]], failure: str | None) -> dict[str, Any]:
    """Per group and overall: wer, peer_wer, biased_wer, time_ms, peer_time_ms, time_ratio (below 1: faster).

    failure: why the peer has no figures, which are then None.
    """
    out = {}
    for group, plain in scores["plain"].items():
        peer = scores["peer"][group] if "peer" in scores else None
        ratio = None if peer is None else float(np.median(np.array(plain.times_ms) / np.array(peer.times_ms)))
        out[group] = {
            "wer": round(plain.wer, 4),
            "peer_wer": None if peer is None else round(peer.wer, 4),
            "biased_wer": round(scores["biased"][group].wer, 4),
            "time_ms": round(plain.median_ms, 1),
            "peer_time_ms": None if peer is None else round(peer.median_ms, 1),
            "time_ratio": None if ratio is None else round(ratio, 3),
        }
    overall: dict[str, Any] = out.pop("overall")
    return {**overall, "groups": out, "peer": {"name": Peer.FASTER_WHISPER.package, "failed": failure}}


def table(result: dict[str, Any]) -> str:
    """The results for people."""
    forms = {"wer": "8.3f", "peer_wer": "8.3f", "biased_wer": "8.3f"}
    forms |= {"time_ms": "8.0f", "peer_time_ms": "9.0f", "time_ratio": "7.2f"}
    lines = [f"{'':12}{'wer':>8}{'peer':>8}{'biased':>8}{'ms':>8}{'peer ms':>9}{'ratio':>7}"]
    for group, row in (*result["groups"].items(), ("overall", result)):
        cells = (
            f"{'-':>{form.partition('.')[0]}}" if row[key] is None else f"{row[key]:{form}}"
            for key, form in forms.items()
        )
        lines.append(f"{group:12}{''.join(cells)}")
    if result["peer"]["failed"]:
        lines.append(f"no figures of the peer: {result['peer']['failed']}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--limit", type=int, help="only the first N commands per language")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    store = Store.open()
    engine = WhisperEngine.load(store.ensure("whisper-base"), threads=options.threads)
    engine.warm_up()
    words = (*hotwords("en"), *hotwords("zh"))
    files = store.source_folder("whisper-base")
    peer = PeerProcess(Peer.FASTER_WHISPER, FasterWhisper, files, options.threads, LANGUAGES)
    try:
        runs = {"plain": own(engine, ()), "peer": theirs(peer), "biased": own(engine, words)}
        result = report(measure(clips(store, options.limit), runs), peer.failure)
    finally:
        peer.close()
    print(json.dumps(result) if options.json else table(result))
    return 0
