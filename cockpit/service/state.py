"""Where the process is in its life, and what it has to do without: told to the service manager and `o3ctl`."""

from __future__ import annotations

import logging
import threading
from collections.abc import Callable
from dataclasses import dataclass
from typing import Literal

from cockpit.service.notify import Notifier

log = logging.getLogger("cockpit.service")

Phase = Literal["starting", "ready", "reloading", "stopping"]
Mode = Literal[
    "no_microphone",
    "no_speaker",
    "no_vehicle",
    "no_gpu",
    "tasks_paused",
    "stalled",
    "unvalidated",
    "standing_in",
    "unsigned",
]
"""What a service can lack and still run, or wait for before it is ready."""


@dataclass(frozen=True, slots=True)
class StateStatus:
    """phase: and, of a start, what is loaded now. modes: name -> reason, empty where nothing is lacking."""

    phase: Phase
    detail: str
    modes: dict[Mode, str]

    def as_json(self) -> dict[str, object]:
        return {"phase": self.phase, "detail": self.detail, "modes": dict(self.modes), "text": str(self)}

    def __str__(self) -> str:
        lacking = "; ".join(f"{mode}: {reason}" for mode, reason in self.modes.items())
        begun = f"{self.phase}: {self.detail}" if self.detail else self.phase
        return f"{begun} [{lacking}]" if lacking else begun


class ServiceState:
    """Written by whoever knows, from any thread; each change is told at once."""

    def __init__(self, notifier: Notifier) -> None:
        self.notifier = notifier
        self._lock = threading.Lock()
        self._phase: Phase = "starting"
        self._detail = ""
        self._modes: dict[Mode, str] = {}

    def status(self) -> StateStatus:
        """A consistent snapshot."""
        with self._lock:
            return StateStatus(self._phase, self._detail, dict(self._modes))

    def starting(self, what: str) -> None:
        """The next phase of the start."""
        self._move("starting", what, self.notifier.starting)

    def ready(self, what: str) -> None:
        """Warm, and requests are taken. Also the end of a reload."""
        self._move("ready", what, self.notifier.ready)

    def reloading(self, what: str) -> None:
        """The configuration is read again."""
        self._move("reloading", what, self.notifier.reloading)

    def stopping(self, what: str) -> None:
        """The process ends."""
        self._move("stopping", what, self.notifier.stopping)

    def begin(self, mode: Mode, reason: str) -> bool:
        """The process has to do without something. True when it did not before. The reason is logged when it is new."""
        with self._lock:
            before = self._modes.get(mode)
            if before == reason:
                return False
            self._modes[mode] = reason
            self._tell()
        log.warning("%s: %s", mode, reason)
        return before is None

    def end(self, mode: Mode, how: str = "") -> bool:
        """What was lacking is there again. True when it was lacking."""
        with self._lock:
            if self._modes.pop(mode, None) is None:
                return False
            self._tell()
        log.info("%s is over%s", mode, f": {how}" if how else "")
        return True

    def _move(self, phase: Phase, what: str, tell: Callable[[str], None]) -> None:
        with self._lock:
            self._phase, self._detail = phase, what
            tell(self._text())

    def _tell(self) -> None:
        """Called with the lock held, so that the newest is told last."""
        if self._phase == "starting":
            self.notifier.starting(self._text())
        else:
            self.notifier.status(self._text())

    def _text(self) -> str:
        return str(StateStatus(self._phase, self._detail, self._modes))
