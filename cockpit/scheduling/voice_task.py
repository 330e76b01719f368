"""The voice chain as a task of the arbiter: where its language model runs, and its warm-up."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from functools import partial

from cockpit.arbiter.config import DIALOGUE
from cockpit.scheduling.llm_lease import LaneLlmScheduler, TaskLane
from cockpit.scheduling.service import SchedulingService
from cockpit.scheduling.warmup import Warmer, WarmUps
from models.engines.llm.causal_lm import CausalLM

_WARM_TOKENS = 24
"""A short turn's worth of new prompt: what a real request computes beyond its cached prefix."""


@dataclass(frozen=True, slots=True)
class VoiceTask:
    """What the chain needs of the service."""

    scheduler: LaneLlmScheduler
    warm_ups: WarmUps


def open_voice_task(service: SchedulingService, model: CausalLM, *, lanes: bool) -> VoiceTask:
    """Bind the language model to the dialogue task and warm it up. lanes: whether `model` has a cache per lane."""
    on_lane = model.use if lanes else None
    warm_ups = WarmUps(service.dispatcher, service.config.tasks, {DIALOGUE: _warmer(model, on_lane)})
    lane = TaskLane(service.device, bind=must_bind(service, DIALOGUE), on_lane=on_lane)
    scheduler = LaneLlmScheduler(service.dispatcher, DIALOGUE, lane, service.evicted, partial(warm_ups.ran, DIALOGUE))
    warm_ups.at_start()
    return VoiceTask(scheduler, warm_ups)


def must_bind(service: SchedulingService, task: str) -> bool:
    """Whether a task keeps to its lanes. One that may have every core is placed better by the kernel."""
    config = service.config
    units = sum(config.clusters[name] for name in config.tasks[task].clusters)
    return service.device.kind != "cpu" or 0 < units < service.device.units


def _warmer(model: CausalLM, on_lane: Callable[[str], None] | None) -> Warmer:
    """One short request on a text of its own, so that no dialogue is disturbed and none waits long behind it."""
    session = model.open_session()
    filler = model.tokenizer.encode("warm up " * _WARM_TOKENS)

    def warm(lane: str) -> None:
        if on_lane is not None:
            on_lane(lane)
        # The other half of the filler each time: nothing of the last request may be reused.
        start = 0 if session.tokens[:1] != tuple(filler[:1]) else 1
        session.set_tokens(filler[start : start + _WARM_TOKENS])
        list(session.generate(max_new_tokens=2))

    return warm
