"""The first request after warm-up against steady state, and against a cold start, each in a fresh process.

    python -m benchmarks warmup [--device cpu|cuda] [--json] [--engines llm,asr,tts] [--processes 3]

cold: a process that loads nothing before its first request arrives, so that request pays for loading and for every
first run. cold_run: the model was loaded at start, but nothing was run. warm: loaded, `warm_up()` and `warmup_requests`
requests of other content, then the first real one (on a GPU, `warm_up()` captures its graphs). steady: median of the
requests that follow in the same process. Files may come from the page cache in every case: what is measured is the
process, not the disk.
"""

from __future__ import annotations

import argparse
import json
import statistics
import subprocess
import sys
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import TYPE_CHECKING, Any

from benchmarks.harness.report import command_line
from hil import AUDIO
from models.store.store import Store

if TYPE_CHECKING:  # a cold process pays for importing ONNX Runtime
    from models.engines.placement import Placement

WARMUP_REQUESTS = 5
"""The profile's `warmup_requests` of the navigation task."""
STEADY_REQUESTS = 7
THREADS = 2
NUMBERS = "one two three four five six seven eight nine ten eleven twelve thirteen fourteen"
KINDS = ("cold", "cold_run", "warm")
Request = Callable[[int], Any]
Loader = Callable[["Placement | None"], tuple[Request, Callable[[], None]]]
"""Loads an engine into a lane of a GPU, or on the CPU."""
LANE = "lane"


def built(kind: str, placement: Placement | None) -> Path:
    """The default model of that kind for the placement."""
    from benchmarks.harness.devices import ON_CPU, ON_CUDA

    return Store.open().ensure((ON_CPU if placement is None else ON_CUDA)[kind])


def load_llm(placement: Placement | None) -> tuple[Request, Callable[[], None]]:
    """A turn: a prompt of 64 tokens that shares no prefix with the last one, 8 tokens of reply."""
    from models.engines.llm.causal_lm import CausalLM

    lanes = None if placement is None else {LANE: placement}
    lm = CausalLM.load(built("llm", placement), threads=THREADS, context_tokens=512, placements=lanes, slots=2)
    text = lm.tokenizer.encode("The driver asked for a warmer cabin before the motorway, and it began to rain. " * 8)
    session = lm.open_session()

    def request(index: int) -> None:
        session.set_tokens(text[index : index + 64])
        list(session.generate(max_new_tokens=8))

    return request, lm.warm_up


def load_asr(placement: Placement | None) -> tuple[Request, Callable[[], None]]:
    """One of the recorded commands."""
    import soundfile

    from models.engines.whisper.engine import WhisperEngine

    recognizer = WhisperEngine.load(built("asr", placement), threads=THREADS, placement=placement)
    path = AUDIO / "en01.wav"
    samples, rate = soundfile.read(path, dtype="float32")
    if rate != 16_000:
        raise ValueError(f"{path} is at {rate} Hz, not 16 kHz")
    return (lambda index: recognizer.transcribe(samples[index:], languages=("en",))), recognizer.warm_up


def load_tts(placement: Placement | None) -> tuple[Request, Callable[[], None]]:
    """One clause, sentence by sentence another one of the same length."""
    from models.engines.tts.espeak import EspeakWorker
    from models.engines.tts.piper import PiperVoice

    worker = EspeakWorker.load(Store.open().ensure("espeak-ng"))
    voice = PiperVoice.load(built("tts", placement), threads=THREADS, placement=placement, phonemizer=worker)
    return (lambda index: list(voice.synthesise(f"Turn left in {NUMBERS.split()[index]} kilometres."))), voice.warm_up


LOADERS: dict[str, Loader] = {"llm": load_llm, "asr": load_asr, "tts": load_tts}


