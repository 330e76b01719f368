"""Prompts of guidance through the real sinks on a fake clock: what is heard, in which order, and what is dropped."""

from __future__ import annotations

import tracemalloc
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from models.engines.base import Audio
from models.engines.tts.espeak import EspeakVoice, EspeakWorker, SpeechFailed
from models.engines.tts.piper import PiperVoice
from models.engines.whisper.engine import WhisperEngine
from models.errors import CockpitError, InputError
from pipeline.audio.portaudio import ReplyRing
from pipeline.audio.sink import WavSink
from pipeline.frames import GuidancePrompt, Language, OverReply
from pipeline.guidance import MOST_WAITING, ClauseCache, GuidanceEnded, GuidanceStage, PromptOutdated
from tests.support.sink_rigs import RATE_HZ, SpeakerRig, WavRig, clause

PROMPT, ZH = -0.5, -0.6
BACKCHANNEL_MS = 640


class Voice:
    """Three chunks of 100 ms."""

    sample_rate_hz = RATE_HZ

    def __init__(self, loudness: float = PROMPT) -> None:
        self.loudness = loudness
        self.asked: list[str] = []
        self.fails_after = 99

    def synthesise(self, text: str) -> Iterator[Audio]:
        self.asked.append(text)
        for number in range(3):
            if number >= self.fails_after:
                raise SpeechFailed("the voice died")
            yield np.full(RATE_HZ // 10, self.loudness, np.float32)

    def warm_up(self) -> None: ...


class Guided:
    """A stage on a rig, stepped by the test."""

    def __init__(self, rig: Any, over_reply: OverReply = "interrupt", **options: Any) -> None:
        self.rig = rig
        self.sink = rig.sink
        self.voice = Voice()
        voices: dict[Language, Any] = {"en": self.voice, "zh": Voice(ZH)}
        options = {"pause": rig.advance, "clock": rig.clock} | options
        self.stage = GuidanceStage(voices, over_reply=over_reply, **options)

    def prompt(self, text: str = "Turn left.", manoeuvre: str = "", within_ms: float | None = None) -> GuidancePrompt:
        deadline_ns = None if within_ms is None else self.rig.clock.ns + round(within_ms * 1e6)
        language: Language = "zh" if text > "\u4e00" else "en"
        return GuidancePrompt(text, language, self.rig.clock.ns, manoeuvre, deadline_ns)

    def speak(self, *arguments: Any, **options: Any) -> None:
        self.stage.submit(self.prompt(*arguments, **options))
        self.stage.step(self.sink, 0.0)


@pytest.fixture(params=["wav", "speaker"])
def rig(request: pytest.FixtureRequest, tmp_path: Path, monkeypatch: pytest.MonkeyPatch) -> Any:
    return WavRig(tmp_path) if request.param == "wav" else SpeakerRig(monkeypatch)


def reply(rig: Any, *lengths_ms: int) -> None:
    for index, length_ms in enumerate(lengths_ms):
        rig.sink.play(clause(index, length_ms, last=index == len(lengths_ms) - 1))


# --- over a reply ----------------------------------------------------------------------------------------------------
def test_a_prompt_interrupts_a_reply_which_goes_on_with_the_clause_that_was_cut(rig: Any) -> None:
    guided = Guided(rig)
    reply(rig, 1000, 1000)
    rig.advance(1.3)
    guided.speak()
    assert guided.sink.prompting()
    rig.advance(0.29)
    assert guided.sink.speaking()
    rig.advance(3.0)
    assert not guided.sink.prompting()
    assert not guided.sink.speaking()
    assert rig.heard() == [(0.1, 1000), (0.2, 300), (PROMPT, 300), (0.2, 1000)]
    (played,) = guided.sink.played()
    assert played.text == "clause 0 clause 1"
    assert played.complete
    assert guided.stage.counts().latencies_ms == (0.0,)


def test_a_reply_goes_on_quietly_under_a_prompt_that_ducks_it(rig: Any) -> None:
    guided = Guided(rig, "duck")
    reply(rig, 1000, 1000)
    rig.advance(1.3)
    guided.speak()
    rig.advance(3.0)
    under = round(0.2 * 10 ** (-14 / 20) + PROMPT, 2)
    assert rig.heard() == [(0.1, 1000), (0.2, 300), (under, 300), (0.2, 400)]


def test_a_queued_prompt_waits_for_the_end_of_the_clause(rig: Any) -> None:
    held: list[bool] = []
    holding = False

    @contextmanager
    def lease(_give_up: Callable[[], bool]) -> Iterator[None]:
        nonlocal holding
        holding = True
        yield
        holding = False

    def pause(seconds: float) -> None:
        held.append(holding)
        rig.advance(max(seconds, 0.01))

    guided = Guided(rig, "queue", lease=lease, pause=pause)
    reply(rig, 1000, 1000)
    rig.advance(0.4)
    guided.speak()
    rig.advance(3.0)
    assert rig.heard() == [(0.1, 1000), (PROMPT, 300), (0.2, 1000)]
    assert held, "the prompt did not wait"
    assert not any(held), "a lease was held while nothing was computed"
    assert 550 <= guided.stage.counts().latencies_ms[0] <= 650


def test_a_queued_prompt_sounds_at_the_end_of_a_reply(rig: Any) -> None:
    guided = Guided(rig, "queue")
    reply(rig, 500)
    rig.advance(0.1)
    guided.speak()
    rig.advance(2.0)
    in_the_replys_file = [(0.1, 500)]
    assert rig.heard() == in_the_replys_file + [(PROMPT, 300)] * isinstance(rig, SpeakerRig)


def test_a_clause_that_was_still_being_made_goes_on_from_its_beginning(rig: Any) -> None:
    guided = Guided(rig)
    guided.sink.play(clause(0, 500))
    rig.advance(0.2)
    guided.speak()
    guided.sink.play(clause(0, 500))
    guided.sink.play(clause(1, 100, last=True))
    rig.advance(3.0)
    assert rig.heard() == [(0.1, 200), (PROMPT, 300), (0.1, 1000), (0.2, 100)]


def test_a_reply_that_begins_during_a_prompt_waits_for_its_end(rig: Any) -> None:
    guided = Guided(rig)
    guided.speak()
    rig.advance(0.1)
    begins_ns = guided.sink.play(clause(0, 500, last=True))
    assert guided.sink.speaking()
    assert isinstance(rig, WavRig) or begins_ns == rig.clock.ns + 200_000_000
    rig.advance(2.0)
    expected = [(0.1, 500)] if isinstance(rig, WavRig) else [(PROMPT, 300), (0.1, 500)]
    assert rig.heard() == expected
    assert guided.sink.played()[-1].first_out_ns == rig.clock.ns - 1_800_000_000


def test_a_reply_that_begins_under_a_ducking_prompt_is_quiet_until_its_end(rig: Any) -> None:
    guided = Guided(rig, "duck")
    guided.speak()
    rig.advance(0.1)
    guided.sink.play(clause(0, 500, last=True))
    rig.advance(2.0)
    under = round(0.1 * 0.2 + PROMPT, 2)
    heard = [(under, 200), (0.1, 300)]
    assert rig.heard() == (heard if isinstance(rig, WavRig) else [(PROMPT, 100), *heard])


def test_two_prompts_in_a_row_interrupt_a_reply_once(rig: Any) -> None:
    guided = Guided(rig)
    reply(rig, 1000)
    rig.advance(0.3)
    for text in ("Turn left.", "Then turn right."):
        guided.stage.submit(guided.prompt(text))
    guided.stage.step(guided.sink, 0.0)
    guided.stage.step(guided.sink, 0.0)
    rig.advance(3.0)
    assert rig.heard() == [(0.1, 300), (PROMPT, 600), (0.1, 1000)]


# --- without one -----------------------------------------------------------------------------------------------------
@pytest.mark.parametrize("over_reply", ["interrupt", "duck", "queue"])
def test_a_prompt_in_silence_is_heard_at_once(rig: Any, over_reply: OverReply) -> None:
    guided = Guided(rig, over_reply)
    guided.speak()
    rig.advance(1.0)
    assert rig.heard() == [(PROMPT, 300)]
    assert guided.sink.played() == ()
    assert not guided.sink.speaking()
    assert guided.stage.counts().spoken == 1


def test_mandarin_is_spoken_by_its_own_voice(rig: Any) -> None:
    guided = Guided(rig)
    guided.speak("现在左转")
    rig.advance(1.0)
    assert rig.heard() == [(ZH, 300)]


def test_a_voice_that_dies_within_a_prompt_does_not_keep_the_reply_waiting(rig: Any) -> None:
    guided = Guided(rig)
    guided.voice.fails_after = 1
    reply(rig, 500)
    rig.advance(0.2)
    guided.speak()
    rig.advance(3.0)
    assert rig.heard() == [(0.1, 200), (PROMPT, 100), (0.1, 500)]
    assert guided.stage.counts().failed == 1


# --- dropped ---------------------------------------------------------------------------------------------------------
def test_an_outdated_prompt_is_dropped_and_counted(rig: Any) -> None:
    guided = Guided(rig)
    guided.stage.submit(guided.prompt(within_ms=100))
    rig.advance(0.2)
    guided.stage.step(guided.sink, 0.0)
    with pytest.raises(PromptOutdated):
        guided.stage.submit(guided.prompt(within_ms=-1))
    rig.advance(1.0)
    assert rig.heard() == []
    counts = guided.stage.counts()
    assert (counts.accepted, counts.outdated, counts.spoken) == (1, 2, 0)


def test_a_deadline_that_passes_while_the_clause_goes_on_drops_the_prompt(rig: Any) -> None:
    guided = Guided(rig, "queue")
    reply(rig, 1000)
    rig.advance(0.1)
    guided.speak(within_ms=300)
    rig.advance(3.0)
    assert rig.heard() == [(0.1, 1000)]
    assert guided.stage.counts().outdated == 1


def test_a_newer_prompt_for_the_same_manoeuvre_takes_the_place_of_one_that_waits(rig: Any) -> None:
    guided = Guided(rig)
    for text in ("In 200 metres turn left.", "Now turn left."):
        guided.stage.submit(guided.prompt(text, "exit 12"))
    guided.stage.submit(guided.prompt("Then turn right.", "exit 13"))
    guided.stage.step(guided.sink, 0.0)
    guided.stage.step(guided.sink, 0.0)
    assert guided.voice.asked == ["Now turn left.", "Then turn right."]
    counts = guided.stage.counts()
    assert (counts.accepted, counts.superseded, counts.spoken) == (3, 1, 2)


def test_a_newer_prompt_also_replaces_one_that_waits_for_the_clause(rig: Any) -> None:
    newer: list[GuidancePrompt] = []

    def pause(seconds: float) -> None:
        rig.advance(max(seconds, 0.01))
        while newer:
            guided.stage.submit(newer.pop())

    guided = Guided(rig, "queue", pause=pause)
    reply(rig, 1000)
    rig.advance(0.1)
    newer.append(guided.prompt("现在左转", "exit 12"))
    guided.speak("In 200 metres turn left.", "exit 12")
    guided.stage.step(guided.sink, 0.0)
    rig.advance(3.0)
    assert PROMPT not in [value for value, _ in rig.heard()]
    assert (guided.stage.counts().superseded, guided.stage.counts().spoken) == (1, 1)


def test_the_oldest_gives_way_when_too_many_wait(rig: Any) -> None:
    guided = Guided(rig)
    for number in range(MOST_WAITING + 2):
        guided.stage.submit(guided.prompt(f"Take exit {number}."))
    assert guided.stage.counts().overflowed == 2
    guided.stage.step(guided.sink, 0.0)
    assert guided.voice.asked == ["Take exit two."]


def test_what_the_arbiter_refuses_is_counted_and_the_next_is_spoken(rig: Any) -> None:
    refusals = [CockpitError("navigation_task: paused")]

    @contextmanager
    def lease(_give_up: Callable[[], bool]) -> Iterator[None]:
        if refusals:
            raise refusals.pop()
        yield

    guided = Guided(rig, lease=lease)
    guided.speak()
    guided.speak()
    assert (guided.stage.counts().refused, guided.stage.counts().spoken) == (1, 1)


@pytest.mark.parametrize("text", ["", " ", "...", "🙂"])
def test_nothing_to_say_is_refused(rig: Any, text: str) -> None:
    with pytest.raises(InputError, match="nothing that can be spoken"):
        Guided(rig).stage.submit(GuidancePrompt(text, "en", 0))


def test_without_voices_and_after_the_end_no_prompt_is_taken(rig: Any) -> None:
    with pytest.raises(InputError, match="no voice for 'en'"):
        GuidanceStage({}).submit(GuidancePrompt("Turn left.", "en", 0))
    guided = Guided(rig)
    guided.stage.submit(guided.prompt())
    guided.stage.close()
    assert guided.stage.counts().cut_off == 1
    assert not guided.stage.step(guided.sink, 0.0)
    with pytest.raises(GuidanceEnded):
        guided.stage.submit(guided.prompt())


@pytest.mark.parametrize(
    ("text", "clauses"),
    [
        ("In 200 metres turn left onto Mill Street", ["In two hundred metres,", "turn left onto Mill Street"]),
        ("After 1.5 km keep right.", ["After one point five kilometers,", "keep right."]),
        ("In half a mile turn left.", ["In half a mile turn left."]),
        ("In the car park turn left.", ["In the car park turn left."]),
        ("In 200 metres.", ["In two hundred metres."]),
        ("Turn left in 200 metres.", ["Turn left in two hundred metres."]),
    ],
)
def test_a_distance_at_the_beginning_is_a_clause_of_its_own(rig: Any, text: str, clauses: list[str]) -> None:
    guided = Guided(rig)
    guided.speak(text)
    assert guided.voice.asked == clauses


def test_a_mandarin_distance_too(rig: Any) -> None:
    guided = Guided(rig)
    for text in ("前方200米左转", "前方200米右转"):
        guided.speak(text)
        rig.advance(5.0)
    assert guided.stage.counts().cached_clauses == 3, "the distance is kept once"


# --- the driver ------------------------------------------------------------------------------------------------------
def test_the_driver_stops_a_prompt_which_is_not_repeated_and_the_reply_goes_on(rig: Any) -> None:
    guided = Guided(rig)
    reply(rig, 500)
    rig.advance(0.2)
    guided.speak(within_ms=10_000)
    guided.stage.attend(guided.sink, 0, BACKCHANNEL_MS)
    guided.stage.attend(guided.sink, BACKCHANNEL_MS, BACKCHANNEL_MS)  # as long as a backchannel may be
    rig.advance(0.1)
    assert guided.sink.prompting()
    guided.stage.attend(guided.sink, BACKCHANNEL_MS + 32, BACKCHANNEL_MS)
    assert not guided.sink.prompting() or isinstance(rig, SpeakerRig)
    rig.advance(3.0)
    assert not guided.sink.prompting()
    assert rig.heard() == [(0.1, 200), (PROMPT, 100), (0.1, 500)]
    guided.speak()
    assert guided.sink.prompting(), "the next prompt is spoken"


def test_speech_that_began_before_a_prompt_does_not_stop_it(rig: Any) -> None:
    guided = Guided(rig)
    guided.stage.attend(guided.sink, 400, BACKCHANNEL_MS)
    guided.speak()
    for speech_ms in (700, 900):
        guided.stage.attend(guided.sink, speech_ms, BACKCHANNEL_MS)
    assert guided.sink.prompting()
    guided.stage.attend(guided.sink, 0, BACKCHANNEL_MS)
    guided.stage.attend(guided.sink, 700, BACKCHANNEL_MS)
    rig.advance(0.01)
    assert not guided.sink.prompting()


def test_barge_in_against_the_reply_leaves_the_prompt_alone(rig: Any) -> None:
    guided = Guided(rig)
    reply(rig, 500)
    rig.advance(0.2)
    guided.speak()
    rig.advance(0.1)
    guided.sink.stop(1)
    assert guided.sink.prompting()
    assert not guided.sink.speaking()
    rig.advance(2.0)
    if isinstance(rig, SpeakerRig):
        assert rig.heard() == [(0.1, 200), (PROMPT, 300)]
    (played,) = guided.sink.played()
    assert (played.text, played.complete) == ("clause 0", False)


# --- memory ----------------------------------------------------------------------------------------------------------
def test_a_clause_that_was_spoken_before_is_not_made_again(rig: Any) -> None:
    guided = Guided(rig)
    for _ in range(2):
        guided.speak("Turn left.")
        rig.advance(1.0)
    assert guided.voice.asked == ["Turn left."]
    assert guided.stage.counts().spoken == 2


def test_the_cache_is_bounded_in_bytes_and_drops_what_was_unused_longest() -> None:
    cache = ClauseCache(1000)
    tone = np.zeros(100, np.float32)
    for words in ("a", "b", "a", "c"):
        if cache.get("en", words) is None:
            cache.put("en", words, (tone,))
    assert [cache.get("en", words) is not None for words in ("a", "b", "c")] == [True, False, True]
    cache.put("zh", "d", (np.zeros(1000, np.float32),))
    assert len(cache) == 2


@pytest.mark.parametrize("over_reply", ["interrupt", "duck", "queue"])
def test_the_speakers_callback_allocates_no_samples(monkeypatch: pytest.MonkeyPatch, over_reply: OverReply) -> None:
    rig = SpeakerRig(monkeypatch)
    guided = Guided(rig, over_reply)
    reply(rig, 4000)
    guided.stage.submit(guided.prompt())
    if over_reply != "queue":
        rig.advance(0.1)
    guided.stage.step(guided.sink, 0.0)
    block = np.zeros((RATE_HZ, 1), np.float32)
    tracemalloc.start()
    try:
        before = tracemalloc.get_traced_memory()[0]
        for _ in range(3):
            rig.sink._emit(block, len(block), None, None)
        peak = tracemalloc.get_traced_memory()[1] - before
    finally:
        tracemalloc.stop()
    assert peak < block.nbytes / 8


def test_the_ring_keeps_the_clause_that_may_be_spoken_again() -> None:
    ring = ReplyRing(100)
    out = np.zeros(40, np.float32)
    ring.write(np.arange(60, dtype=np.float32))
    ring.read_into(out)
    ring.kept = 10
    assert ring.write(np.arange(60, 200, dtype=np.float32)) == 50
    ring.rewind_to(10)
    assert ring.furthest == 40
    ring.read_into(out)
    assert out.tolist() == [float(value) for value in range(10, 50)]
    ring.kept = 0
    ring.read_into(out)
    assert ring.write(np.zeros(100, np.float32)) == 30, "no more than half of the ring is kept"


# --- the real voices -------------------------------------------------------------------------------------------------
def test_the_real_voices_speak_prompts(model_dir: Callable[[str], Path], tmp_path: Path) -> None:
    espeak = EspeakWorker.load(model_dir("espeak-ng"))
    still = {"noise_scale": 0.0, "noise_w": 0.0}  # the voice's chance may blur a word
    english = PiperVoice.load(model_dir("piper-en-joe"), phonemizer=espeak, scales=still)
    stage = GuidanceStage({"en": english, "zh": EspeakVoice(espeak, "cmn")})
    sink = WavSink(tmp_path, pace="fast")
    try:
        for text, language in (("In 200 metres turn left onto Station Road.", "en"), ("前方200米左转。", "zh")):
            stage.submit(GuidancePrompt(text, language, 0))  # type: ignore[arg-type]
            stage.step(sink, 0.0)
    finally:
        espeak.close()
    assert stage.counts().spoken == 2
    samples, rate_hz = soundfile.read(tmp_path / "guidance-0001.wav", dtype="float32")
    positions = np.arange(0, len(samples) - 1, rate_hz / 16_000)
    heard = np.interp(positions, np.arange(len(samples)), samples).astype(np.float32)
    said = WhisperEngine.load(model_dir("whisper-base")).transcribe(heard, languages=("en",)).text.lower()
    assert "left" in said
    assert "200" in said or "two hundred" in said
    assert soundfile.info(tmp_path / "guidance-0002.wav").duration > 0.8
