"""What a running process tells of itself: its events in a thread, and its findings."""

from __future__ import annotations

import threading
import time
from typing import Any

from cockpit.client import Cockpit, CockpitError

_AGAIN_S = 0.2
_FINDINGS_S = 0.3
_QUIET_S = 20.0
"""Every 15 s comes an empty line: a stream that is silent for longer is dead."""


class EventLog:
    """Follows the API on `path` until `close`. While it cannot be reached `gone` says why."""

    def __init__(self, path: str) -> None:
        self.gone: str | None = "not reached yet"
        self.state: dict[str, Any] = {}
        """The newest event `state`."""
        self.day_s = 0.0
        """What the process's clock of the day said in its newest event, and when that was here."""
        self.day_seen_s = 0.0
        self.newest_s = time.monotonic()
        self._path = path
        self._turns: list[dict[str, Any]] = []
        self._findings: dict[str, str] = {}
        self._ended = threading.Event()
        self._threads = [threading.Thread(target=run, daemon=True) for run in (self._follow, self._look)]
        for thread in self._threads:
            thread.start()

    def close(self) -> None:
        self._ended.set()

    def turns(self, since: int = 0) -> list[dict[str, Any]]:
        """Turns that have ended, as `cockpit say --json` gives them; one that was re-opened counts once."""
        return [turn for turn in self._turns if turn["turn_id"] > since]

    @property
    def last_turn(self) -> int:
        return max((turn["turn_id"] for turn in self._turns), default=0)

    def modes(self) -> dict[str, str]:
        """What it lacks by its own words, what it found on the GPU, and `gone` where it does not answer."""
        if self.gone is not None:
            return {"gone": self.gone}
        return {**self.state.get("modes", {}), **self._findings}

    def forget(self) -> None:
        """A new process begins to count its turns anew."""
        self._turns.clear()
        self.state = {}
        self.gone = "started again"

    def _follow(self) -> None:
        while not self._ended.is_set():
            try:
                for event in Cockpit(self._path, _QUIET_S).events():
                    if self._ended.is_set():
                        return
                    self._take(event)
                self.gone = "the stream of events has ended"
            except (CockpitError, OSError, ValueError) as error:
                self.gone = str(error) or type(error).__name__
            self._ended.wait(_AGAIN_S)

    def _take(self, event: dict[str, Any]) -> None:
        self.day_s, self.day_seen_s = float(event.get("at_s", 0.0)), time.time()
        if event["type"] == "state":
            self.gone, self.state = None, event
        if event["type"] == "turn":
            self._turns = [turn for turn in self._turns if turn["turn_id"] != event["turn_id"]] + [event]
        if event["type"] in ("state", "turn", "transcript", "calls"):
            self.newest_s = time.monotonic()

    def _look(self) -> None:
        while not self._ended.wait(_FINDINGS_S):
            try:
                status = Cockpit(self._path, 5.0).ask("GET", "/v1/status")
                self._findings = {finding["code"]: finding["message"] for finding in status["findings"]}
            except (CockpitError, OSError, ValueError, KeyError):
                continue  # `gone` says it
