"""Navigation in the served process: alone, and beside everything else that a car asks for at the same time.

    python -m benchmarks isolation_served [--json] [--profile cpu] [--requests N] [--prompts N]

The whole process runs as `cockpit serve` does, with the profile's tasks: voice chain, API, arbiter; sound goes to WAV
files in real time. Beside means four dialogues that are generated and spoken, one background text without end, and
recognition of recordings, all through the API's socket from another process. Measured are short requests of
navigation_task through the same socket, and prompts of guidance from POST to first sample.
"""

from __future__ import annotations

import json
import math
import multiprocessing
import os
import random
import sys
import tempfile
import threading
import time
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager
from functools import partial
from multiprocessing.connection import Connection
from pathlib import Path
from typing import Any

from benchmarks.chain.guidance import SHARES, TURNS, preempted, texts
from benchmarks.harness.paths import AUDIO
from benchmarks.harness.report import command_line, head, percentiles
from benchmarks.harness.served import Address, ask
from cockpit.api.service import open_api
from cockpit.assemble import Assembly, assemble
from cockpit.client import Cockpit, CockpitError
from cockpit.profile.load import LoadedProfile, load_profile
from cockpit.runtime import Runtime
from cockpit.scheduling.service import SchedulingPlan
from models.store.store import Store
from pipeline.audio.sink import WavSink

DIALOGUES = 4
PARTS = ("queue", "prompt", "tokens", "rest")
"""What a request of navigation waits for: its place, its prompt, its further tokens, and the way through the socket."""
BARS = {"cpu": 1.3, "cuda": 1.07}
"""P99 beside over P99 alone, by device."""
REQUEST_TOKENS = 8
ROUTE = (
    "You help a navigation system. Name the lane to take in a few words. Lanes are counted from the left. "
    "The exit is announced 2000, 1000 and 300 metres ahead."
)
QUESTIONS = (
    "Tell me about the castle on the hill.",
    "How does a heat pump work?",
    "What is worth seeing by the river?",
    "Explain how tides come about.",
    "为什么海水是咸的？",
    "给我讲讲长城的历史。",
)
NOTES = "The driver likes 21 degrees, quiet music, and short breaks every two hours on long trips. "


class Load:
    """Clients of every other kind, until `stop`. failures: what any of them was refused with."""

    def __init__(self, path: Path, tasks: Sequence[str], recordings: Sequence[Path]) -> None:
        self._address = Address(path)
        self._client = Cockpit(str(path))
        self._over = threading.Event()
        self.done = dict.fromkeys(("dialogue", "spoken", "background", "recognised"), 0)
        self.failures: list[str] = []
        works: list[Callable[[int], None]] = [partial(self._dialogue, number) for number in range(DIALOGUES)]
        if "background_task" in tasks:
            works.append(self._background)
        works.append(partial(self._recognition, recordings))
        self._threads = [threading.Thread(target=self._again, args=(work,), daemon=True) for work in works]
        for thread in self._threads:
            thread.start()

    def stop(self) -> None:
        """Wait for the requests that are open."""
        self._over.set()
        for thread in self._threads:
            thread.join(120)

    def _again(self, work: Callable[[int], None]) -> None:
        turn = 0
        while not self._over.is_set():
            try:
                work(turn)
            except (CockpitError, OSError) as error:
                self.failures.append(str(error)[:200])
                self._over.wait(0.5)
            turn += 1

    def _dialogue(self, number: int, turn: int) -> None:
        question = QUESTIONS[(number + turn) % len(QUESTIONS)]
        body = {"messages": [{"role": "user", "content": question}], "max_tokens": 48, "session": f"seat-{number}"}
        answer = ask(self._address, {**body, "task": "dialogue"})
        if answer.failure:
            raise OSError(answer.failure)
        self.done["dialogue"] += 1
        self._client.speech(answer.text[:120] or "Yes.", response_format="wav")
        self.done["spoken"] += 1

    def _background(self, turn: int) -> None:
        said = f"{NOTES * 8}Trip {turn}. Summarise what the driver likes."
        body = {"messages": [{"role": "user", "content": said}], "max_tokens": 120, "task": "background"}
        answer = ask(self._address, body)
        if answer.failure:
            raise OSError(answer.failure)
        self.done["background"] += 1

    def _recognition(self, recordings: Sequence[Path], turn: int) -> None:
        file = recordings[turn % len(recordings)]
        mark = "----recording"
        head = f'--{mark}\r\nContent-Disposition: form-data; name="file"; filename="{file.name}"\r\n\r\n'
        payload = head.encode() + file.read_bytes() + f"\r\n--{mark}--\r\n".encode()
        connection = self._address.connection()
        connection.request(
            "POST", "/v1/audio/transcriptions", payload, {"Content-Type": f"multipart/form-data; boundary={mark}"}
        )
        response = connection.getresponse()
        text = response.read()
        if response.status != 200:
            raise OSError(f"HTTP {response.status}: {text.decode(errors='replace')[:200]}")
        self.done["recognised"] += 1


