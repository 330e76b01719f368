"""Does navigation feel a dialogue beside it, with the project's own language model on both, through the real arbiter?

    python -m benchmarks isolation_engine [--device cuda|cpu] [--tokens 32] [--samples N] [--out FILE.json]

Navigation is a request of `--tokens` greedy tokens on a session of its own; the dialogue, in a thread, computes a
prompt in chunks and then answers, over and over. Keys and rows are those of
benchmarks/scheduler/contention.py:
`ratio_p99` is against navigation alone on the whole device. `arbiter`: both ask the real Dispatcher for their lanes,
the dialogue yields between chunks and tokens. Beside it the same two tasks without arbiter: plain streams on a GPU, one
shared pool of threads on a CPU. cuda: the float16 model in overlapping lanes; cpu: the served model on cores."""

from __future__ import annotations

import argparse
import json
import os
import sys
import time
from collections.abc import Callable, Generator, Iterator, Sequence
from contextlib import AbstractContextManager, contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.devices import ON_CPU, ON_CUDA, TrackedPlacement, model_folder
from benchmarks.harness.report import Report, command_line, head, report_options
from benchmarks.scheduler.contention import Case, measure, reach, table
from cockpit.arbiter.config import ArbiterConfig
from cockpit.profile.orchestration import parse
from cockpit.scheduling.service import SchedulingPlan, SchedulingService, open_service
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.session import LmSession
from models.engines.placement import Placement
from models.errors import CockpitError, DeviceUnavailable
from models.store.store import Store

NAVIGATION, DIALOGUE = "navigation_task", "dialogue_task"
REQUEST = "Name ten things that a driver should check before a long drive, one after another."
FILLER = "The driver asked for a warmer cabin before the motorway, and it began to rain. "


@dataclass(frozen=True, slots=True)
class Size:
    """How much the tasks do. chunk: tokens of prompt between two boundaries."""

    model: str
    prompt: int
    answer: int
    chunk: int
    context: int
    samples: int
    idle_ms: tuple[float, float]


SIZES = {
    "cuda": Size(ON_CUDA["llm"], 1024, 64, 256, 1536, 100, (20.0, 70.0)),
    "cpu": Size(ON_CPU["llm"], 128, 24, 32, 512, 10, (150.0, 450.0)),
}


# --- the two tasks ---------------------------------------------------------------------------------------------------
class Unleased:
    """Nobody shares anything out: never told to yield."""

    def boundary(self, new_tokens: int = 1) -> bool:
        return True


@contextmanager
def unleased() -> Iterator[Unleased]:
    yield Unleased()


Leasing = Callable[[], AbstractContextManager[Any]]


class Navigation:
    """One request: the last token of a cached prompt, then `tokens` greedy ones."""

    def __init__(self, lm: CausalLM, leasing: Leasing, tokens: int) -> None:
        self._session = lm.open_session()
        self._leasing = leasing
        self._tokens = tokens
        self._prompt = lm.tokenizer.encode(lm.chat.render([{"role": "user", "content": REQUEST}]))
        self.answer: list[int] = []

    def __call__(self) -> None:
        with self._leasing() as lease:
            self._session.set_tokens(self._prompt)
            self.answer = []
            for token in self._session.generate(max_new_tokens=self._tokens):
                self.answer.append(token)
                lease.boundary()
        if len(self.answer) != self._tokens:
            raise ValueError(f"navigation's answer ended after {len(self.answer)} of {self._tokens} tokens")


class Dialogue:
    """The load: turn after turn, a lease for each. One step is a chunk of prompt or a token of answer.

    worth: what a chunk and a token take alone, ms, measured once on the whole device: the common measure of work done.
    """

    def __init__(self, lm: CausalLM, leasing: Leasing, size: Size, worth: dict[str, float]) -> None:
        self._session = lm.open_session()
        self._leasing = leasing
        self._size = size
        self._worth = worth
        self._text = lm.tokenizer.encode(FILLER * 200)
        self._turn = 0

    def begin(self) -> None:
        self._steps = self._turns()

    def step(self) -> float:
        return next(self._steps)

    def end(self) -> None:
        self._steps.close()

    def _turns(self) -> Generator[float, None, None]:
        while True:
            with self._leasing() as lease:
                yield from self._one(lease)

    def _one(self, lease: Any) -> Iterator[float]:
        self._turn += 1
        start = 1 + self._turn % 13  # another first token than the last turn's: nothing is reused
        prompt = self._text[start : start + self._size.prompt]
        for at in range(0, len(prompt), self._size.chunk):
            if not lease.boundary(0):
                return
            part = prompt[at : at + self._size.chunk]
            if at:
                self._session.prefill(part, chunk=self._size.chunk)
            else:
                self._session.set_tokens(part, chunk=self._size.chunk)
            yield self._worth["chunk"] * len(part) / self._size.chunk
        stopped = False

        def boundary() -> None:
            nonlocal stopped
            stopped = stopped or not lease.boundary(1)

        steps = self._session.generate(
            max_new_tokens=self._size.answer, at_boundary=boundary, cancelled=lambda: stopped
        )
        for _ in steps:
            yield self._worth["token"]


