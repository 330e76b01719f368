"""The stream of events: what subscribers are told of turns, that nobody waits for them, and what is kept: nothing."""

from __future__ import annotations

import itertools
import json
import threading
import time
from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import numpy as np
import pytest

from cockpit.headunit import stream
from cockpit.headunit.cabin import Cabin
from cockpit.headunit.forms import EventType, without_words
from cockpit.headunit.stream import MOST_SUBSCRIBERS, NOTES, WAITING, EventStream, TooManySubscribers
from models.errors import InputError
from pipeline.audio.sink import WavSink
from pipeline.frames import AudioFrame, SpeechFrame, Transcript
from tests.support.fake_chain import RecordingSink, utterance
from tests.support.fake_clock import FakeClock
from tests.support.headunit.followed_chain import Chain, Told
from tests.support.waiting import until


@pytest.fixture
def chain() -> Iterator[Chain]:
    made = Chain(RecordingSink())
    yield made
    made.close()


def test_a_spoken_command_is_told_from_the_first_word_to_the_end(chain: Chain) -> None:
    told = chain.follow()
    chain.runtime.listen(utterance())
    until(lambda: told.of("turn"))
    until(lambda: told.of("clause"))
    assert told.all[0]["type"] == "state"
    stages = [event["stage"] for event in told.of("transcript")]
    assert stages[-1] == "final"
    assert set(stages) <= {"partial", "candidate", "final"}
    assert told.of("transcript")[-1]["text"] == "Turn on the rear defroster."
    (calls,) = told.of("calls")
    (call,) = calls["calls"]
    assert call["result"]["status"] == "done"
    (turn,) = told.of("turn")
    assert turn["reply"] == " ".join(event["text"] for event in told.of("clause"))
    assert turn["tool_calls"] == calls["calls"]
    order = [event["type"] for event in told.all if event["type"] in ("calls", "turn")]
    assert order == ["calls", "turn"], "a call is told when it is made"
    until(lambda: told.of("level"))
    assert all(-100 <= event["rms_db"] <= event["peak_db"] <= 0 for event in told.of("level"))


def test_a_client_that_may_not_know_words_is_told_everything_but_them(chain: Chain) -> None:
    told = chain.follow(words=False)
    chain.cabin.ask("Navigate to the airport.", "en")
    until(lambda: told.of("turn"))
    until(lambda: told.of("clause"))
    text = json.dumps(told.all).lower()
    for word in ("airport", "navigate", "destination"):
        assert word not in text
    assert told.of("transcript")[0]["text"] is None
    assert told.of("turn")[0]["ms"]
    assert told.of("calls")[0]["calls"] == [{"result": {"status": "done"}}]


def test_without_words_every_text_of_every_event_is_gone() -> None:
    event = {"type": "turn", "transcript": "a", "reply": "b", "tool_calls": [
        {"name": "c", "arguments": {"d": 1}, "result": {"status": "done", "path": "e", "value": "f", "reason": None}}
    ]}  # fmt: skip
    assert without_words(event) == {
        "type": "turn", "transcript": None, "reply": None, "tool_calls": [{"result": {"status": "done"}}]
    }  # fmt: skip


def test_a_clause_is_told_when_it_sounds_and_not_when_it_is_cut(tmp_path: Path) -> None:
    """The second clause of a reply is handed to the speaker long before it sounds."""
    chain = Chain(WavSink(tmp_path, clock=FakeClock()), reply_s=10.0)
    try:
        told = chain.follow()
        now_ns = time.monotonic_ns()

        def clause(index: int, generation: int) -> SpeechFrame:
            return SpeechFrame(1, generation, np.zeros(160, np.float32), 16_000, 0, index, f"clause {index}")

        chain.events.sounds(clause(0, 0), now_ns)
        chain.events.sounds(clause(1, 0), now_ns + 600_000_000)
        until(lambda: told.of("clause"))
        assert [event["index"] for event in told.of("clause")] == [0]
        chain.runtime.cancel()
        chain.events.sounds(clause(2, chain.runtime.parts.generations.current), now_ns + 700_000_000)
        until(lambda: len(told.of("clause")) > 1)
        assert [event["index"] for event in told.of("clause")] == [0, 2], "what barge-in has cut is not told"
    finally:
        chain.close()


def test_the_state_is_told_as_it_changes(tmp_path: Path) -> None:
    chain = Chain(WavSink(tmp_path, clock=FakeClock()), reply_s=10.0)
    try:
        told = chain.follow()
        assert told.of("state")[0]["state"] == "idle"
        chain.cabin.ask("Turn on the rear defroster.", "en")
        until(lambda: told.of("state")[-1]["state"] == "speaking")
        chain.runtime.cancel()
        until(lambda: told.of("state")[-1]["state"] == "idle")
        chain.service.begin("no_speaker", "unplugged")
        until(lambda: told.of("state")[-1]["state"] == "degraded")
        assert told.of("state")[-1]["modes"] == {"no_speaker": "unplugged"}
        chain.runtime.by_hand.press()
        chain.runtime.edges.frames.put(AudioFrame(np.zeros(512, np.float32), 0, 0))
        until(lambda: told.of("state")[-1]["talking"])
        assert told.of("state")[-1]["state"] == "listening"
    finally:
        chain.close()


