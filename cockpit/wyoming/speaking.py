"""One text to speak, whole or in pieces as it is written, as audio events clause by clause."""

from __future__ import annotations

import asyncio
from collections.abc import AsyncIterator, Callable, Iterator

from wyoming.audio import AudioChunk, AudioStart, AudioStop
from wyoming.event import Eventable

from cockpit.api.speech import SpeechService, pcm16
from models.engines.base import Audio
from models.errors import InputError
from pipeline.frames import Language
from pipeline.tts.clauses import ClauseStream

MOST_CHARACTERS = 8_000
CHUNK_SAMPLES = 2_048
_WIDTH, _CHANNELS = 2, 1


class SpokenText:
    """The audio of one text. language: None to tell it by the first letters. task: what it is made as."""

    def __init__(self, speech: SpeechService, language: Language | None, task: str, gone: Callable[[], bool]) -> None:
        self.started = False
        """Whether there has been any sound."""
        self._speech = speech
        self._language = language
        self._task = task
        self._gone = gone
        self._clauses: ClauseStream | None = None
        self._begun = ""
        self._characters = 0
        self._spoken_ms = 0.0

    async def push(self, text: str) -> AsyncIterator[Eventable]:
        """A piece of it: the sound of the clauses that it completes. Raises InputError, ApiError."""
        self._characters += len(text)
        if self._characters > MOST_CHARACTERS:
            raise InputError(f"texts of more than {MOST_CHARACTERS} characters are not spoken at once")
        if self._clauses is None:
            self._begun += text
            if not any(sign.isalpha() for sign in self._begun):
                return
            text = self._begun
            self._clauses = self._opened(text)
        for clause in self._clauses.push(text):
            async for event in self._clause(clause):
                yield event

    async def close(self) -> AsyncIterator[Eventable]:
        """The rest of it, and the end of the sound."""
        clauses = self._clauses or self._opened(self._begun)
        rest = [] if self._clauses else clauses.push(self._begun)
        for clause in [*rest, *clauses.close()]:
            async for event in self._clause(clause):
                yield event
        if self.started:
            yield AudioStop(timestamp=round(self._spoken_ms))

    def _opened(self, text: str) -> ClauseStream:
        self._language = self._language or written_in(text)
        if self._language not in self._speech.voices:
            raise InputError(f"no voice for {self._language!r} here: {', '.join(self._speech.voices)}")
        return ClauseStream(self._language)

    async def _clause(self, clause: str) -> AsyncIterator[Eventable]:
        language = self._language
        if language is None or not any(sign.isalnum() for sign in clause):
            return
        rate_hz = self._speech.voices[language].sample_rate_hz
        sounds = self._speech.speak(clause, language, self._gone, self._task)
        while (sound := await asyncio.to_thread(next, sounds, None)) is not None:
            if not self.started:
                self.started = True
                yield AudioStart(rate=rate_hz, width=_WIDTH, channels=_CHANNELS, timestamp=0)
            for piece in _pieces(sound):
                yield AudioChunk(rate_hz, _WIDTH, _CHANNELS, pcm16(piece), timestamp=round(self._spoken_ms))
                self._spoken_ms += len(piece) * 1000 / rate_hz


def written_in(text: str) -> Language:
    """The language of a text by its letters."""
    return "zh" if any("\u3400" <= sign <= "\u9fff" for sign in text) else "en"


def _pieces(sound: Audio) -> Iterator[Audio]:
    for first in range(0, len(sound), CHUNK_SAMPLES):
        yield sound[first : first + CHUNK_SAMPLES]
