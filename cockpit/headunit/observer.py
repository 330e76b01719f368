"""Who watches the turns of a runtime: what is heard, done and said, told on the stages' own threads."""

from __future__ import annotations

from typing import Protocol

from pipeline.frames import AudioFrame, SpeechFrame, Transcript
from pipeline.turn_log import TurnRecord


class Observer(Protocol):
    """Called on the stages' threads: every method returns at once and never raises."""

    def hears(self, frame: AudioFrame) -> None:
        """The microphone's next frame, as it is listened to: silence while it is muted."""
        ...

    def heard(self, transcript: Transcript) -> None:
        """What was understood of the speech so far ("partial", "candidate"), or of all of it ("final")."""
        ...

    def acted(self, record: TurnRecord) -> None:
        """The calls of a turn were made; `record.tool_results` says what came of them."""
        ...

    def sounds(self, frame: SpeechFrame, out_ns: int) -> None:
        """The first frame of a clause of a reply; it begins to sound at `out_ns` (monotonic), unless it is cut off."""
        ...

    def failed(self, stage: str, turn_id: int, error: Exception) -> None:
        """A stage could not do its work on a turn (0: on none)."""
        ...

    def ended(self, record: TurnRecord) -> None:
        """A turn is over: answered, interrupted or failed. Once more when it was re-opened after that."""
        ...


class NoObserver:
    """Nobody watches."""

    def hears(self, frame: AudioFrame) -> None:
        return None

    def heard(self, transcript: Transcript) -> None:
        return None

    def acted(self, record: TurnRecord) -> None:
        return None

    def sounds(self, frame: SpeechFrame, out_ns: int) -> None:
        return None

    def failed(self, stage: str, turn_id: int, error: Exception) -> None:
        return None

    def ended(self, record: TurnRecord) -> None:
        return None


class Observers:
    """Several at once, in their order."""

    def __init__(self, *observers: Observer) -> None:
        self._observers = observers

    def hears(self, frame: AudioFrame) -> None:
        for observer in self._observers:
            observer.hears(frame)

    def heard(self, transcript: Transcript) -> None:
        for observer in self._observers:
            observer.heard(transcript)

    def acted(self, record: TurnRecord) -> None:
        for observer in self._observers:
            observer.acted(record)

    def sounds(self, frame: SpeechFrame, out_ns: int) -> None:
        for observer in self._observers:
            observer.sounds(frame, out_ns)

    def failed(self, stage: str, turn_id: int, error: Exception) -> None:
        for observer in self._observers:
            observer.failed(stage, turn_id, error)

    def ended(self, record: TurnRecord) -> None:
        for observer in self._observers:
            observer.ended(record)