def test_a_fault_of_a_stage_is_told_by_its_kind_alone() -> None:
    def broken(_samples: Any) -> str:
        raise RuntimeError("heard: a secret")

    chain = Chain(RecordingSink(), broken)
    try:
        told = chain.follow()
        chain.runtime.listen(utterance())
        until(lambda: told.of("error"))
        assert told.of("error")[0]["stage"] == "recognise"
        assert told.of("error")[0]["kind"] == "RuntimeError"
        assert "secret" not in json.dumps(told.all)
    finally:
        chain.close()


def note(text: str) -> Transcript:
    return Transcript(1, 0, 0, "partial", text, "en", 0.0, 0)


def test_a_subscriber_that_reads_nothing_loses_the_oldest_and_is_told_how_many() -> None:
    events = EventStream()
    events.watch(dict, lambda frame: False, bool)
    slow, quick = Told(events), Told(events)
    for number in range(WAITING + 50):
        events.heard(note(str(number)))
        until(lambda number=number: len(quick.of("transcript")) == number + 1)  # type: ignore[misc]
    kept = slow.of("transcript")
    (dropped,) = slow.of("dropped")
    assert slow.all[0] is dropped, "told before what is left"
    assert kept[-1]["text"] == str(WAITING + 49)
    assert dropped["count"] + len(slow.all) - 1 == WAITING + 50 + len(quick.of("state"))
    assert events.counts.dropped == dropped["count"]
    assert not quick.of("dropped")
    events.close()
    assert slow.subscription.ended


def test_a_stage_never_waits_even_while_the_thread_hangs() -> None:
    """A subscriber whose client blocks everything holds up the stream's thread, and no stage."""
    events, going = EventStream(), threading.Event()
    events.watch(dict, lambda frame: False, bool)
    asked = threading.Event()

    def hangs() -> None:
        if threading.current_thread().name == "events":
            asked.set()
            going.wait()

    subscription = events.subscribe(words=True, wake=hangs)
    events.heard(note("first"))
    assert asked.wait(60)
    for number in range(NOTES + 10):
        events.heard(note(str(number)))  # returns: the test would hang here
    going.set()
    until(lambda: events.counts.dropped)
    told: list[dict[str, Any]] = []

    def all_told() -> bool:
        told.extend(json.loads(event) for event in subscription.take())
        return any(event.get("text") == str(NOTES - 1) for event in told)

    until(all_told)
    lost = sum(event["count"] for event in told if event["type"] == "dropped")
    assert lost >= 10
    assert lost + sum(event["type"] != "dropped" for event in told) == NOTES + 12, "all of them, and the state"
    events.close()


def test_nothing_is_kept_for_whoever_comes_late(chain: Chain) -> None:
    first = chain.follow()
    before = chain.cabin.ask("Turn on the rear defroster.", "en")
    until(lambda: first.of("turn"))
    chain.events.unsubscribe(first.subscription)
    between = chain.cabin.ask("Turn on the rear defroster.", "en")
    assert chain.runtime.wait_idle()
    assert not chain.events._notes
    late = chain.follow()
    chain.runtime.listen(utterance())
    until(lambda: late.of("turn"))
    assert {event["turn_id"] for event in late.all if "turn_id" in event}.isdisjoint({before, between})


def test_so_many_may_follow_and_no_more(chain: Chain) -> None:
    followers = [chain.follow() for _ in range(MOST_SUBSCRIBERS)]
    with pytest.raises(TooManySubscribers):
        chain.follow()
    chain.events.unsubscribe(followers[0].subscription)
    chain.follow()


def test_levels_cost_nothing_where_nobody_wants_them(chain: Chain) -> None:
    wanted: tuple[EventType, ...] = ("state",)
    chain.events.subscribe(wanted, words=True, wake=lambda: None)
    chain.runtime.listen(utterance())
    assert not chain.events._levels


def test_by_hand_what_is_not_here_is_refused(chain: Chain) -> None:
    without = Cabin(chain.runtime, chain.service, ("en", "zh"), itertools.count(1).__next__)
    acts: list[Callable[[], None]] = [
        lambda: without.talk(True), lambda: without.mute(True), lambda: without.set_volume(0.5)
    ]  # fmt: skip
    for act in acts:
        with pytest.raises(InputError, match="--no-voice"):
            act()
    with pytest.raises(InputError, match="hears en, zh, not de"):
        chain.cabin.use_language("de")
    chain.service.begin("no_microphone", "unplugged")
    with pytest.raises(InputError, match="nobody is heard: unplugged"):
        chain.cabin.talk(True)
    chain.service.end("no_microphone")
    chain.runtime.by_hand.muted = True
    with pytest.raises(InputError, match="unmute"):
        chain.cabin.talk(True)


def test_a_language_by_hand_is_the_one_that_is_heard(chain: Chain) -> None:
    heard: list[tuple[str, ...]] = []
    ear = chain.runtime.parts.asr._recogniser
    transcribe = ear.transcribe

    def spy(samples: Any, **kept: Any) -> Any:
        heard.append(tuple(kept["languages"]))
        return transcribe(samples, **kept)

    ear.transcribe = spy  # type: ignore[method-assign]
    chain.cabin.use_language("en")
    assert chain.cabin.state()["language"] == "en"
    chain.runtime.listen(utterance())
    assert chain.runtime.wait_idle()
    assert set(heard) == {("en",)}
    chain.cabin.use_language("auto")
    assert chain.cabin.state()["language"] == "auto"
    assert stream.LOOK_S <= 0.1