def navigate(path: Path, count: int, seed: int) -> dict[str, list[float]]:
    """Requests of navigation_task, one after the other with pauses; ms of each from request to end of answer
    ("navigation"), and what of it was which of PARTS.
    """
    draw = random.Random(seed)
    spent: dict[str, list[float]] = {name: [] for name in ("navigation", *PARTS)}
    for _ in range(count):
        time.sleep(draw.uniform(0.2, 0.5))
        said = f"Exit in {draw.randrange(100, 2000, 10)} metres, {draw.randrange(2, 5)} lanes: which one?"
        messages = [{"role": "system", "content": ROUTE}, {"role": "user", "content": said}]
        answer = ask(
            Address(path),
            {
                "messages": messages,
                "max_tokens": REQUEST_TOKENS,
                "task": "navigation",
                "session": "navigation",
                "stream_options": {"include_usage": True},
            },
        )
        if answer.failure:
            raise RuntimeError(f"a request of navigation failed: {answer.failure}")
        names = ("queue_ms", "ttft_ms", "tpot_ms", "completion_tokens")
        queue, first, tpot, made = (answer.timings[name] or 0.0 for name in names)
        tokens = tpot * (made - 1)
        parts = (answer.turn_ms, queue, first - queue, tokens, answer.turn_ms - first - tokens)
        for name, ms in zip(spent, parts, strict=True):
            spent[name].append(ms)
    return spent


def clients(pipe: Connection, path: Path, tasks: Sequence[str], recordings: Sequence[Path]) -> None:
    """The other process: answers ("load",), ("stop",) and ("navigate", count, seed) until the pipe ends."""
    load: Load | None = None
    while True:
        try:
            word, *rest = pipe.recv()
        except EOFError:
            return
        try:
            if word == "load":
                load = Load(path, tasks, recordings)
                pipe.send(None)
            elif word == "stop":
                assert load is not None
                load.stop()
                pipe.send({"done": load.done, "failures": sorted(set(load.failures)), "failed": len(load.failures)})
            else:
                pipe.send(navigate(path, *rest))
        except RuntimeError as error:
            pipe.send(error)


@contextmanager
def client_process(*arguments: Any) -> Iterator[Callable[..., Any]]:
    """The function sends one order to the clients and returns their answer. Raises what they raised."""
    context = multiprocessing.get_context("spawn")
    ours, theirs = context.Pipe()
    child = context.Process(target=clients, args=(theirs, *arguments), daemon=True)
    child.start()
    theirs.close()

    def order(*words: Any) -> Any:
        ours.send(words)
        answer = ours.recv()
        if isinstance(answer, Exception):
            raise answer
        return answer

    try:
        yield order
    finally:
        ours.close()
        child.join(10)
        child.kill()


def guide(runtime: Runtime, path: Path, prompts: int, seed: int) -> list[float]:
    """Prompts through the socket; each is stopped a moment after its first sample. ms from arrival to first sample."""
    stage, sink, client = runtime.parts.guidance, runtime.parts.sink, Cockpit(str(path))
    draw, said = random.Random(seed), texts("en", seed)
    known = len(stage.counts().latencies_ms)
    for number in range(prompts):
        time.sleep(draw.uniform(0.3, 0.7))
        client.guide(next(said), language="en")
        ends_s = time.monotonic() + 60
        while len(stage.counts().latencies_ms) <= known + number:
            if time.monotonic() > ends_s:
                raise TimeoutError("no prompt was spoken within a minute")
            time.sleep(0.005)
        time.sleep(0.3)
        stage.stop(sink)
    return list(stage.counts().latencies_ms[known:])


def granted(profile: str, folder: Path) -> LoadedProfile:
    """The profile, with every task granted to whoever runs this."""
    tasks = load_profile(profile).arbiter
    if tasks is None:
        raise RuntimeError(f"profile {profile} shares nothing out: it has no tasks")
    names = ["dialogue_task", *(name for name in tasks.tasks if name in ("navigation_task", "background_task"))]
    file = folder / "granted.yaml"
    file.write_text(
        f"extends: {profile}\napi: {{requests: 6, grants: {{'*': [{', '.join(names)}]}}}}\n", encoding="utf-8"
    )
    return load_profile(str(file))


def run(profile: str, requests: int, prompts: int) -> dict[str, Any]:
    """Alone and beside by turns: what else the machine does is then in both."""
    recordings = sorted(AUDIO.rglob("*.wav"))[:12]
    with tempfile.TemporaryDirectory(prefix="cockpit-bench-") as name:
        folder = Path(name)
        loaded = granted(profile, folder)
        assert loaded.arbiter is not None
        tasks = tuple(loaded.arbiter.tasks)
        sink = WavSink(folder / "spoken")
        plan = SchedulingPlan(loaded.arbiter)
        assembly = assemble(loaded.profile, Store.open(), sink, scheduling=plan, api_texts=loaded.profile.api.requests)
        try:
            return _measured(loaded, assembly, folder / "api.sock", tasks, recordings, requests, prompts)
        finally:
            assembly.close()


