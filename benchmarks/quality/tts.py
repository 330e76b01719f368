"""Time to first sound and real-time factor of the English voice beside piper-tts on the same texts; Mandarin alone.

    python -m benchmarks tts [--json] [--rounds N] [--threads N]

Runs are interleaved (one text, each engine, again), so that both meet the same load of the machine. Times run from a
whole reply as text to samples: clauses, normalising and phonemes included. `first`: until the first samples are out;
`rtf`: time for everything, by the seconds of audio made. piper-tts (GPL, the `bench` extra) makes whole sentences, so
its first sound is its first sentence.
"""

from __future__ import annotations

import argparse
import json
import statistics
import sys
import time
from collections.abc import Callable, Iterator
from typing import Any

from models.engines.base import Voice
from models.engines.tts import zh_voice
from models.engines.tts.espeak import EspeakVoice, EspeakWorker
from models.engines.tts.piper import PiperVoice
from models.store.store import Store
from pipeline.frames import Language
from pipeline.tts.clauses import ClauseStream
from pipeline.tts.normalise import spoken

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
Speak = Callable[[str], Iterator[int]]


def measure(speak: Speak, text: str, sample_rate_hz: int) -> tuple[float, float, float]:
    """First sound (ms), everything (ms) and seconds of audio of one synthesis; `speak` yields sample counts."""
    start = time.perf_counter()
    pieces = speak(text)
    samples = next(pieces)
    first_ms = (time.perf_counter() - start) * 1e3
    samples += sum(pieces)
    return first_ms, (time.perf_counter() - start) * 1e3, samples / sample_rate_hz


def compare(engines: dict[str, tuple[Speak, int]], texts: dict[str, str], rounds: int) -> list[dict[str, Any]]:
    """Medians per text and engine over interleaved rounds; the first round warms up and is not counted."""
    rows: list[dict[str, Any]] = []
    for label, text in texts.items():
        taken: dict[str, list[tuple[float, float, float]]] = {name: [] for name in engines}
        for _ in range(rounds + 1):
            for name, (speak, rate) in engines.items():
                taken[name].append(measure(speak, text, rate))
        for name, runs in taken.items():
            first_ms, whole_ms, seconds = zip(*runs[1:], strict=True)
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
    """Our own way from reply text to samples."""

    def speak(text: str) -> Iterator[int]:
        stream = ClauseStream(language)
        for clause in [*stream.push(text), *stream.close()]:
            for chunk in voice.synthesise(spoken(clause, language)):
                yield chunk.size

    return speak


def piper_tts(store: Store, threads: int) -> tuple[Speak, int] | None:
    """The published engine on the same checkpoint and threads, or None where the `bench` extra is not installed."""
    try:
        import onnxruntime as ort
        import piper
    except ImportError:
        return None
    model, config = (store.source("piper-en-joe", f"en_US-joe-medium.onnx{end}") for end in ("", ".json"))
    voice = piper.PiperVoice.load(model, config)
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    voice.session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])

    def speak(text: str) -> Iterator[int]:
        for chunk in voice.synthesize(text):
            yield len(chunk.audio_int16_array)

    return speak, voice.config.sample_rate


def run(rounds: int, threads: int) -> dict[str, Any]:
    """The whole benchmark as one JSON-able answer."""
    store = Store.open()
    worker = EspeakWorker.load(store.ensure("espeak-ng"))
    start = time.perf_counter()
    english = PiperVoice.load(store.ensure("piper-en-joe"), threads=threads, phonemizer=worker)
    english.warm_up()
    ready_ms = (time.perf_counter() - start) * 1e3
    mandarin = EspeakVoice.load(store.ensure("espeak-ng"))
    mandarin.warm_up()

    engines = {"cockpit": (cockpit(english, "en"), english.sample_rate_hz)}
    peer = piper_tts(store, threads)
    if peer is not None:
        engines["piper-tts"] = peer
    rows = compare(engines, ENGLISH, rounds)
    engines_zh = {"espeak-ng": (cockpit(mandarin, "zh"), mandarin.sample_rate_hz)}
    if store.is_built(zh_voice.MODEL):
        chosen = zh_voice.ZhVoice.load(store.built(zh_voice.MODEL), threads=threads)
        engines_zh[zh_voice.MODEL] = (cockpit(chosen, "zh"), chosen.sample_rate_hz)
    rows_zh = compare(engines_zh, MANDARIN, rounds)
    worker.close()
    mandarin.close()
    return {"threads": threads, "rounds": rounds, "load_and_warm_up_ms": round(ready_ms), "en": rows, "zh": rows_zh}


def main() -> None:
    """Command line."""
    parser = argparse.ArgumentParser(description=__doc__.splitlines()[0] if __doc__ else None)
    parser.add_argument("--json", action="store_true")
    parser.add_argument("--rounds", type=int, default=9)
    parser.add_argument("--threads", type=int, default=2)
    arguments = parser.parse_args()
    result = run(arguments.rounds, arguments.threads)
    if arguments.json:
        json.dump(result, sys.stdout, indent=1)
        print()
        return
    print(f"{result['threads']} threads, medians of {result['rounds']}")
    print(f"loaded and warm after {result['load_and_warm_up_ms']} ms")
    print(f"{'text':10}{'engine':12}{'first ms':>10}{'worst':>8}{'whole ms':>10}{'audio s':>9}{'rtf':>8}")
    for row in [*result["en"], *result["zh"]]:
        print(
            f"{row['text']:10}{row['engine']:12}{row['first_ms']:10.1f}{row['first_worst_ms']:8.1f}"
            f"{row['whole_ms']:10.1f}{row['audio_s']:9.2f}{row['rtf']:8.4f}"
        )


if __name__ == "__main__":
    main()
