"""Does navigation feel a dialogue beside it, with the project's own language model on both, through the real arbiter?

    python -m benchmarks isolation_engine [--device cuda|cpu] [--tokens 32] [--samples N] [--out FILE.json]

Navigation is a request of `--tokens` greedy tokens on a session of its own; the dialogue, in a thread, computes a
prompt in chunks and then answers, over and over. Keys and rows are those of benchmarks/scheduler/isolation.py:
`ratio_p99` is against navigation alone on the whole device. `arbiter`: both ask the real Dispatcher for their lanes,
the dialogue yields between chunks and tokens. Beside it the same two tasks without arbiter: plain streams on a GPU, one
shared pool of threads on a CPU. cuda: the float16 model in overlapping lanes; cpu: the served model on cores."""

from __future__ import annotations

import argparse
import json
import os
import sys
from collections.abc import Iterator, Sequence
from contextlib import contextmanager
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

from benchmarks.harness.devices import Watched, model_folder
from benchmarks.harness.report import Report, head, report_options
from benchmarks.scheduler.isolation import Case, measure, reach, table
from benchmarks.scheduler.isolation_tasks import (
    DIALOGUE,
    FILLER,
    NAVIGATION,
    SIZES,
    Dialogue,
    Navigation,
    Size,
    config_of,
    leasing,
    unleased,
    worth_of,
)
from cockpit.scheduling.service import Arbitration, open_arbitration
from models.engines.llm.causal_lm import CausalLM
from models.engines.placement import Placement
from models.errors import CockpitError, DeviceUnavailable
from models.store.store import Store


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


def cases_of(models: Models, arbitration: Arbitration, size: Size, tokens: int) -> tuple[list[Case], str]:
    """Four cases and the name of the one that is the product's answer."""
    lane = models.navigation_lane
    text = lane.tokenizer.encode(FILLER * 200)
    session = models.dialogue_whole.open_session()
    worth = worth_of(session, text, size)
    session.close()
    whole = Navigation(models.navigation_whole, unleased, tokens)
    leased = Navigation(lane, leasing(arbitration, NAVIGATION), tokens)
    free = Dialogue(models.dialogue_whole, unleased, size, worth)
    yielding = Dialogue(models.dialogue_lane, leasing(arbitration, DIALOGUE), size, worth)
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
def on_cpu(folder: Path, size: Size) -> Iterator[tuple[Models, Arbitration]]:
    """The served model with every core as threads; lanes over all cores."""
    cores = len(os.sched_getaffinity(0))
    if cores < 2:
        raise DeviceUnavailable("two clusters need two cores; this process may use one: widen its CPU affinity")
    arbitration = open_arbitration(
        config_of({"a": cores // 2, "b": cores - cores // 2, "system": 0}, size.chunk), "cpu"
    )
    try:
        first, second = (CausalLM.load(folder, threads=cores, context_tokens=size.context) for _ in range(2))
        title = f"{folder.name}, {cores} cores"
        yield Models(first, second, first, second, title, "one shared pool of cores, no arbiter"), arbitration
    finally:
        arbitration.close()


@contextmanager
def on_cuda(folder: Path, size: Size) -> Iterator[tuple[Models, Arbitration]]:
    """The float16 model in four places: two plain streams over the whole GPU, and both tasks' wide lanes."""
    from cockpit.device.cuda.device import CudaDevice
    from cockpit.device.cuda.placement import STAGING_BYTES, CudaEngines, CudaPlacement

    arbitration = open_arbitration(config_of({"a": 32, "b": 88, "system": 8}, size.chunk), "cuda")
    device = arbitration.device
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
            folder, placements={name: Watched(placement, weights=weights)}, context_tokens=size.context, slots=2
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
        yield models, arbitration
    finally:
        engines.close()
        arbitration.close()


def main() -> int:
    arguments = _arguments()
    report = Report(arguments.out, arguments.budget_s)
    report.put(**head())
    size = SIZES[arguments.device]
    size = replace(size, samples=arguments.samples or size.samples)
    opening = on_cuda if arguments.device == "cuda" else on_cpu
    try:
        folder = model_folder(arguments.model or size.model, Store.open(), arguments.models)
        with opening(folder, size) as (models, arbitration):
            report.say(f"{models.title}: loaded")
            cases, answer = cases_of(models, arbitration, size, arguments.tokens)
            rows: list[dict[str, Any]] = []
            report.put(
                device=models.title,
                navigation=f"navigation = {arguments.tokens} greedy tokens; dialogue = {size.prompt} tokens of prompt "
                f"in chunks of {size.chunk}, {size.answer} of answer; {models.title}",
                rows=rows,
            )
            measure(_timely(cases, report), size.idle_ms, arguments.seconds, each=partial(_keep, report, rows))
            last = rows[-1]
            keys = ("p50_ms", "p99_ms", "ratio_p99", "std_ms", "dialogue_throughput_kept")
            if last["case"] == answer:
                report.put(answer=answer, reach=reach(last), **{key: last[key] for key in keys})
            missed = arbitration.dispatcher.status().tasks
            report.put(arbiter=[str(task) for task in missed])
    except CockpitError as error:
        print(error, file=sys.stderr)
        return error.exit_code
    print(json.dumps(report.values) if arguments.json else table({"reach": {}, **report.values}))
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


def _arguments() -> argparse.Namespace:
    parser = argparse.ArgumentParser(description=(__doc__ or "").splitlines()[0])
    parser.add_argument("--device", choices=tuple(SIZES), default="cpu")
    parser.add_argument("--tokens", type=int, default=32, help="of one navigation request (32)")
    parser.add_argument("--samples", type=int, help="navigation requests per case")
    parser.add_argument("--seconds", type=float, default=2.0, help="for the load's rate alone")
    parser.add_argument("--model", help="name of the built model")
    parser.add_argument("--models", type=Path, help="folder of built models; default: the model store")
    report_options(parser, 120.0)
    return parser.parse_args()


if __name__ == "__main__":
    raise SystemExit(main())
