"""SIGHUP under a service manager: the profile is read again. What can change while the process runs does, the rest is
named; a profile that is wrong changes nothing.
"""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from typing import Any

from cockpit import stop_signals
from cockpit.profile.load import load_profile
from cockpit.profile.sections import Profile
from cockpit.service.state import ServiceState
from models.errors import CockpitError

log = logging.getLogger("cockpit.service")

LIVE_KEYS = frozenset({"audio.input_device", "audio.output_device"})
"""What a process changes while it runs; everything else needs a restart."""


class Reloader:
    """Reads `name` again whenever it is asked to, in a thread of its own."""

    def __init__(self, state: ServiceState, name: str, running: Profile, apply: Callable[[Profile], object]) -> None:
        """running: the profile in force. apply: takes over LIVE_KEYS."""
        self._state = state
        self._name = name
        self._running = running
        self._apply = apply
        self._asked = threading.Event()
        self._ended = False
        self._thread = threading.Thread(target=self._run, name="reload", daemon=True)

    def ask(self) -> None:
        """Returns at once; a second time before the first is over counts as one. Safe in a signal handler."""
        self._asked.set()

    @contextmanager
    def on_hangup(self) -> Iterator[None]:
        """Within the block SIGHUP asks for it."""
        self._thread.start()
        with stop_signals.on_hangup(self.ask):
            yield
        self._ended = True
        self._asked.set()

    def reload(self) -> str:
        """Once, here and now; returns what became of it."""
        before = self._state.status().detail
        self._state.reloading(f"profile {self._name}")
        told = self._read()
        log.info("reload: %s", told)
        self._state.ready(f"{before.partition('; reload: ')[0]}; reload: {told}")
        return told

    def _run(self) -> None:
        while self._asked.wait() and not self._ended:
            self._asked.clear()
            self.reload()

    def _read(self) -> str:
        try:
            wanted = load_profile(self._name).profile
        except CockpitError as error:
            return f"the profile is wrong, the one in force stays: {error}"
        changed = changed_keys(self._running, wanted)
        if not changed:
            return "nothing has changed"
        live = [key for key in changed if key in LIVE_KEYS]
        if live:
            self._apply(wanted)
            self._running = self._running.model_copy(
                update={
                    "audio": self._running.audio.model_copy(
                        update={key.partition(".")[2]: getattr(wanted.audio, key.partition(".")[2]) for key in live}
                    )
                }
            )
        rest = [key for key in changed if key not in LIVE_KEYS]
        told = [f"in force now: {', '.join(live)}"] if live else []
        return "; ".join(told + ([f"after a restart only: {', '.join(rest)}"] if rest else []))


def changed_keys(before: Profile, after: Profile) -> list[str]:
    """The dotted keys whose values differ, in the order of the profile."""
    old, new = _flat(before.model_dump()), _flat(after.model_dump())
    return [key for key in {**old, **new} if old.get(key) != new.get(key)]


def _flat(value: Any, path: str = "") -> dict[str, Any]:
    if not isinstance(value, dict):
        return {path: value}
    return {
        key: leaf for name, part in value.items() for key, leaf in _flat(part, f"{path}.{name}".lstrip(".")).items()
    }
