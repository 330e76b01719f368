"""The running process as a head unit sees and handles it: its state, and what can be done to it by hand."""

from __future__ import annotations

from collections.abc import Callable
from dataclasses import dataclass
from typing import Any

from cockpit.headunit.stream import EventStream, State
from cockpit.runtime import Runtime
from cockpit.service.state import ServiceState
from models.errors import InputError
from pipeline.audio.lasting import LastingSpeaker
from pipeline.frames import Language, SpeechFrame


class NotHere(InputError):
    """What this process has not got cannot be handled: no microphone or no speaker."""


@dataclass(frozen=True, slots=True)
class Cabin:
    """microphone: whether the chain listens to one. speaker: None where replies sound nowhere.

    languages: those of the profile, of which `language` chooses. next_turn: gives a turn its id.
    """

    runtime: Runtime
    service: ServiceState
    languages: tuple[Language, ...]
    next_turn: Callable[[], int]
    microphone: bool = False
    speaker: LastingSpeaker | None = None

    def state(self) -> State:
        """What the event `state` says. `degraded`: it would be idle, and something is lacking (`modes` says what).
        None: not here to be handled.
        """
        runtime, by_hand = self.runtime, self.runtime.by_hand
        modes, doing = dict(self.service.status().modes), runtime.doing()
        chosen = runtime.parts.asr.languages
        return {
            "state": "degraded" if modes and doing == "idle" else doing,
            "modes": modes,
            "muted": by_hand.muted if self.microphone else None,
            "talking": by_hand.talking if self.microphone else None,
            "language": chosen[0] if len(chosen) == 1 and len(self.languages) > 1 else "auto",
            "volume": None if self.speaker is None else self.speaker.volume,
        }

    def talk(self, on: bool) -> None:
        """Push-to-talk. Raises NotHere; InputError while the microphone is muted."""
        self._require_microphone()
        lost = self.service.status().modes.get("no_microphone")
        if on and lost is not None:
            raise InputError(f"nobody is heard: {lost}")
        if on and self.runtime.by_hand.muted:
            raise InputError("the microphone is muted: unmute it first")
        if on:
            self.runtime.by_hand.press()
        else:
            self.runtime.by_hand.release()

    def mute(self, on: bool) -> None:
        """Of the microphone. Raises NotHere."""
        self._require_microphone()
        self.runtime.by_hand.mute(on)

    def cancel(self) -> None:
        """See `Runtime.cancel`."""
        self.runtime.cancel()

    def use_language(self, language: str) -> None:
        """Which language is heard from now on: one of the profile's, or `auto` for all of them. Raises InputError."""
        chosen = self.languages if language == "auto" else tuple(name for name in self.languages if name == language)
        if not chosen:
            raise InputError(f"the profile hears {', '.join(self.languages)}, not {language}: see asr.languages")
        self.runtime.parts.asr.use(chosen)

    def set_volume(self, volume: float) -> None:
        """Of replies and prompts, in [0, 1]. Raises NotHere."""
        if self.speaker is None:
            raise NotHere("this process has no speaker (--no-voice)")
        self.speaker.set_volume(volume)

    def ask(self, text: str, language: Language) -> int:
        """As if the driver had said it; the reply is spoken. Returns the turn's id. Raises Closed."""
        turn_id = self.next_turn()
        self.runtime.ask(text, language, turn_id)
        return turn_id

    def _require_microphone(self) -> None:
        if not self.microphone:
            raise NotHere("this process listens to no microphone (--no-voice)")

    def shown_by(self, events: EventStream) -> None:
        """Let a stream of events begin."""
        sink, generations = self.runtime.parts.sink, self.runtime.parts.generations

        def is_cut(frame: SpeechFrame) -> bool:
            return generations.is_stale(frame.generation)

        def is_held_up() -> bool:
            return self.runtime.parts.guidance.over_reply != "duck" and sink.prompting()

        events.watch(self.state, is_cut, is_held_up)

    def as_json(self) -> dict[str, Any]:
        """The answer of `POST /v1/control`."""
        return {"object": "state", **self.state()}
