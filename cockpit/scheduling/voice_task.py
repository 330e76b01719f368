"""The voice chain as tasks of the arbiter: where its language model runs, its speech engines' leases, its warm-up."""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from functools import partial

from cockpit.arbiter.config import DIALOGUE, NAVIGATION, SPEECH, VEHICLE
from cockpit.scheduling.engine_turns import ChainRuns, LaneLeases
from cockpit.scheduling.llm_lease import LanedModel, LaneLlmScheduler, TaskLane
from cockpit.scheduling.service import SchedulingService
from cockpit.scheduling.speech_warmers import SpeechWarmers
from cockpit.scheduling.tasks import names_of
from cockpit.scheduling.warmup import Warmer, WarmUps
from models.engines.base import TokenConstraint
from models.engines.llm.causal_lm import CausalLM
from models.engines.llm.grammar import Grammar
from models.engines.llm.session import LmSession
from pipeline.frames import Task

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
    service: SchedulingService,
    model: CausalLM,
    background: CausalLM | None = None,
    *,
    lanes: bool,
    speech: SpeechWarmers | None = None,
) -> VoiceTask:
    """Bind the engines to the profile's tasks and warm each task up.

    background: the model of background requests where it is another. lanes: whether they have caches per lane.
    speech: None leaves recognition and voices cold.
    """
    tasks = service.config.tasks
    names = names_of(tasks)
    talks = _Requests.on(model, task_lane(service, model, lanes=lanes))
    own = talks
    if background is not None and background is not model:
        own = _Requests.on(background, task_lane(service, background, lanes=lanes))
    warmers = _warmers(talks, own, names, speech)
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


@dataclass(frozen=True, slots=True)
class _Requests:
    """Short requests (an answer, a choice) on one model and a text of their own, so that no dialogue is disturbed and
    none waits long behind them. place: for the threads that warm up, one at a time.
    """

    session: LmSession
    filler: Sequence[int]
    grammar: Grammar
    place: TaskLane

    @classmethod
    def on(cls, model: CausalLM, place: TaskLane) -> _Requests:
        filler = model.tokenizer.encode("warm up " * _WARM_TOKENS)
        return cls(model.open_session(), filler, Grammar.compile(_CHOICE, model.tokenizer), place)

    def talk(self, lane: str, task: str) -> None:
        self._run(lane, task, 2, None)

    def choose(self, lane: str, task: str) -> None:
        self._run(lane, task, 16, self.grammar.start())

    def _run(self, lane: str, task: str, tokens: int, constraint: TokenConstraint | None) -> None:
        self.place.enter(lane, task)
        try:
            # The other half of the filler each time: nothing of the last request may be reused.
            start = 0 if self.session.tokens[:1] != tuple(self.filler[:1]) else 1
            self.session.set_tokens(self.filler[start : start + _WARM_TOKENS])
            list(self.session.generate(max_new_tokens=tokens, constraint=constraint))
        finally:
            self.place.leave()


def _warmers(
    talks: _Requests, background: _Requests, names: Mapping[Task, str], speech: SpeechWarmers | None
) -> Mapping[str, Warmer]:
    """One request of each kind that a task has. talks, background: on the models of these roles. names: the task that
    each kind of work runs as.
    """
    spoken: Mapping[str, tuple[Callable[[], None], ...]] = {}
    if speech is not None:
        spoken = {VEHICLE: (speech.say,), NAVIGATION: (speech.say,), SPEECH: (speech.hear, speech.say)}
    texts: dict[str, list[Callable[[str, str], None]]] = {}
    kinds: tuple[tuple[Task, Callable[[str, str], None]], ...] = (
        ("navigation", talks.choose),
        ("vehicle", talks.choose),
        ("dialogue", talks.talk),
        ("background", background.talk),
    )
    for task, request in kinds:
        row = texts.setdefault(names[task], [])
        if request not in row:
            row.append(request)

    def warm(name: str, lane: str) -> None:
        for text in texts.get(name, ()):
            text(lane, name)
        for request in spoken.get(name, ()):
            request()

    return {name: partial(warm, name) for name in {*texts, *spoken}}
