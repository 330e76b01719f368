"""What the watchdog looks after in a running process."""

from __future__ import annotations

import itertools
from collections.abc import Callable, Iterator
from functools import partial
from typing import TYPE_CHECKING

from cockpit.runtime import GUIDANCE, STAGES, Runtime
from cockpit.scheduling.service import SchedulingService
from cockpit.service.state import ServiceState
from cockpit.service.watchdog import Watched

if TYPE_CHECKING:  # `cockpit listen` serves nobody and does not import the servers
    from cockpit.api.service import Api
    from cockpit.wyoming.server import WyomingServer


def chain(runtime: Runtime, scheduling: SchedulingService | None, state: ServiceState) -> Iterator[Watched]:
    """The stages of the voice chain, guidance, and what shares out the device."""
    for name in STAGES:
        yield Watched(name, partial(runtime.steps, name), partial(runtime.waits_to_hand_on, name), thread=name)
    yield Watched(GUIDANCE, partial(runtime.steps, GUIDANCE), thread=GUIDANCE)
    if scheduling is not None:
        yield Watched("arbiter", _asked(scheduling, state))


def servers(api: Api, wyoming: WyomingServer | None) -> Iterator[Watched]:
    """The API, its batches, and Wyoming."""
    yield Watched("api", lambda: api.server.ticks, thread="api")
    texts = api.texts
    yield Watched("api batches", lambda: sum(text.steps for text in texts), lambda: all(text.idle for text in texts))
    if wyoming is not None:
        yield Watched("wyoming", lambda: wyoming.ticks, thread="wyoming")


def _asked(scheduling: SchedulingService, state: ServiceState) -> Callable[[], int]:
    """Asks the arbiter how it is, which takes its lock: one that hangs holds up the watchdog itself."""
    answers = itertools.count()

    def steps() -> int:
        degraded = scheduling.dispatcher.status(verbose=False).degraded
        if degraded.active:
            state.begin("tasks_paused", f"{', '.join(degraded.paused)} ({degraded.why})")
        else:
            state.end("tasks_paused")
        return next(answers)

    return steps