def worth_of(session: LmSession, text: Sequence[int], size: Size) -> dict[str, float]:
    """Milliseconds of a chunk and of a token alone, medians of 5 and of 40."""
    chunks, tokens = [], []
    for start in range(1, 6):
        session.set_tokens(text[start : start + size.chunk])
        next(session.generate(max_new_tokens=1), None)
        began = time.perf_counter()
        session.set_tokens(text[start + 20 : start + 20 + size.chunk])
        next(session.generate(max_new_tokens=1), None)
        chunks.append((time.perf_counter() - began) * 1e3)
    steps = session.generate(max_new_tokens=41)
    next(steps, None)
    for _ in range(40):
        began = time.perf_counter()
        if next(steps, None) is None:
            break
        tokens.append((time.perf_counter() - began) * 1e3)
    token = sorted(tokens)[len(tokens) // 2]
    return {"chunk": max(0.0, sorted(chunks)[2] - token), "token": token}


def config_of(clusters: dict[str, int], chunk: int) -> ArbiterConfig:
    """Both tasks may have every cluster but `system`: lanes overlap, the dialogue yields. Raises ValueError."""
    names = [name for name in clusters if name != "system"]
    checked = parse(
        {
            "global_limits": {"max_gpu_memory_percent": 85, "min_token_per_second": 0},
            "eviction_policy": {"type": "lru_k", "lru_k": 3},
            "clusters": clusters,
            "policy": {"frozen": True, "prefill_chunk_tokens": chunk},
            "tasks": {
                NAVIGATION: {
                    "priority": 9,
                    "latency_sla": "150ms",
                    "memory_budget_mb": 0,
                    "affinity_mask": ",".join(names),
                },
                DIALOGUE: {
                    "priority": 5,
                    "latency_sla": "800ms",
                    "memory_budget_mb": 0,
                    "affinity_mask": ",".join(reversed(names)),
                    "timeout": "60s",
                },
            },
        }
    )
    if checked.config is None:
        raise ValueError(f"the benchmark's own profile is wrong: {checked.errors}")
    return checked.config


def leasing(service: SchedulingService, task: str) -> Leasing:
    """Leases of `task` whose thread is bound to the lane, as cockpit/scheduling/llm_lease.py does it."""

    @contextmanager
    def leased() -> Iterator[Any]:
        with (
            service.dispatcher.lease(task) as lease,
            service.device.enter(lease.lane),
        ):
            yield lease

    return leased


# --- cases -----------------------------------------------------------------------------------------------------------
@dataclass
class Models:
    """The model per place it may run in: `whole` twice (navigation and dialogue without arbiter), and the two lanes."""

    navigation_whole: CausalLM
    dialogue_whole: CausalLM
    navigation_lane: CausalLM
    dialogue_lane: CausalLM
    title: str
    shared: str
    """What the tasks share without an arbiter."""


def cases_of(models: Models, service: SchedulingService, size: Size, tokens: int) -> tuple[list[Case], str]:
    """Four cases and the name of the one that is the product's answer."""
    lane = models.navigation_lane
    text = lane.tokenizer.encode(FILLER * 200)
    session = models.dialogue_whole.open_session()
    worth = worth_of(session, text, size)
    session.close()
    whole = Navigation(models.navigation_whole, unleased, tokens)
    leased = Navigation(lane, leasing(service, NAVIGATION), tokens)
    free = Dialogue(models.dialogue_whole, unleased, size, worth)
    yielding = Dialogue(models.dialogue_lane, leasing(service, DIALOGUE), size, worth)
    for navigate in (whole, leased):
        for _ in range(4):
            navigate()
    if whole.answer != leased.answer:
        raise ValueError("navigation says other tokens in its lane than on the whole device")
    answer = "overlapping lanes, arbiter, yielding"
    samples = size.samples
    cases = [
        Case("navigation alone, whole device", whole, samples=samples),
        Case("navigation alone, its lane, arbiter", leased, samples=samples),
        Case(models.shared, whole, free, "dialogue", None, samples),
        Case(answer, leased, yielding, "dialogue", None, samples),
    ]
    return cases, answer


# --- the two devices -------------------------------------------------------------------------------------------------
@contextmanager
def on_cpu(folder: Path, size: Size) -> Iterator[tuple[Models, SchedulingService]]:
    """The served model with every core as threads; lanes over all cores."""
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        raise DeviceUnavailable("two clusters need two cores; this process may use one: widen its CPU affinity")
    config = config_of({"a": cores // 2, "b": cores - cores // 2, "system": 0}, size.chunk)
    service = open_service(SchedulingPlan(config), "cpu")
    try:
        first, second = (CausalLM.load(folder, threads=cores, context_tokens=size.context) for _ in range(2))
        title = f"{folder.name}, {cores} cores"
        yield Models(first, second, first, second, title, "one shared pool of cores, no arbiter"), service
    finally:
        service.close()


@contextmanager
def on_cuda(folder: Path, size: Size) -> Iterator[tuple[Models, SchedulingService]]:
    """The float16 model in four places: two plain streams over the whole GPU, and both tasks' wide lanes."""
    from cockpit.device.cuda.device import CudaDevice
    from cockpit.device.cuda.placement import STAGING_BYTES, CudaEngines, CudaPlacement

    service = open_service(SchedulingPlan(config_of({"a": 32, "b": 88, "system": 8}, size.chunk)), "cuda")
    device = service.device
    assert isinstance(device, CudaDevice)
    driver: Any = device.driver
    engines = CudaEngines(device)
    weights: dict[Path, dict[str, Any]] = {}
    widest = {task: f"{task}:2" for task in (NAVIGATION, DIALOGUE)}

    def whole_gpu(urgent: bool) -> Placement:
        stream = driver.whole_device_stream(urgent)
        settings = device.session_settings(widest[NAVIGATION])
        options = {**settings.provider_options[0], "user_compute_stream": str(stream)}
        settings = replace(settings, provider_options=(options,))
        return CudaPlacement(engines, "whole", stream, settings, engines.pinned(STAGING_BYTES))

    def load(name: str, placement: Placement) -> CausalLM:
        lm = CausalLM.load(
            folder,
            placements={name: TrackedPlacement(placement, weights=weights)},
            context_tokens=size.context,
            slots=2,
        )
        lm.warm_up()
        return lm

    try:
        models = Models(
            load("whole", whole_gpu(False)),
            load("whole", whole_gpu(False)),
            load(widest[NAVIGATION], engines.placement(widest[NAVIGATION])),
            load(widest[DIALOGUE], engines.placement(widest[DIALOGUE])),
            f"{folder.name}, {device.name}, lanes of {device.lanes[widest[NAVIGATION]].units} SMs",
            "plain streams, no arbiter",
        )
        yield models, service
    finally:
        engines.close()
        service.close()


def main(arguments: Sequence[str] | None = None) -> int:
    options = _options(arguments)
    report = Report(options.out, options.budget_s)
    report.put(**head())
    size = SIZES[options.device]
    size = replace(size, samples=options.samples or size.samples)
    opening = on_cuda if options.device == "cuda" else on_cpu
    try:
        folder = model_folder(options.model or size.model, Store.open(), options.models)
        with opening(folder, size) as (models, service):
            report.say(f"{models.title}: loaded")
            cases, answer = cases_of(models, service, size, options.tokens)
            rows: list[dict[str, Any]] = []
            report.put(
                device=models.title,
                navigation=f"navigation = {options.tokens} greedy tokens; dialogue = {size.prompt} tokens of prompt "
                f"in chunks of {size.chunk}, {size.answer} of answer; {models.title}",
                rows=rows,
            )
            measure(_timely(cases, report), size.idle_ms, options.seconds, each=partial(_keep, report, rows))
            last = rows[-1]
            keys = ("p50_ms", "p99_ms", "ratio_p99", "std_ms", "dialogue_throughput_kept")
            if last["case"] == answer:
                report.put(answer=answer, reach=reach(last), **{key: last[key] for key in keys})
            missed = service.dispatcher.status().tasks
            report.put(arbiter=[str(task) for task in missed])
    except CockpitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(report.values) if options.json else table({"reach": {}, **report.values}))
    return 0


def _timely(cases: Sequence[Case], report: Report) -> Iterator[Case]:
    for case in cases:
        if report.over():
            report.say(f"time is up: {case.name} is left out")
            return
        yield case


def _keep(report: Report, rows: list[dict[str, Any]], row: dict[str, Any]) -> None:
    rows.append(row)
    report.put(rows=rows)


def _options(arguments: Sequence[str] | None) -> argparse.Namespace:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--device", choices=tuple(SIZES), default="cpu")
    parser.add_argument("--tokens", type=int, default=32, help="of one navigation request (32)")
    parser.add_argument("--samples", type=int, help="navigation requests per case")
    parser.add_argument("--seconds", type=float, default=2.0, help="for the load's rate alone")
    parser.add_argument("--model", help="name of the built model")
    parser.add_argument("--models", type=Path, help="folder of built models; default: the model store")
    report_options(parser, 120.0)
    return parser.parse_args(arguments)
