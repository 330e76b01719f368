"""Microphone and speaker as the service's state shows them, and what is said about them."""

from __future__ import annotations

import logging
import threading
import time
from collections.abc import Callable

from cockpit.service.state import ServiceState
from models.errors import CockpitError
from pipeline.audio.lasting import DeviceEvents
from pipeline.frames import GuidancePrompt, Language
from pipeline.nlg.device_notices import MICROPHONE_BACK, MICROPHONE_LOST

log = logging.getLogger("cockpit.service")

Guide = Callable[[GuidancePrompt], object]


class DeviceNotices:
    """Tells the state what is lacking, and the driver, once, that nobody hears him or somebody does again.

    shown: told the name of a microphone that is there (again), for the terminal.
    """

    def __init__(self, state: ServiceState, language: Language, shown: Callable[[str], object]) -> None:
        self._state = state
        self._language = language
        self._shown = shown
        self._lock = threading.Lock()
        self._guide: Guide | None = None
        self._said_lost = False

    @property
    def microphone(self) -> DeviceEvents:
        return DeviceEvents(self._microphone_lost, self._microphone_back)

    @property
    def speaker(self) -> DeviceEvents:
        return DeviceEvents(self._speaker_lost, self._speaker_back)

    def speak_through(self, guide: Guide) -> None:
        """The voice is there: say what could not be said before."""
        with self._lock:
            self._guide = guide
            if "no_microphone" in self._state.status().modes:
                self._say_lost()

    def _microphone_lost(self, reason: str) -> None:
        with self._lock:
            if self._state.begin("no_microphone", reason):
                self._say_lost()

    def _microphone_back(self, name: str) -> None:
        with self._lock:
            self._shown(name)
            if self._state.end("no_microphone", name) and self._said_lost:
                self._said_lost = False
                self._say(MICROPHONE_BACK)

    def _speaker_lost(self, reason: str) -> None:
        self._state.begin("no_speaker", reason)

    def _speaker_back(self, name: str) -> None:
        self._state.end("no_speaker", name)

    def _say_lost(self) -> None:
        if self._guide is not None and not self._said_lost:
            self._said_lost = True
            self._say(MICROPHONE_LOST)

    def _say(self, texts: dict[Language, str]) -> None:
        """As a prompt of guidance: beside whatever is said, and a newer one takes the place of one that waits."""
        assert self._guide is not None
        try:
            self._guide(GuidancePrompt(texts[self._language], self._language, time.monotonic_ns(), "notice:microphone"))
        except CockpitError as error:
            log.warning("it cannot be said that the microphone is gone or back: %s", error)
