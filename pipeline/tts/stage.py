"""Spoken text and TTS, without a thread of their own: reply text to clauses, clauses to audio."""

from __future__ import annotations

from collections.abc import Callable, Iterator, Mapping

import numpy as np

from models.engines.base import Audio, Voice
from models.engines.tts.espeak import SpeechFailed
from pipeline.engine_runs import UNSCHEDULED_RUNS, EngineRuns
from pipeline.frames import Language, SpeechFrame, SpokenClause, TextDelta
from pipeline.nlg.apologies import ANSWER_LOST, NO_WORDS
from pipeline.tts.clauses import ClauseStream
from pipeline.tts.normalise import spoken

_SILENCE: Audio = np.zeros(0, dtype=np.float32)


class TtsStage:
    """The stage core. One owner: `handle` and `speak` may run on two threads, each of them on one only.

    `dropped`: messages of an older generation; `failures`: clauses that a voice failed to speak.
    """

    def __init__(self, voices: Mapping[Language, Voice]) -> None:
        self._voices = voices
        self._runs: EngineRuns = UNSCHEDULED_RUNS
        self._stream: ClauseStream | None = None
        self._turn: tuple[int, int] = (-1, -1)  # generation, turn id
        self._spoken_generation = -1
        self._index = 0
        self._closed = False
        self._silenced = False
        self._apologies: dict[Language, Audio] = {}
        self.dropped = 0
        self.failures = 0

    def under(self, runs: EngineRuns) -> None:
        """From now on each run of a voice asks `runs` first. Before `speak` is called."""
        self._runs = runs

    def warm_up(self) -> None:
        """Warm up every voice, and keep the audio of its apology: it must sound when the voice fails."""
        for language, voice in self._voices.items():
            voice.warm_up()
            chunks = list(voice.synthesise(spoken(ANSWER_LOST[language], language)))
            self._apologies[language] = np.concatenate(chunks) if chunks else _SILENCE

    def abandon(self, turn_id: int, generation: int) -> None:
        """Drop whatever else comes of this turn's reply. For the thread that calls `handle`."""
        self._turn, self._stream, self._closed = (generation, turn_id), None, True

    def apology(self, turn_id: int, generation: int, language: Language, captured_ns: int) -> Iterator[SpeechFrame]:
        """The frames of an apology made at `warm_up`, closed by one with `last`. Any thread."""
        text = ANSWER_LOST[language]
        clause = SpokenClause(turn_id, generation, self._index, text, text, language, captured_ns, last=True)
        rate_hz = self._voices[language].sample_rate_hz
        audio = self._apologies.get(language, _SILENCE)
        if len(audio):
            yield _frame(clause, audio, rate_hz)
        yield _frame(clause, _SILENCE, rate_hz, last=True)

    def handle(self, delta: TextDelta) -> Iterator[SpokenClause]:
        """Clauses completed by `delta`. The turn's last one has `last`; it is empty if nothing was left to say.

        A reply that holds nothing to speak is answered with a short sentence; one without any text is silent.
        Deltas of an older generation or turn, and any after the turn's last, are dropped and counted.
        """
        turn = (delta.generation, delta.turn_id)
        if turn < self._turn or (turn == self._turn and self._closed):
            self.dropped += 1
            return
        if turn != self._turn or self._stream is None:
            self._turn, self._stream, self._index, self._closed = turn, ClauseStream(delta.language), 0, False
            self._silenced = False
        displays = self._stream.push(delta.text)
        if delta.last:
            displays += self._stream.close()
            self._closed = True
        pairs = [(display, spoken(display, delta.language)) for display in displays]
        self._silenced = self._silenced or any(not words for _, words in pairs)
        pairs = [(display, words) for display, words in pairs if words]
        if delta.last and not pairs:
            text = NO_WORDS[delta.language] if self._silenced and self._index == 0 else ""
            pairs = [(text, spoken(text, delta.language))]
        for number, (display, words) in enumerate(pairs, 1):
            yield SpokenClause(
                turn_id=delta.turn_id,
                generation=delta.generation,
                index=self._index,
                display=display,
                spoken=words,
                language=delta.language,
                captured_ns=delta.captured_ns,
                last=delta.last and number == len(pairs),
                task=delta.task,
            )
            self._index += 1

    def speak(self, clause: SpokenClause, cancelled: Callable[[], bool]) -> Iterator[SpeechFrame]:
        """Audio of one clause; after the turn's last, an empty frame with `last` so that no chunk waits for the next.

        `cancelled` is asked before every chunk; once it is true nothing more is yielded. A clause the voice fails on is
        counted and left out, and the turn still closes.
        """
        if clause.generation < self._spoken_generation:
            self.dropped += 1
            return
        self._spoken_generation = clause.generation
        voice = self._voices[clause.language]
        if clause.spoken and not cancelled():
            try:
                for samples in self._chunks(voice, clause, cancelled):
                    if cancelled():
                        return
                    yield _frame(clause, samples, voice.sample_rate_hz)
            except SpeechFailed:
                self.failures += 1
        if clause.last and not cancelled():
            yield _frame(clause, _SILENCE, voice.sample_rate_hz, last=True)

    def _chunks(self, voice: Voice, clause: SpokenClause, cancelled: Callable[[], bool]) -> Iterator[Audio]:
        """The engine runs once per chunk; between them somebody else may have the device, also where a run was ended
        for somebody more urgent.
        """
        chunks = voice.synthesise(clause.spoken)
        while True:
            with self._runs.around(clause.task, cancelled) as mine:
                chunk = next(chunks, None) if mine else None
            if chunk is None:
                return
            if chunk.size:
                yield chunk


def _frame(clause: SpokenClause, samples: Audio, sample_rate_hz: int, *, last: bool = False) -> SpeechFrame:
    return SpeechFrame(
        turn_id=clause.turn_id,
        generation=clause.generation,
        samples=samples,
        sample_rate_hz=sample_rate_hz,
        captured_ns=clause.captured_ns,
        clause_index=clause.index,
        text="" if last else clause.display,
        last=last,
    )
