"""The TTS stage core with a scripted voice: who closes a turn, what is dropped, what is carried through."""

from __future__ import annotations

from collections.abc import Iterator

import numpy as np
import pytest

from models.engines.base import Audio
from models.engines.tts.espeak import SpeechFailed
from pipeline.frames import Language, SpeechFrame, SpokenClause, TextDelta
from pipeline.tts.stage import TtsStage


class ScriptedVoice:
    """Two chunks per clause; the text "fails" makes it fail after the first."""

    sample_rate_hz = 22_050

    def __init__(self) -> None:
        self.chunks = 0

    def synthesise(self, text: str) -> Iterator[Audio]:
        self.chunks += 1
        yield np.full(10, 0.25, dtype=np.float32)
        if "fails" in text:
            raise SpeechFailed("scripted")
        self.chunks += 1
        yield np.full(10, 0.5, dtype=np.float32)

    def warm_up(self) -> None:
        pass


def delta(
    text: str, *, turn_id: int = 1, generation: int = 1, last: bool = False, language: Language = "en"
) -> TextDelta:
    return TextDelta(turn_id, generation, text, language, captured_ns=77, last=last)


def stage() -> TtsStage:
    return TtsStage({"en": ScriptedVoice(), "zh": ScriptedVoice()})


def reply(core: TtsStage, *deltas: TextDelta) -> list[SpokenClause]:
    return [clause for one in deltas for clause in core.handle(one)]


def never() -> bool:
    return False


def test_clauses_carry_turn_generation_capture_time_and_index() -> None:
    clauses = reply(
        stage(),
        delta("The route is clear, go", turn_id=4, generation=9),
        delta(" 200 m.", turn_id=4, generation=9, last=True),
    )
    assert [(c.turn_id, c.generation, c.captured_ns, c.index, c.last) for c in clauses] == [
        (4, 9, 77, 0, False),
        (4, 9, 77, 1, True),
    ]
    assert [(c.display, c.spoken) for c in clauses] == [
        ("The route is clear,", "The route is clear"),
        ("go 200 m.", "go two hundred meters."),
    ]


def test_last_is_set_once_even_when_nothing_is_to_be_said() -> None:
    for texts in (
        ["", ""],
        ["🙂", ""],
        ["<think>all hidden", ""],
        ["Done. ", ""],
        ["Done.", "🙂"],
        ["Done.", ""],
        ["...", "!"],
    ):
        core = stage()
        clauses = reply(core, delta(texts[0]), delta(texts[1], last=True))
        assert [c.last for c in clauses].count(True) == 1
        assert clauses[-1].last
        frames = [frame for clause in clauses for frame in core.speak(clause, never)]
        assert [f.last for f in frames].count(True) == 1
        assert frames[-1].last
        assert frames[-1].samples.shape == (0,)


def test_silent_clauses_are_left_out() -> None:
    clauses = reply(stage(), delta("👍\n---\nTurn left.\n🙂\n", last=True))
    assert [c.spoken for c in clauses] == ["Turn left."]
    assert clauses[0].last


def test_older_generations_and_late_deltas_are_dropped_and_counted() -> None:
    core = stage()
    assert reply(core, delta("Old words that", generation=1)) == []
    new = reply(
        core,
        delta("New. ", generation=2, turn_id=2),
        delta("old. ", generation=1),
        delta("", generation=2, turn_id=2, last=True),
    )
    assert [c.spoken for c in new] == ["New.", ""]
    assert core.dropped == 1
    assert reply(core, delta("after the end.", generation=2, turn_id=2, last=True)) == []
    assert core.dropped == 2
    old = SpokenClause(1, 1, 0, "old", "old", "en", 77)
    assert [f.generation for clause in new for f in core.speak(clause, never)] == [2, 2, 2]
    assert list(core.speak(old, never)) == []
    assert core.dropped == 3


def test_an_unfinished_turn_leaves_nothing_in_the_next() -> None:
    core = stage()
    reply(core, delta("Half a sentence", generation=1), delta("<think>", generation=1))
    clauses = reply(core, delta("Fresh start.", turn_id=2, generation=2, last=True))
    assert [c.display for c in clauses] == ["Fresh start."]
    assert clauses[0].index == 0


def test_cancelling_stops_at_the_next_chunk_and_closes_nothing() -> None:
    core = stage()
    (clause,) = reply(core, delta("One sentence.", last=True))
    heard: list[SpeechFrame] = []
    for frame in core.speak(clause, lambda: len(heard) >= 1):
        heard.append(frame)
    assert len(heard) == 1
    assert not heard[0].last
    assert list(core.speak(clause, lambda: True)) == []


def test_a_failing_voice_is_counted_and_the_turn_still_closes() -> None:
    core = stage()
    clauses = reply(core, delta("It fails here. And goes on.", last=True))
    frames = [frame for clause in clauses for frame in core.speak(clause, never)]
    assert core.failures == 1
    assert [f.samples.size for f in frames] == [10, 10, 10, 0]
    assert frames[-1].last
    assert {f.text for f in frames[:-1]} == {"It fails here.", "And goes on."}


def test_each_language_has_its_voice() -> None:
    voices = {"en": ScriptedVoice(), "zh": ScriptedVoice()}
    core = TtsStage({"en": voices["en"], "zh": voices["zh"]})
    for clause in reply(core, delta("好的，正在导航。", language="zh", last=True)):
        list(core.speak(clause, never))
    assert voices["zh"].chunks > 0
    assert voices["en"].chunks == 0


@pytest.mark.parametrize("text", ["🙂", "---", "...", "[1]", "* \n"])
def test_a_reply_that_normalises_to_nothing_is_a_short_sentence(text: str) -> None:
    assert [c.spoken for c in reply(stage(), delta(text), delta("", last=True))] == ["I have no answer to that."]
    assert [c.spoken for c in reply(stage(), delta(text, language="zh", last=True))] == ["这个我答不上来。"]


def test_a_reply_without_text_or_with_words_gets_no_such_sentence() -> None:
    core = stage()
    assert [c.spoken for c in reply(core, delta("", last=True))] == [""]
    said = reply(core, delta("Done. ", turn_id=2), delta("🙂", turn_id=2), delta("", turn_id=2, last=True))
    assert [c.spoken for c in said if c.spoken] == ["Done."]
