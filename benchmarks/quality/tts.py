"""Time to first sound and real-time factor of the English voice beside piper-tts on the same texts; Mandarin alone.

    python -m benchmarks tts [--json] [--rounds N] [--threads N]

Runs are interleaved (one text, each engine, again), so that both meet the same load of the machine. Times run from a
whole reply as text to samples: clauses, normalising and phonemes included. `first`: until the first samples are out;
`rtf`: time for everything, by the seconds of audio made. piper-tts (GPL, the `bench` extra) makes whole sentences, so
its first sound is its first sentence. When it is not
installed, dies or hangs, the result says so, it has no rows and the ratio is null.
"""

from __future__ import annotations

import json
import statistics
import time
from collections.abc import Callable, Iterator, Sequence
from typing import Any

from benchmarks.harness.report import command_line
from benchmarks.peers.piper import PiperTts
from benchmarks.peers.process import Peer, PeerProcess
from models.engines.base import Voice
from models.engines.tts import zh_voice
from models.engines.tts.espeak import EspeakVoice, EspeakWorker
from models.engines.tts.piper import PiperVoice
from models.store.store import Store
from pipeline.frames import Language
from pipeline.tts.clauses import ClauseStream
from pipeline.tts.normalise import spoken

PEER = Peer.PIPER_TTS.package
ENGLISH = {
    "short": "Okay, turning left.",
    "clause": "I set the temperature to 21.5°C.",
    "sentence": "Your destination is 3.2 km away, and you will arrive at 10:45 with 64% of the battery left.",
    "long": "I could not find a charging station on this road, so I looked a little further: the next one is 12 km "
    "ahead at exit 14B, it has four free places with 150 kW each, and charging to 80% will take about 25 minutes.",
}
MANDARIN = {
    "short": "好的，正在左转。",
    "sentence": "距离目的地还有3.2公里，预计10:45到达，剩余电量64%。",
}
Spoken = tuple[float, float, float]
"""First sound (ms), everything (ms) and seconds of audio of one synthesis."""
Speak = Callable[[str], "Spoken | None"]
"""None: the engine gave no answer."""


def compare(engines: dict[str, Speak], texts: dict[str, str], rounds: int) -> list[dict[str, Any]]:
    """Medians per text and engine over interleaved rounds; the first round warms up and is not counted.

    An engine that fails has no row from that text on.
    """
    rows: list[dict[str, Any]] = []
    for label, text in texts.items():
        taken: dict[str, list[Spoken | None]] = {name: [] for name in engines}
        for _ in range(rounds + 1):
            for name, speak in engines.items():
                taken[name].append(speak(text))
        for name, runs in taken.items():
            answered = [run for run in runs[1:] if run is not None]
            if len(answered) < rounds:
                continue
            first_ms, whole_ms, seconds = zip(*answered, strict=True)
            rows.append(
                {
                    "text": label,
                    "engine": name,
                    "first_ms": round(statistics.median(first_ms), 1),
                    "first_worst_ms": round(max(first_ms), 1),
                    "whole_ms": round(statistics.median(whole_ms), 1),
                    "audio_s": round(statistics.median(seconds), 2),
                    "rtf": round(statistics.median(w / 1e3 / s for w, s in zip(whole_ms, seconds, strict=True)), 4),
                }
            )
    return rows


def cockpit(voice: Voice, language: Language) -> Speak:
    """Cockpit's own way from reply text to samples."""

    def samples(text: str) -> Iterator[int]:
        stream = ClauseStream(language)
        for clause in [*stream.push(text), *stream.close()]:
            for chunk in voice.synthesise(spoken(clause, language)):
                yield chunk.size

    def speak(text: str) -> Spoken:
        start_s = time.perf_counter()
        pieces = samples(text)
        count = next(pieces)
        first_ms = (time.perf_counter() - start_s) * 1e3
        count += sum(pieces)
        return first_ms, (time.perf_counter() - start_s) * 1e3, count / voice.sample_rate_hz

    return speak


def run(rounds: int, threads: int) -> dict[str, Any]:
    """The whole benchmark as one JSON-able answer."""
    store = Store.open()
    worker = EspeakWorker.load(store.ensure("espeak-ng"))
    start_s = time.perf_counter()
    english = PiperVoice.load(store.ensure("piper-en-joe"), threads=threads, phonemizer=worker)
    english.warm_up()
    ready_ms = (time.perf_counter() - start_s) * 1e3
    mandarin = EspeakVoice.load(store.ensure("espeak-ng"))
    mandarin.warm_up()
    model, config = (store.source("piper-en-joe", f"en_US-joe-medium.onnx{end}") for end in ("", ".json"))
    peer = PeerProcess(Peer.PIPER_TTS, PiperTts, model, config, threads)
    try:
        engines = {"cockpit": cockpit(english, "en"), PEER: lambda text: peer.attempt("measure", text)}
        rows = compare(engines, ENGLISH, rounds)
    finally:
        peer.close()
    engines_zh = {"espeak-ng": cockpit(mandarin, "zh")}
    if store.is_built(zh_voice.MODEL):
        neural = zh_voice.ZhVoice.load(store.built(zh_voice.MODEL), threads=threads)
        engines_zh[zh_voice.MODEL] = cockpit(neural, "zh")
    rows_zh = compare(engines_zh, MANDARIN, rounds)
    worker.close()
    mandarin.close()
    ours, theirs = ([row["first_ms"] for row in rows if row["engine"] == name] for name in ("cockpit", PEER))
    return {
        "threads": threads,
        "rounds": rounds,
        "load_and_warm_up_ms": round(ready_ms),
        "first_ratio": None if peer.failure else round(statistics.median(ours) / statistics.median(theirs), 3),
        "en": rows,
        "zh": rows_zh,
        "peer": {"name": PEER, "failed": peer.failure},
    }


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    options = parser.parse_args(arguments)
    result = run(options.rounds, options.threads)
    if options.json:
        print(json.dumps(result, indent=1))
        return 0
    print(f"{result['threads']} threads, medians of {result['rounds']}")
    print(f"loaded and warm after {result['load_and_warm_up_ms']} ms")
    print(f"{'text':10}{'engine':12}{'first ms':>10}{'worst':>8}{'whole ms':>10}{'audio s':>9}{'rtf':>8}")
    for row in [*result["en"], *result["zh"]]:
        print(
            f"{row['text']:10}{row['engine']:12}{row['first_ms']:10.1f}{row['first_worst_ms']:8.1f}"
            f"{row['whole_ms']:10.1f}{row['audio_s']:9.2f}{row['rtf']:8.4f}"
        )
    if result["peer"]["failed"]:
        print(f"no figures of the peer: {result['peer']['failed']}")
    return 0
