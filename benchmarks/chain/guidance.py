"""Navigation's prompts: text to first sample, alone and beside a dialogue that is generated and spoken without end.

    python -m benchmarks guidance [--json] [--prompts N] [--language en|zh]

The whole chain runs under the profile's arbiter, replies sound in real time (into WAV files), and prompts interrupt
them. Every prompt has words of its own, so that none comes from the cache; `again` says one prompt over and over, which
does. Alone and beside are measured by turns: what else the machine does is then in both. The zero is the call of
`Runtime.guide`; a loudspeaker adds its own latency.
"""

from __future__ import annotations

import json
import math
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from pathlib import Path
from typing import Any

from benchmarks.harness.report import command_line, head, percentiles
from cockpit.assemble import Assembly, assemble
from cockpit.profile.load import load_profile
from cockpit.runtime import Runtime
from cockpit.scheduling.service import SchedulingPlan
from models.store.store import Store
from pipeline.audio.sink import WavSink
from pipeline.frames import GuidancePrompt, Language

LIMIT_MS = 150.0
"""The bar for P95 beside a dialogue."""
QUESTIONS = (
    "Tell me something about the history of Munich.",
    "Why is the sky blue?",
    "Explain how a heat pump works.",
    "What should I know about driving in the rain?",
    "Tell me a short story about a lighthouse.",
)
SHARES = (50, 95, 99)
TURNS = ("alone", "beside", "alone", "beside", "alone")
_STREETS = ("Station Road", "Church Lane", "the ring road", "Mill Street", "the old bridge", "Harbour Avenue")
_ZH_STREETS = ("中山路", "人民大道", "解放路", "滨江大道", "长安街", "南京路")


def texts(language: Language, seed: int) -> Iterator[str]:
    """Prompts that never repeat within some hundred."""
    draw = random.Random(seed)
    while True:
        metres = draw.randrange(60, 3000, 10)
        if language == "zh":
            yield f"前方{metres}米{draw.choice('左右')}转，进入{draw.choice(_ZH_STREETS)}"
        else:
            yield f"In {metres} metres turn {draw.choice(('left', 'right'))} onto {draw.choice(_STREETS)}"


def measure(runtime: Runtime, language: Language, prompts: int, said: Iterator[str]) -> list[float]:
    """Hand in one prompt after the other; each is stopped a moment after its first sample. ms of each."""
    sink, stage = runtime.parts.sink, runtime.parts.guidance
    draw = random.Random(1)
    known = len(stage.counts().latencies_ms)
    for number in range(prompts):
        time.sleep(draw.uniform(0.4, 0.9))
        runtime.guide(GuidancePrompt(next(said), language, time.monotonic_ns()))
        _until(lambda number=number: len(stage.counts().latencies_ms) > known + number)  # type: ignore[misc]
        time.sleep(0.4)
        stage.stop(sink)
    latencies = list(stage.counts().latencies_ms[known:])
    sys.stderr.write(f"{len(latencies)} prompts: {percentiles(latencies, SHARES)}\n")
    return latencies


def say_whole(runtime: Runtime, language: Language, text: str) -> None:
    """Once to the end, so that the clauses are in the cache."""
    spoken = runtime.parts.guidance.counts().spoken
    runtime.guide(GuidancePrompt(text, language, time.monotonic_ns()))
    _until(lambda: runtime.parts.guidance.counts().spoken > spoken and not runtime.parts.sink.prompting())


@contextmanager
def dialogue(runtime: Runtime, assembly: Assembly) -> Iterator[Callable[[], int]]:
    """Questions one after another: the model generates and the voice speaks all the time. Yields the number asked."""
    over = threading.Event()
    asked = 0

    def ask() -> None:
        nonlocal asked
        while not over.is_set():
            runtime.ask(QUESTIONS[asked % len(QUESTIONS)], "en", assembly.turn_ids.next())
            asked += 1
            runtime.wait_idle(60.0)

    thread = threading.Thread(target=ask, name="asking", daemon=True)
    thread.start()
    _until(runtime.parts.sink.speaking)
    try:
        yield lambda: asked
    finally:
        over.set()
        thread.join(60.0)


