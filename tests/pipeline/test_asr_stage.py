"""The ASR stage core with an engine that counts its calls."""

from __future__ import annotations

from collections.abc import Callable, Sequence
from dataclasses import replace

import numpy as np

from models.engines.base import Audio, Hypothesis, never_cancelled
from pipeline.asr import AsrStage
from pipeline.frames import Utterance
from pipeline.turns import Generations

UTTERANCE = Utterance(
    turn_id=1,
    generation=0,
    revision=3,
    stage="candidate",
    samples=np.zeros(32_000, np.float32),
    first_sample=8_000,
    speech_end_sample=36_800,
    captured_ns=5_000_000_000,
)


class CountingEngine:
    """Answers at once; `during` is called where a real engine would be decoding."""

    def __init__(self, during: Callable[[], None] = lambda: None) -> None:
        self.calls = 0
        self.hotwords: Sequence[str] = ()
        self._during = during

    def transcribe(
        self,
        samples: Audio,
        *,
        languages: Sequence[str],
        hotwords: Sequence[str] = (),
        cancelled: Callable[[], bool] = never_cancelled,
    ) -> Hypothesis:
        self.calls += 1
        self.hotwords = hotwords
        self._during()
        return Hypothesis("" if cancelled() else f"heard {samples.size}", languages[0], -0.1, 0.0)

    def warm_up(self) -> None:
        return


def never() -> bool:
    return False


def test_final_takes_over_its_candidate() -> None:
    engine, generations = CountingEngine(), Generations()
    stage = AsrStage(engine, languages=("en", "zh"), generations=generations)
    candidate = stage.handle(UTTERANCE, superseded=never)
    generation = generations.bump()
    final = stage.handle(replace(UTTERANCE, stage="final", generation=generation), superseded=never)
    assert candidate is not None
    assert final == replace(candidate, stage="final", generation=generation)
    assert engine.calls == 1
    assert stage.counts.reused == 1


def test_another_revision_or_turn_is_recognised_anew() -> None:
    engine = CountingEngine()
    stage = AsrStage(engine, languages=("en",), generations=Generations())
    for utterance in (UTTERANCE, replace(UTTERANCE, revision=4), replace(UTTERANCE, turn_id=2)):
        transcript = stage.handle(utterance, superseded=never)
        assert transcript is not None
        assert (transcript.turn_id, transcript.revision) == (utterance.turn_id, utterance.revision)
    assert engine.calls == 3


def test_older_generation_is_dropped() -> None:
    engine, generations = CountingEngine(), Generations()
    stage = AsrStage(engine, languages=("en",), generations=generations)
    generations.bump()
    assert stage.handle(UTTERANCE, superseded=never) is None
    assert (engine.calls, stage.counts.stale) == (0, 1)


def test_partial_yields_to_newer_work_and_candidate_does_not() -> None:
    engine = CountingEngine()
    stage = AsrStage(engine, languages=("en",), generations=Generations())
    assert stage.handle(replace(UTTERANCE, stage="partial"), superseded=lambda: True) is None
    assert (engine.calls, stage.counts.given_up) == (0, 1)
    assert stage.handle(UTTERANCE, superseded=lambda: True) is not None


def test_partial_is_given_up_while_it_runs() -> None:
    waiting: list[int] = []
    engine = CountingEngine(during=lambda: waiting.append(1))
    stage = AsrStage(engine, languages=("en",), generations=Generations())
    partial = replace(UTTERANCE, stage="partial")
    assert stage.handle(partial, superseded=lambda: bool(waiting)) is None
    assert engine.calls == 1
    transcript = stage.handle(UTTERANCE, superseded=never)
    assert transcript is not None
    assert transcript.text == "heard 32000", "a given-up run must not be taken for the utterance's text"


def test_barge_in_while_it_runs_drops_the_result() -> None:
    generations = Generations()
    stage = AsrStage(
        CountingEngine(during=lambda: void(generations.bump())), languages=("en",), generations=generations
    )
    assert stage.handle(UTTERANCE, superseded=never) is None


def void(_: object) -> None:
    return


def test_times_come_from_capture_and_positions() -> None:
    ticks = iter((1_000_000, 43_000_000))
    stage = AsrStage(CountingEngine(), languages=("zh",), generations=Generations(), clock_ns=lambda: next(ticks))
    transcript = stage.handle(UTTERANCE, superseded=never)
    assert transcript is not None
    assert transcript.asr_ms == 42.0
    assert transcript.captured_ns == UTTERANCE.captured_ns


def test_hot_words_of_every_allowed_language_are_handed_on() -> None:
    engine = CountingEngine()
    words = {"en": ["sunroof"], "zh": ["天窗"]}
    stage = AsrStage(engine, languages=("en", "zh"), generations=Generations(), hotwords=words.__getitem__)
    stage.handle(UTTERANCE, superseded=never)
    assert engine.hotwords == ("sunroof", "天窗")