def _measured(
    loaded: LoadedProfile,
    assembly: Assembly,
    path: Path,
    tasks: Sequence[str],
    recordings: Sequence[Path],
    requests: int,
    prompts: int,
) -> dict[str, Any]:
    runtime = Runtime(assembly.parts)
    runtime.start()
    api = open_api(loaded.profile, assembly, path, runtime.guide)
    result: dict[str, Any] = {"machine": head(), "load_average": os.getloadavg()[0], "tasks": list(tasks)}
    try:
        with client_process(path, tasks, recordings) as order:
            order("navigate", 5, 0)
            guide(runtime, path, 3, 0)
            spent: dict[str, dict[str, list[float]]] = {}
            loads = []
            for seed, case in enumerate(TURNS, 2):  # words of its own: none from a cache
                if case == "beside":
                    order("load")
                    time.sleep(3)
                share = TURNS.count(case)
                of = spent.setdefault(case, {f"{name}_ms": [] for name in ("navigation", *PARTS, "guidance")})
                for name, values in order("navigate", math.ceil(requests / share), seed).items():
                    of[f"{name}_ms"] += values
                of["guidance_ms"] += guide(runtime, path, math.ceil(prompts / share), seed)
                if case == "beside":
                    loads.append(order("stop"))
            for case, of in spent.items():
                result[case] = {what: percentiles(values, SHARES) for what, values in of.items()}
            result["load"] = _summed(loads)
            result["preempted"] = preempted(assembly)
        result |= _ratios(result, loaded.profile.device)
        sys.stderr.write(table(result) + "\n")  # whatever becomes of the end of the process
    finally:
        api.close()
        runtime.abort()
    return result


def _summed(loads: Sequence[Mapping[str, Any]]) -> dict[str, Any]:
    """What was done beside, in all turns."""
    done = {name: sum(load["done"][name] for load in loads) for name in loads[0]["done"]}
    failures = sorted({failure for load in loads for failure in load["failures"]})
    return {"done": done, "failures": failures, "failed": sum(load["failed"] for load in loads)}


def _ratios(result: Mapping[str, Any], device: str) -> dict[str, Any]:
    bar = BARS[device]
    out: dict[str, Any] = {"bar": bar}
    for what in ("navigation_ms", "guidance_ms"):
        alone, beside = result["alone"][what], result["beside"][what]
        out[what.replace("_ms", "_ratio")] = {f"p{n}": round(beside[f"p{n}"] / alone[f"p{n}"], 2) for n in SHARES}
    out["kept"] = all(out[f"{what}_ratio"]["p99"] <= bar for what in ("navigation", "guidance"))
    return out


def table(result: Mapping[str, Any]) -> str:
    """What people read."""
    lines = [f"{'':34}{'P50':>8}{'P95':>8}{'P99':>8}"]
    for what in ("navigation", "guidance"):
        for case in ("alone", "beside"):
            row = result[case][f"{what}_ms"]
            lines.append(f"{what + ', ' + case + ', ms':34}" + "".join(f"{row[f'p{n}']:8.0f}" for n in SHARES))
        ratio = result[f"{what}_ratio"]
        lines.append(f"{what + ', beside / alone':34}" + "".join(f"{ratio[f'p{n}']:8.2f}" for n in SHARES))
    for part in PARTS:
        for case in ("alone", "beside"):
            row = result[case][f"{part}_ms"]
            lines.append(
                f"{f'  of navigation: {part}, {case}, ms':34}" + "".join(f"{row[f'p{n}']:8.1f}" for n in SHARES)
            )
    done = ", ".join(f"{count} {name}" for name, count in result["load"]["done"].items())
    lines.append(f"done beside: {done}; {result['load']['failed']} refused or failed")
    ended = ", ".join(f"{row['runs']} of {name} ({row['redone_ms']} ms)" for name, row in result["preempted"].items())
    lines.append(f"runs ended and done again: {ended or 'none'}")
    lines += [f"  {failure}" for failure in result["load"]["failures"]]
    lines.append(f"P99 beside / alone {'keeps' if result['kept'] else 'MISSES'} {result['bar']}")
    return "\n".join(lines)


def main(arguments: Sequence[str] | None = None) -> int:
    """Run and print."""
    parser = command_line(__name__, __doc__)
    parser.add_argument("--profile", default="cpu")
    parser.add_argument("--requests", type=int, default=60, help="requests of navigation in each case (60)")
    parser.add_argument("--prompts", type=int, default=40, help="prompts of guidance in each case (40)")
    options = parser.parse_args(arguments)
    result = run(options.profile, options.requests, options.prompts)
    print(json.dumps(result, ensure_ascii=False) if options.json else table(result))
    return 0