@contextmanager
def placement_on(device: str) -> Iterator[Placement | None]:
    """A lane of the GPU, opened for the body; None for the CPU."""
    if device == "cpu":
        yield None
        return
    from benchmarks.harness.devices import opened

    with opened(device, THREADS) as bench:
        yield bench.placement(bench.lanes[0])


def child(engine: str, kind: str, device: str) -> dict[str, float]:
    """In a fresh process: ms of the first request and the median of those after it."""
    loader = LOADERS[engine]
    began = time.perf_counter()
    with placement_on(device) as placement:
        request, warm_up = loader(placement)
        if kind != "cold":
            if kind == "warm":
                warm_up()
                for index in range(WARMUP_REQUESTS):
                    request(STEADY_REQUESTS + 1 + index)
            began = time.perf_counter()
        request(0)
        first_ms = (time.perf_counter() - began) * 1e3
        steady = []
        for index in range(STEADY_REQUESTS):
            began = time.perf_counter()
            request(1 + index)
            steady.append((time.perf_counter() - began) * 1e3)
    return {"first_ms": first_ms, "steady_ms": statistics.median(steady)}


def fresh(engine: str, kind: str, device: str) -> dict[str, float]:
    """`child` in a process of its own. Raises CalledProcessError with what it said on stderr."""
    command = [sys.executable, "-m", "benchmarks", "warmup", "--child", engine, kind, "--device", device]
    done = subprocess.run(command, capture_output=True, text=True, timeout=300, check=False)
    if done.returncode:
        sys.stderr.write(done.stderr)
        done.check_returncode()
    values: dict[str, float] = json.loads(done.stdout.splitlines()[-1])
    return values


def measure(engine: str, processes: int, device: str) -> dict[str, float]:
    """Medians over fresh processes; kinds alternate, so that what else the machine does hits all alike."""
    runs: dict[str, list[dict[str, float]]] = {kind: [] for kind in KINDS}
    for _ in range(processes):
        for kind in KINDS:
            runs[kind].append(fresh(engine, kind, device))
    first = {kind: statistics.median(run["first_ms"] for run in runs[kind]) for kind in KINDS}
    steady = statistics.median(run["steady_ms"] for kind in KINDS for run in runs[kind])
    return {
        "first_over_steady": statistics.median(run["first_ms"] / run["steady_ms"] for run in runs["warm"]),
        "cold_over_warm": first["cold"] / first["warm"],
        "cold_run_over_warm": first["cold_run"] / first["warm"],
        "faster_than_cold_percent": 100 * (1 - first["warm"] / first["cold"]),
        "cold_ms": first["cold"],
        "cold_run_ms": first["cold_run"],
        "warm_ms": first["warm"],
        "steady_ms": steady,
    }


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--device", choices=("cpu", "cuda"), default="cpu")
    parser.add_argument("--engines", default="llm,asr,tts")
    parser.add_argument("--processes", type=int, default=3)
    parser.add_argument("--child", nargs=2, metavar=("ENGINE", "KIND"), help=argparse.SUPPRESS)
    options = parser.parse_args(arguments)
    if options.child:
        engine, kind = options.child
        print(json.dumps(child(engine, kind, options.device)))
        return 0
    unknown = [name for name in options.engines.split(",") if name not in LOADERS]
    if unknown:
        parser.error(f"unknown engines {unknown}; known: {', '.join(LOADERS)}")
    engines = {name: measure(name, options.processes, options.device) for name in options.engines.split(",")}
    worst = {
        "first_over_steady": max(result["first_over_steady"] for result in engines.values()),
        "cold_over_warm": min(result["cold_over_warm"] for result in engines.values()),
    }
    if options.json:
        print(json.dumps({**worst, "engines": engines}))
        return 0
    print(f"warm-up, fresh processes{'':6}{''.join(f'{name:>12}' for name in engines)}")
    for figure in next(iter(engines.values())):
        print(f"{figure.replace('_', ' '):30}{''.join(f'{result[figure]:12.2f}' for result in engines.values())}")
    return 0
