"""Utterances to transcripts, without a thread of its own.

"candidate" is recognised at once, in the trailing silence; the "final" that confirms it takes over its text and costs
nothing. A "partial" is only worth a run while nothing newer waits, and is given up as soon as something does.
"""

from __future__ import annotations

import time
from collections.abc import Callable, Sequence
from dataclasses import dataclass, replace
from typing import Protocol

from models.engines.base import Hypothesis, SpeechRecognizer
from pipeline.frames import Language, Transcript, Utterance


class StaleCheck(Protocol):
    """Where a stage asks which generation is over (pipeline.turns.Generations)."""

    def is_stale(self, generation: int) -> bool: ...


@dataclass(slots=True)
class AsrCounts:
    """What the stage did with its utterances so far."""

    recognised: int = 0
    reused: int = 0
    stale: int = 0
    given_up: int = 0


class AsrStage:
    """The stage core. One owner; `handle` takes utterances in the order the endpointer sent them.

    `hotwords`: the phrases to favour in a language, or None. `counts`: recognised, reused, dropped as stale, given up.
    """

    def __init__(
        self,
        recogniser: SpeechRecognizer,
        *,
        languages: Sequence[Language],
        generations: StaleCheck,
        hotwords: Callable[[str], Sequence[str]] | None = None,
        clock_ns: Callable[[], int] = time.perf_counter_ns,
    ) -> None:
        self._recogniser = recogniser
        self._languages = tuple(languages)
        self._generations = generations
        self._hotwords = tuple(word for name in languages for word in hotwords(name)) if hotwords else ()
        self._clock_ns = clock_ns
        self._last: Transcript | None = None
        self.counts = AsrCounts()

    @property
    def languages(self) -> tuple[Language, ...]:
        """What may be heard now."""
        return self._languages

    def use(self, languages: Sequence[Language]) -> None:
        """From the next run on only these may be heard: some of those it was made with. Any thread."""
        self._languages = tuple(languages)

    def handle(self, utterance: Utterance, *, superseded: Callable[[], bool]) -> Transcript | None:
        """The transcript of `utterance`, or None when nobody needs it: its generation is over, or it is a partial and
        `superseded()` says that something newer waits (asked before and while the engine runs).

        `asr_ms` of a final that takes over its candidate's text is what the candidate cost.
        """
        if self._generations.is_stale(utterance.generation):
            self.counts.stale += 1
            return None
        known = self._last
        if known is not None and (known.turn_id, known.revision) == (utterance.turn_id, utterance.revision):
            self.counts.reused += 1
            return replace(known, stage=utterance.stage, generation=utterance.generation, reopened=utterance.reopened)
        given_up = False

        def cancelled() -> bool:
            nonlocal given_up
            outdated = self._generations.is_stale(utterance.generation)
            given_up = given_up or outdated or (utterance.stage == "partial" and superseded())
            return given_up

        start_ns = self._clock_ns()
        if not cancelled():
            hypothesis = self._recogniser.transcribe(
                utterance.samples, languages=self._languages, hotwords=self._hotwords, cancelled=cancelled
            )
        if given_up:
            self.counts.given_up += 1
            return None
        self.counts.recognised += 1
        self._last = _transcript(utterance, hypothesis, self._language(hypothesis), self._clock_ns() - start_ns)
        return self._last

    def _language(self, hypothesis: Hypothesis) -> Language:
        """The hypothesis' language as one of the stage's own. Raises ValueError for an engine that breaks its word."""
        for name in self._languages:
            if name == hypothesis.language:
                return name
        raise ValueError(f"the recogniser answered in {hypothesis.language!r}; allowed are {self._languages}")


def _transcript(utterance: Utterance, hypothesis: Hypothesis, language: Language, took_ns: int) -> Transcript:
    return Transcript(
        turn_id=utterance.turn_id,
        generation=utterance.generation,
        revision=utterance.revision,
        stage=utterance.stage,
        text=hypothesis.text,
        language=language,
        avg_logprob=hypothesis.avg_logprob,
        captured_ns=utterance.captured_ns,
        reopened=utterance.reopened,
        asr_ms=took_ns / 1e6,
        unclear=hypothesis.unclear,
        number_margin=hypothesis.number_margin,
    )
