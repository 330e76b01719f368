"""Recognition and voices for API requests, on the engines of the voice chain (see cockpit.scheduling.engine_turns)."""

from __future__ import annotations

import io
from collections.abc import Callable, Iterator, Mapping, Sequence
from contextlib import contextmanager

import numpy as np
import soundfile
import soxr

from cockpit.api.errors import ApiError, invalid
from cockpit.arbiter.config import DIALOGUE
from cockpit.scheduling.dispatcher import Refused
from cockpit.scheduling.engine_turns import EngineTurns, NoLeases, TaskLeases
from models.engines.base import Audio, Hypothesis, SpeechRecognizer, Voice
from pipeline.frames import SAMPLE_RATE_HZ, Language
from pipeline.tts.clauses import ClauseStream
from pipeline.tts.normalise import spoken

MOST_SECONDS = 600.0
Cancelled = Callable[[], bool]


_ALONE = NoLeases()


class SpeechService:
    """Transcripts and speech for requests; each call runs in the caller's thread."""

    def __init__(
        self,
        recogniser: SpeechRecognizer,
        voices: Mapping[Language, Voice],
        languages: Sequence[Language],
        asr_turns: EngineTurns,
        tts_turns: EngineTurns,
        leases: TaskLeases = _ALONE,
    ) -> None:
        self.voices = voices
        self.languages = tuple(languages)
        self._recogniser = recogniser
        self._asr_turns = asr_turns
        self._tts_turns = tts_turns
        self._leases = leases

    def transcribe(
        self, samples: Audio, language: Language | None, cancelled: Cancelled, task: str = DIALOGUE
    ) -> Hypothesis:
        """samples: float32 (n,) at 16 kHz. language: None lets the recogniser choose. Raises ApiError.

        task: the arbiter's name. The work parks between two steps while somebody more urgent runs, and starts anew
        after the voice chain has taken the recogniser.
        """
        if language is not None and language not in self.languages:
            raise invalid(f"language {language!r} is not served here: {', '.join(self.languages)}", "language")
        languages = self.languages if language is None else (language,)
        while self._asr_turns.wait_free(cancelled):
            over = _Once(lambda: self._asr_turns.wanted or cancelled())
            with self._held(task, over) as stop, self._asr_turns.at_once() as mine:
                if stop is None or not mine:
                    continue
                stopped = _Once(stop)
                heard = self._recogniser.transcribe(samples, languages=languages, cancelled=stopped)
                if not stopped.true:
                    return heard
                if not over.true:
                    raise ApiError(503, "stopped", f"{task} ran past its timeout", retry_after_s=1)
        raise ApiError(503, "stopped", "the request was cancelled")

    def speak(self, text: str, language: Language, cancelled: Cancelled, task: str = DIALOGUE) -> Iterator[Audio]:
        """Float32 (n,) chunks at the voice's rate, clause by clause. Raises ApiError for text without a word."""
        clauses = ClauseStream(language)
        said = [spoken(clause, language) for clause in [*clauses.push(text), *clauses.close()]]
        if not any(said):
            raise invalid("input holds nothing that can be spoken", "input")
        for words in filter(None, said):
            chunks = self._clause(words, language, cancelled, task)
            if chunks is None:
                return
            yield from chunks

    def _clause(self, words: str, language: Language, cancelled: Cancelled, task: str) -> list[Audio] | None:
        """One clause, each chunk under a lease of its own; None when `cancelled` before. Where the voice is wanted by
        somebody more urgent it goes on afterwards, from where it was.
        """
        chunks = iter(self.voices[language].synthesise(words))
        made: list[Audio] = []
        while self._tts_turns.wait_free(cancelled):
            over = _Once(lambda: self._tts_turns.wanted or cancelled())
            with self._held(task, over) as stop, self._tts_turns.at_once() as mine:
                if stop is None or not mine:
                    continue
                chunk = next(chunks, None)
            if chunk is None:
                return made
            if chunk.size:
                made.append(chunk)
        return None

    @contextmanager
    def _held(self, task: str, cancelled: Cancelled) -> Iterator[Callable[[], bool] | None]:
        """A lease of the task. Raises ApiError where the arbiter refuses one."""
        try:
            held = self._leases.hold(task, cancelled)
            stop = held.__enter__()
        except Refused as error:
            raise ApiError(503, "stopped", str(error), retry_after_s=1) from error
        try:
            yield stop
        finally:
            held.__exit__(None, None, None)


class _Once:
    """A question that stays answered once the answer was yes."""

    def __init__(self, ask: Callable[[], bool]) -> None:
        self.true = False
        self._ask = ask

    def __call__(self) -> bool:
        self.true = self.true or self._ask()
        return self.true


def samples_of(data: bytes) -> Audio:
    """Any file that libsndfile reads, as float32 mono at 16 kHz. Raises ApiError."""
    try:
        with soundfile.SoundFile(io.BytesIO(data)) as file:
            if file.frames <= 0 or file.frames > MOST_SECONDS * file.samplerate:
                raise invalid(f"the recording is to be 0 to {MOST_SECONDS:g} s long", "file")
            if not 4_000 <= file.samplerate <= 384_000:
                raise invalid(f"a sample rate of {file.samplerate} Hz is not read; send 16000 Hz", "file")
            samples = file.read(dtype="float32", always_2d=True).mean(axis=1)
            rate_hz = file.samplerate
    except soundfile.LibsndfileError as error:
        raise invalid(f"the file is no recording that can be read: {error.error_string}", "file") from error
    if not np.isfinite(samples).all():
        raise invalid("the recording holds samples that are no numbers", "file")
    heard: Audio = samples if rate_hz == SAMPLE_RATE_HZ else soxr.resample(samples, rate_hz, SAMPLE_RATE_HZ)
    return np.ascontiguousarray(heard, np.float32)


def pcm16(samples: Audio) -> bytes:
    """Little-endian 16-bit samples."""
    return (np.clip(samples, -1.0, 1.0) * 32767).astype("<i2").tobytes()


def wav_of(chunks: Sequence[Audio], rate_hz: int) -> bytes:
    """One 16-bit mono WAV."""
    file = io.BytesIO()
    soundfile.write(
        file, np.concatenate(chunks) if chunks else np.zeros(0, np.float32), rate_hz, "PCM_16", format="WAV"
    )
    return file.getvalue()