def _until(condition: Callable[[], object]) -> None:
    ends_s = time.monotonic() + 60.0
    while not condition():
        if time.monotonic() > ends_s:
            raise TimeoutError("no prompt was spoken within a minute")
        time.sleep(0.005)


def preempted(assembly: Assembly) -> dict[str, dict[str, float]]:
    """Runs that were ended for somebody more urgent, and the time they had taken, by task."""
    if assembly.service is None:
        return {}
    tasks = assembly.service.dispatcher.status(verbose=False).tasks
    return {task.name: {"runs": task.preempted, "redone_ms": round(task.redone_ms)} for task in tasks if task.preempted}


def run(profile: str, language: Language, prompts: int) -> dict[str, Any]:
    """Every case, in one process."""
    loaded = load_profile(profile)
    plan = None if loaded.arbiter is None else SchedulingPlan(loaded.arbiter)
    result: dict[str, Any] = {"language": language, "limit_p95_ms": LIMIT_MS}
    spent: dict[str, list[float]] = {"alone": [], "beside": [], "again": []}
    questions = 0
    with tempfile.TemporaryDirectory() as folder:
        assembly = assemble(loaded.profile, Store.open(), WavSink(Path(folder)), scheduling=plan)
        try:
            runtime = Runtime(assembly.parts)
            runtime.start()
            said = texts(language, 1)
            measure(runtime, language, 3, said)
            for number, case in enumerate(TURNS):
                count = math.ceil(prompts / TURNS.count(case))
                if case == "alone":
                    spent[case] += measure(runtime, language, count, said)
                    continue
                with dialogue(runtime, assembly) as asked:
                    spent[case] += measure(runtime, language, count, said)
                    if number == TURNS.index(case):
                        again = next(said)
                        say_whole(runtime, language, again)
                        spent["again"] = measure(runtime, language, prompts, iter([again] * prompts))
                    questions += asked()
            result["preempted"] = preempted(assembly)
            runtime.abort()
        finally:
            assembly.close()
    for case, values in spent.items():
        result[case] = percentiles(values, SHARES) | {"prompts": len(values)}
    result["questions"] = questions
    for share in SHARES:
        result[f"ratio_p{share}"] = round(result["beside"][f"p{share}"] / result["alone"][f"p{share}"], 2)
    result["within_limit"] = result["beside"]["p95"] <= LIMIT_MS
    return result | {"machine": head(), "load_average": os.getloadavg()[0]}


def main(arguments: Sequence[str] | None = None) -> int:
    """Print the table or, with --json, one object."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--prompts", type=int, default=60, help="how many in each case (60)")
    parser.add_argument("--language", choices=("en", "zh"), default="en")
    parser.add_argument("--profile", default="cpu")
    options = parser.parse_args(arguments)
    result = run(options.profile, options.language, options.prompts)
    if options.json:
        print(json.dumps(result, ensure_ascii=False))
        return 0
    print(f"{'text to first sample, ms':28}{'p50':>8}{'p95':>8}{'p99':>8}")
    for name in ("alone", "beside", "again"):
        row = result[name]
        print(f"{name:28}{row['p50']:8.0f}{row['p95']:8.0f}{row['p99']:8.0f}")
    print(f"{'beside / alone':28}{result['ratio_p50']:8.2f}{result['ratio_p95']:8.2f}{result['ratio_p99']:8.2f}")
    ended = ", ".join(f"{row['runs']} of {name} ({row['redone_ms']} ms)" for name, row in result["preempted"].items())
    print(f"runs ended and done again: {ended or 'none'}")
    print(f"P95 beside a dialogue {'keeps' if result['within_limit'] else 'MISSES'} {LIMIT_MS:.0f} ms")
    return 0
