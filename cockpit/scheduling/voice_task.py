"""The voice chain under the arbiter: its task, its lane, its warm-up, and the socket that tells about them."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path

from cockpit.arbiter.config import DIALOGUE, ArbiterConfig
from cockpit.profile.memory_budget import MemoryPlan
from cockpit.scheduling.llm_lease import LaneLlmScheduler, anywhere
from cockpit.scheduling.service import Arbitration, open_arbitration
from cockpit.scheduling.warmup import Warmer, WarmUps
from models.engines.llm.causal_lm import CausalLM
from models.errors import ConfigError

_WARM_TOKENS = 24
"""A short turn's worth of new prompt: what a real request computes beyond its cached prefix."""


@dataclass(frozen=True, slots=True)
class SharingPlan:
    """How a process shares its device. socket: None has no control socket. state_dir: None forgets the policy.

    memory: what was planned before anything was loaded, for operators to see.
    """

    config: ArbiterConfig
    socket: Path | None = None
    group: str | None = None
    state_dir: Path | None = None
    memory: MemoryPlan | None = None


@dataclass(frozen=True, slots=True)
class Sharing:
    """The arbitration of this process and what the chain needs of it."""

    arbitration: Arbitration
    work: LaneLlmScheduler
    warm_ups: WarmUps

    def close(self) -> None:
        """Take the socket away and free the device."""
        self.arbitration.close()


def open_shared(plan: SharingPlan, kind: str) -> Arbitration:
    """Open device, lanes and socket before any model is loaded. Raises StartupError and ConfigError."""
    if DIALOGUE not in plan.config.tasks:
        raise ConfigError(
            f"tasks: the voice chain runs as {DIALOGUE}, which this profile does not name "
            f"({', '.join(plan.config.tasks)}): add it, or leave out orchestration and tasks"
        )
    return open_arbitration(
        plan.config,
        kind,
        state_dir=plan.state_dir,
        socket=plan.socket,
        group=plan.group,
        memory_plan=plan.memory,
    )


def share(arbitration: Arbitration, model: CausalLM, on_lane: Callable[[str], None] = anywhere) -> Sharing:
    """Bind the language model's work to the dialogue task and warm it up. on_lane: see LaneLlmScheduler."""
    dispatcher = arbitration.dispatcher
    warm_ups = WarmUps(dispatcher, dispatcher.arbiter.config.tasks, {DIALOGUE: _warmer(model, on_lane)})
    # The control server beats in a thread of its own; without one the chain does so while it idles.
    housekeeping = arbitration.housekeeper.beat if arbitration.control is None else _nothing
    work = LaneLlmScheduler(
        dispatcher,
        arbitration.device,
        DIALOGUE,
        arbitration.evicted,
        bind=must_bind(arbitration),
        ran=lambda: warm_ups.ran(DIALOGUE),
        housekeeping=housekeeping,
        on_lane=on_lane,
    )
    warm_ups.at_start()
    return Sharing(arbitration, work, warm_ups)


def must_bind(arbitration: Arbitration) -> bool:
    """Whether the dialogue keeps to its lanes. One that may have every core is placed better by the kernel."""
    device, config = arbitration.device, arbitration.dispatcher.arbiter.config
    units = sum(config.clusters[name] for name in config.tasks[DIALOGUE].clusters)
    return device.kind != "cpu" or 0 < units < device.units


def _nothing() -> None:
    return None


def _warmer(model: CausalLM, on_lane: Callable[[str], None]) -> Warmer:
    """One short request on a text of its own, so that no dialogue is disturbed and none waits long behind it."""
    session = model.open_session()
    filler = model.tokenizer.encode("warm up " * _WARM_TOKENS)

    def warm(lane: str) -> None:
        on_lane(lane)
        # The other half of the filler each time: nothing of the last request may be reused.
        start = 0 if session.tokens[:1] != tuple(filler[:1]) else 1
        session.set_tokens(filler[start : start + _WARM_TOKENS])
        list(session.generate(max_new_tokens=2))

    return warm
