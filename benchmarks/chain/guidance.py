"""Navigation's prompts: text to first sample, alone and beside a dialogue that is generated and spoken without end.

    python -m benchmarks guidance [--json] [--prompts N] [--language en|zh]

The whole chain runs under the profile's arbiter, replies sound in real time (into WAV files), and prompts interrupt
them. Every prompt has words of its own, so that none comes from the cache; `again` says one prompt over and over, which
does. `no_lease` makes prompts without asking the arbiter: nobody yields to them. The zero is the call of
`Runtime.guide`; a loudspeaker adds its own latency.
"""

from __future__ import annotations

import json
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Sequence
from contextlib import contextmanager
from dataclasses import replace
from pathlib import Path
from typing import Any

from benchmarks.harness.report import command_line, head, percentiles
from cockpit.assemble import Assembly, assemble
from cockpit.profile.load import load_profile
from cockpit.runtime import Runtime
from cockpit.scheduling.engine_turns import GuidanceVoice
from cockpit.scheduling.guidance_lease import guidance_lease
from cockpit.scheduling.service import SchedulingPlan
from models.store.store import Store
from pipeline.audio.sink import WavSink
from pipeline.frames import GuidancePrompt, Language
from pipeline.guidance import GuidanceStage, no_lease

LIMIT_MS = 150.0
"""The bar for P95 beside a dialogue."""
QUESTIONS = (
    "Tell me something about the history of Munich.",
    "Why is the sky blue?",
    "Explain how a heat pump works.",
    "What should I know about driving in the rain?",
    "Tell me a short story about a lighthouse.",
)
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


def measure(runtime: Runtime, language: Language, prompts: int, said: Iterator[str]) -> dict[str, Any]:
    """Hand in one prompt after the other; each is stopped a moment after its first sample."""
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
    sys.stderr.write(f"{len(latencies)} prompts: {percentiles(latencies, (50, 95, 99))}\n")
    return percentiles(latencies, (50, 95, 99)) | {"prompts": len(latencies)}


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


def run(profile: str, language: Language, prompts: int) -> dict[str, Any]:
    """Every case, in one process."""
    loaded = load_profile(profile)
    plan = None if loaded.arbiter is None else SchedulingPlan(loaded.arbiter)
    result: dict[str, Any] = {"language": language, "limit_p95_ms": LIMIT_MS}
    with tempfile.TemporaryDirectory() as folder:
        sink = WavSink(Path(folder))
        assembly = assemble(loaded.profile, Store.open(), sink, scheduling=plan)
        engines = assembly.engines
        voices = {name: GuidanceVoice(voice, engines.tts_turns) for name, voice in engines.voices.items()}
        try:
            for name, lease in (("lease", guidance_lease(assembly.service)), ("no_lease", no_lease)):
                runtime = Runtime(replace(assembly.parts, guidance=GuidanceStage(voices, lease=lease)))  # type: ignore[arg-type]
                runtime.start()
                if name == "lease":
                    result["alone"] = measure(runtime, language, prompts, texts(language, 1))
                with dialogue(runtime, assembly) as asked:
                    result["beside" if name == "lease" else "no_lease"] = measure(
                        runtime, language, prompts, texts(language, 2)
                    )
                    if name == "lease":
                        again = iter([next(texts(language, 3))] * (prompts + 1))
                        result["again"] = measure(runtime, language, prompts, again)
                    result["questions"] = result.get("questions", 0) + asked()
                runtime.abort()
        finally:
            assembly.close()
    for share in (50, 95, 99):
        result[f"ratio_p{share}"] = round(result["beside"][f"p{share}"] / result["alone"][f"p{share}"], 2)
    result["within_limit"] = result["beside"]["p95"] <= LIMIT_MS
    return result | {"machine": head()}


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
    for name in ("alone", "beside", "again", "no_lease"):
        row = result[name]
        print(f"{name:28}{row['p50']:8.0f}{row['p95']:8.0f}{row['p99']:8.0f}")
    print(f"{'beside / alone':28}{result['ratio_p50']:8.2f}{result['ratio_p95']:8.2f}{result['ratio_p99']:8.2f}")
    print(f"P95 beside a dialogue {'keeps' if result['within_limit'] else 'MISSES'} {LIMIT_MS:.0f} ms")
    return 0
