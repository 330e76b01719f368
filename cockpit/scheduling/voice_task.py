"""The voice chain as tasks of the arbiter: where its language model runs, its speech engines' leases, its warm-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping
from dataclasses import dataclass
from functools import partial

from cockpit.arbiter.config import BACKGROUND, DIALOGUE, NAVIGATION, SPEECH, VEHICLE
from cockpit.scheduling.engine_turns import ChainRuns, LaneLeases
from cockpit.scheduling.llm_lease import LanedModel, LaneLlmScheduler, TaskLane
from cockpit.scheduling.service import SchedulingService
from cockpit.scheduling.speech_warmers import SpeechWarmers
from cockpit.scheduling.tasks import names_of
from cockpit.scheduling.warmup import Warmer, WarmUps
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.grammar import Grammar

_WARM_TOKENS = 24
"""A short turn's worth of new prompt: what a real request computes beyond its cached prefix."""
_CHOICE = 'start: "{\\"name\\": \\"navigate_to\\"}" | "{\\"name\\": \\"cancel_navigation\\"}"'
"""What a command's request chooses between."""


@dataclass(frozen=True, slots=True)
class VoiceTask:
    """What the chain needs of the service."""

    scheduler: LaneLlmScheduler
    runs: ChainRuns
    warm_ups: WarmUps


def open_voice_task(
    service: SchedulingService, model: CausalLM, *, lanes: bool, speech: SpeechWarmers | None = None
) -> VoiceTask:
    """Bind the engines to the profile's tasks and warm each task up.

    lanes: whether `model` has a cache per lane. speech: None leaves recognition and voices cold.
    """
    tasks = service.config.tasks
    names = names_of(tasks)
    warmers = _warmers(model, frozenset(names.values()), task_lane(service, model, lanes=lanes), speech)
    warm_ups = WarmUps(service.dispatcher, tasks, {name: warm for name, warm in warmers.items() if name in tasks})
    lane = task_lane(service, model, lanes=lanes)
    scheduler = LaneLlmScheduler(service.dispatcher, names, lane, service.evicted, warm_ups.ran)
    runs = ChainRuns(LaneLeases(service.dispatcher, warm_ups.ran), tasks, lambda: scheduler.holds)
    warm_ups.at_start()
    return VoiceTask(scheduler, runs, warm_ups)


def task_lane(service: SchedulingService, model: CausalLM, *, lanes: bool) -> TaskLane:
    """Where one thread's steps of the model run. lanes: see `open_voice_task`."""
    laned = LanedModel(model.use, lambda: service.dispatcher.lane_in_force(DIALOGUE), service.model_turn)
    bound = frozenset(task for task in service.config.tasks if must_bind(service, task))
    return TaskLane(service.device, bound=bound, model=laned if lanes else None)


def must_bind(service: SchedulingService, task: str) -> bool:
    """Whether a task keeps to its lanes. One that may have every core is placed better by the kernel."""
    config = service.config
    units = sum(config.clusters[name] for name in config.tasks[task].clusters)
    return service.device.kind != "cpu" or 0 < units < service.device.units


def _warmers(
    model: CausalLM,
    model_tasks: frozenset[str],
    place: TaskLane,
    speech: SpeechWarmers | None,
) -> Mapping[str, Warmer]:
    """One request of each kind that a task has. model_tasks: those that the language model runs as. place: for the
    threads that warm up, one at a time.
    """
    talk, choose = _text_requests(model)
    hear, say = ((lambda: None), (lambda: None)) if speech is None else (speech.hear, speech.say)
    kinds: dict[str, tuple[Callable[[], None], tuple[Callable[[], None], ...]]] = {
        BACKGROUND: (talk, ()),
        DIALOGUE: (talk, ()),
        VEHICLE: (choose, (say,)),
        NAVIGATION: (choose, (say,)),
        SPEECH: (_nothing, (hear, say)),
    }

    def warm(name: str, lane: str) -> None:
        text, spoken = kinds[name]
        if name in model_tasks:
            place.enter(lane, name)
            try:
                text()
            finally:
                place.leave()
        for request in spoken:
            request()

    return {name: partial(warm, name) for name in kinds}


def _nothing() -> None:
    return None


def _text_requests(model: CausalLM) -> tuple[Callable[[], None], Callable[[], None]]:
    """Short requests (an answer, a choice) on a text of their own, so that no dialogue is disturbed and none waits long
    behind them.
    """
    session = model.open_session()
    filler = model.tokenizer.encode("warm up " * _WARM_TOKENS)
    grammar = Grammar.compile(_CHOICE, model.tokenizer)

    def fill() -> None:
        # The other half of the filler each time: nothing of the last request may be reused.
        start = 0 if session.tokens[:1] != tuple(filler[:1]) else 1
        session.set_tokens(filler[start : start + _WARM_TOKENS])

    def talk() -> None:
        fill()
        list(session.generate(max_new_tokens=2))

    def choose() -> None:
        fill()
        list(session.generate(max_new_tokens=16, constraint=grammar.start()))

    return talk, choose
