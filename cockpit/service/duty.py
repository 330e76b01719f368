"""Around the time in which the process serves: readiness, watchdog, reload."""

from __future__ import annotations

from collections.abc import Iterable, Iterator
from contextlib import ExitStack, contextmanager

from cockpit.service.reload import Reloader
from cockpit.service.state import ServiceState
from cockpit.service.watchdog import Watchdog, Watched


@contextmanager
def on_duty(state: ServiceState, what: str, stages: Iterable[Watched], reloader: Reloader) -> Iterator[None]:
    """Warm, and requests are taken: the service manager is told so, and hears of progress until the block ends.

    what: for the status. Without a service manager SIGHUP ends the process, as it does when a terminal goes away.
    """
    with ExitStack() as opened:
        if state.notifier.present:
            opened.enter_context(reloader.on_hangup())
        state.ready(what)
        if state.notifier.watchdog_s is not None:
            watchdog = Watchdog(state, list(stages), state.notifier.watchdog_s)
            watchdog.start()
            opened.callback(watchdog.stop)
        yield
