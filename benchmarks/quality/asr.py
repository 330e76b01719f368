"""Word error rate and time of the recogniser beside faster-whisper: same weights, audio, threads and languages.

The peer: CTranslate2 int8 on the CPU, beam 1, its own language detection or, where that picks a language outside the
list, the likelier of the listed ones. English is scored by words, Chinese by characters, numbers read out in both.
`plain` is without hot words (as the peer runs), `biased` with the car's. Runs are interleaved; times are medians.

    python benchmarks/quality/asr.py [--json] [--limit N] [--threads 2]
"""

from __future__ import annotations

import argparse
import json
import re
import sys
import tempfile
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

from hil import AUDIO
from models.engines.base import Audio
from models.engines.whisper.engine import WhisperEngine
from models.store.store import Store
from pipeline.nlu.lexicon import hotwords
from pipeline.tts.normalise import spoken

RATE_HZ = 16_000
LANGUAGES = ("en", "zh")
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


Recognise = Callable[[Audio], tuple[str, str]]


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
    def run(samples: Audio) -> tuple[str, str]:
        heard = engine.transcribe(samples, languages=LANGUAGES, hotwords=words)
        return heard.text, heard.language

    return run


def ctranslate2_folder(source: Path, made: Path) -> Path:
    """The pinned files as CTranslate2 wants them, in `made`; the vocabulary (timestamps too) in a file of its own."""
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    ids = {**tokenizer["model"]["vocab"], **{t["content"]: t["id"] for t in tokenizer["added_tokens"]}}
    times = [f"<|{step * 0.02:.2f}|>" for step in range(1501)]
    vocabulary = [name for name in sorted(ids, key=ids.__getitem__) if name not in times] + times
    for name in ("model.bin", "config.json", "tokenizer.json"):
        (made / name).symlink_to(source / name)
    (made / "vocabulary.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return made


def peer(folder: Path, threads: int) -> Recognise:
    """faster-whisper as its documentation shows it, kept to LANGUAGES."""
    from faster_whisper import WhisperModel

    with tempfile.TemporaryDirectory() as made:
        files = ctranslate2_folder(folder, Path(made))
        model = WhisperModel(str(files), device="cpu", compute_type="int8", cpu_threads=threads)

    def run(samples: Audio) -> tuple[str, str]:
        options = {
            "beam_size": 1,
            "without_timestamps": samples.size <= 30 * RATE_HZ,
            "condition_on_previous_text": False,
        }
        segments, info = model.transcribe(samples, **options)
        if info.language not in LANGUAGES:
            shares = dict(info.all_language_probs or [])
            language = max(LANGUAGES, key=lambda name: shares.get(name, 0.0))
            segments, info = model.transcribe(samples, language=language, **options)
        return "".join(segment.text for segment in segments).strip(), info.language

    return run


def measure(found: Sequence[Clip], runs: dict[str, Recognise]) -> dict[str, dict[str, Score]]:
    """recogniser -> group -> score; every clip goes through every recogniser before the next one."""
    scores: dict[str, dict[str, Score]] = {name: {} for name in runs}
    for name, run in runs.items():
        run(found[0].samples)
        scores[name] = {group: Score() for group in (*dict.fromkeys(c.group for c in found), "overall")}
    for clip in found:
        expected = units(clip.text, clip.language)
        for name, run in runs.items():
            start_s = time.perf_counter()
            text, _ = run(clip.samples)
            took_ms = (time.perf_counter() - start_s) * 1000
            errors = Levenshtein.distance(units(text, clip.language), expected)
            for group in (clip.group, "overall"):
                score = scores[name][group]
                score.errors += errors
                score.units += len(expected)
                score.times_ms.append(took_ms)
    return scores


def report(scores: dict[str, dict[str, Score]]) -> dict[str, Any]:
    """Per group and overall: wer, peer_wer, biased_wer, time_ms, peer_time_ms, time_ratio (below 1: faster)."""
    out = {
        group: {
            "wer": round(plain.wer, 4),
            "peer_wer": round(scores["peer"][group].wer, 4),
            "biased_wer": round(scores["biased"][group].wer, 4),
            "time_ms": round(plain.median_ms, 1),
            "peer_time_ms": round(scores["peer"][group].median_ms, 1),
            "time_ratio": round(
                float(np.median(np.array(plain.times_ms) / np.array(scores["peer"][group].times_ms))), 3
            ),
        }
        for group, plain in scores["plain"].items()
    }
    overall = out.pop("overall")
    return {**overall, "groups": out}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = argparse.ArgumentParser(description=__doc__, formatter_class=argparse.RawDescriptionHelpFormatter)
    parser.add_argument("--json", action="store_true", help="print one JSON object")
    parser.add_argument("--limit", type=int, help="only the first N commands per language")
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    store = Store.open()
    engine = WhisperEngine.load(store.ensure("whisper-base"), threads=options.threads)
    engine.warm_up()
    words = (*hotwords("en"), *hotwords("zh"))
    runs = {
        "plain": own(engine, ()),
        "peer": peer(store.source_folder("whisper-base"), options.threads),
        "biased": own(engine, words),
    }
    result = report(measure(clips(store, options.limit), runs))
    if options.json:
        print(json.dumps(result))
        return 0
    print(f"{'':12}{'wer':>8}{'peer':>8}{'biased':>8}{'ms':>8}{'peer ms':>9}{'ratio':>7}")
    for group, row in (*result["groups"].items(), ("overall", result)):
        figures = (
            row["wer"],
            row["peer_wer"],
            row["biased_wer"],
            row["time_ms"],
            row["peer_time_ms"],
            row["time_ratio"],
        )
        print("{:12}{:8.3f}{:8.3f}{:8.3f}{:8.0f}{:9.0f}{:7.2f}".format(group, *figures))
    return 0


if __name__ == "__main__":
    sys.exit(main())
