"""The whole chain, real models end to end, on recorded commands."""

from __future__ import annotations

import gc
import sys
import threading
import time
from collections.abc import Callable, Iterator
from dataclasses import replace
from pathlib import Path

import numpy as np
import pytest
import soxr
from ruamel.yaml import YAML

from cockpit.assemble import Assembly, assemble
from cockpit.profile.load import load_profile
from cockpit.runtime import SWITCH_S, Edges, NullSink, Runtime, Sink
from hil.acoustics.noise import road_noise
from models.errors import ConfigError, ModelMissing
from models.store.registry import load_registry
from models.store.store import Store
from pipeline.audio.sink import WavSink
from pipeline.audio.source import WavSource
from pipeline.audio.wav import read_wav, write_wav
from pipeline.frames import SAMPLE_RATE_HZ, AudioFrame, SpeechFrame
from tests.support.fake_clock import FakeClock
from tests.support.paths import AUDIO

COMMANDS = {row["id"]: row for row in YAML(typ="safe").load(AUDIO / "manifest.yaml")}


class RecordingSink(NullSink):
    """Keeps what it was given."""

    def __init__(self) -> None:
        super().__init__()
        self.frames: list[SpeechFrame] = []

    def play(self, frame: SpeechFrame) -> int:
        self.frames.append(frame)
        return super().play(frame)


@pytest.fixture
def start(assembly: Assembly) -> Iterator[Callable[[Sink], Runtime]]:
    """Start a runtime on the shared stages with a sink of the test's own."""
    running: list[Runtime] = []

    def begin(sink: Sink) -> Runtime:
        runtime = Runtime(replace(assembly.parts, sink=sink))
        runtime.start()
        running.append(runtime)
        return runtime

    yield begin
    for runtime in running:
        runtime.stop()


def say(runtime: Runtime, name: str, pace: str = "fast") -> None:
    runtime.listen(WavSource(AUDIO / f"{name}.wav", pace=pace))  # type: ignore[arg-type]
    assert runtime.wait_idle(60.0)


def test_a_spoken_command_acts_and_answers(start: Callable[[Sink], Runtime]) -> None:
    sink = RecordingSink()
    runtime = start(sink)
    before_ns = time.monotonic_ns()
    say(runtime, "en01", pace="realtime")
    (turn,) = runtime.turn_log.closed()
    (result,) = turn.tool_results
    assert (result.status, result.value) == ("done", 22.0)
    assert result.path is not None
    assert result.path.endswith("HVAC.Station.Row1.Driver.Temperature")
    assert "22" in turn.reply
    assert all(turn.ms[name] is not None for name in ("endpoint", "asr", "llm", "tts_first", "first_audio"))
    assert {frame.turn_id for frame in sink.frames} == {turn.turn_id}
    assert all(before_ns < frame.captured_ns < time.monotonic_ns() for frame in sink.frames)
    assert sink.frames[-1].last
    assert sum(len(frame.samples) for frame in sink.frames) > SAMPLE_RATE_HZ // 2


def test_the_json_of_a_turn_has_the_promised_keys(start: Callable[[Sink], Runtime]) -> None:
    runtime = start(NullSink())
    say(runtime, "zh15")
    turn = runtime.turn_log.closed()[0].as_json()
    assert {"turn_id", "language", "transcript", "tool_calls", "reply", "ms", "generation"} <= set(turn)
    assert set(turn["ms"]) == {"endpoint", "asr", "llm_ttft", "llm", "tts_first", "first_audio"}
    (call,) = turn["tool_calls"]
    assert set(call) == {"name", "arguments", "result"}
    assert set(call["result"]) == {"status", "path", "value", "reason"}
    assert call["result"]["status"] == "refused"
    assert turn["language"] == "zh"
    assert turn["reply"]


def test_a_thread_that_computes_gives_way_soon(
    start: Callable[[Sink], Runtime], monkeypatch: pytest.MonkeyPatch
) -> None:
    set_to: list[float] = []
    monkeypatch.setattr(sys, "setswitchinterval", set_to.append)
    start(NullSink())
    assert set_to == [SWITCH_S]


def test_silence_and_road_noise_start_no_turn(start: Callable[[Sink], Runtime]) -> None:
    runtime = start(NullSink())
    noise = road_noise(6 * SAMPLE_RATE_HZ, seed=5) * 0.05
    for samples in (np.zeros(4 * SAMPLE_RATE_HZ, np.float32), noise.astype(np.float32)):
        runtime.listen(_frames(samples))
        assert runtime.wait_idle(60.0)
    assert runtime.turn_log.closed() == []


def test_a_wav_cut_at_its_last_sample_of_speech_is_understood(start: Callable[[Sink], Runtime], tmp_path: Path) -> None:
    samples = read_wav(AUDIO / "en12.wav")[: COMMANDS["en12"]["last_speech_sample"]]
    write_wav(tmp_path / "cut.wav", samples, SAMPLE_RATE_HZ)
    runtime = start(NullSink())
    runtime.listen(WavSource(tmp_path / "cut.wav", pace="fast"))
    assert runtime.wait_idle(60.0)
    (turn,) = runtime.turn_log.closed()
    assert "fast" in turn.transcript.lower()
    assert turn.tool_results[0].status == "done"


@pytest.mark.parametrize("count", [0, 1, 511, 512, 513])
def test_odd_lengths_end_cleanly(start: Callable[[Sink], Runtime], count: int) -> None:
    runtime = start(NullSink())
    runtime.listen(_frames(np.zeros(count, np.float32)))
    assert runtime.wait_idle(60.0)


def test_barge_in_stops_the_reply_and_the_next_command_is_answered(
    start: Callable[[Sink], Runtime], tmp_path: Path
) -> None:
    sink = WavSink(tmp_path, pace="realtime", clock=FakeClock())  # stands still: the reply sounds until it is stopped
    runtime = start(sink)
    say(runtime, "en17", pace="fast")
    assert sink.speaking()
    say(runtime, "en10", pace="realtime")
    first, second = runtime.turn_log.closed()
    cut = next(reply for reply in sink.played() if reply.turn_id == first.turn_id)
    assert not cut.complete
    assert second.generation > first.generation
    assert second.tool_results[0].status == "done"


def test_a_turn_that_ended_early_is_reopened_and_takes_back_what_it_did(
    start: Callable[[Sink], Runtime], assembly: Assembly
) -> None:
    """Complete after "... window": acted on early. "Halfway" comes within the watch and must count from before."""
    path = "Vehicle.Cabin.Door.Row1.DriverSide.Window.Position"
    dialogue = assembly.parts.dialogue
    runtime = start(NullSink())
    words = [_spoken(assembly, text) for text in ("Open the driver window.", "Halfway.")]
    quiet = [np.zeros(int(s * SAMPLE_RATE_HZ), np.float32) for s in (0.3, 0.45, 1.2)]
    samples = np.concatenate([quiet[0], words[0], quiet[1], words[1], quiet[2]])
    runtime.listen(_frames(samples, realtime=True))
    assert runtime.wait_idle(60.0)
    (turn,) = runtime.turn_log.closed()
    assert turn.tool_results[-1].value == 50
    assert dialogue.toolbox.access.read(path) == 50


def test_a_failing_tool_is_spoken_as_failure(start: Callable[[Sink], Runtime], assembly: Assembly) -> None:
    tree = assembly.parts.dialogue.toolbox.access.backend
    tree.break_path("Vehicle.Cabin.HVAC.IsRearDefrosterActive")  # type: ignore[attr-defined]
    try:
        runtime = start(NullSink())
        say(runtime, "en10")
        (turn,) = runtime.turn_log.closed()
        assert turn.tool_results[0].status == "failed"
        assert turn.reply
    finally:
        tree.mend()  # type: ignore[attr-defined]


def test_models_that_are_not_there_name_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="cockpit models"):
        assemble(load_profile("cpu").profile, Store(tmp_path, load_registry()), NullSink())


@pytest.mark.parametrize(
    ("section", "change"),
    [("privacy", {"store_audio": True}), ("privacy", {"store_transcripts": True})],
)
def test_a_key_that_would_be_ignored_is_refused(tmp_path: Path, section: str, change: dict[str, object]) -> None:
    profile = load_profile("cpu").profile
    changed = profile.model_copy(update={section: getattr(profile, section).model_copy(update=change)})
    with pytest.raises(ConfigError, match=section):
        assemble(changed, Store(tmp_path, load_registry()), NullSink())


def test_the_profile_bounds_a_free_answer(assembly: Assembly) -> None:
    assert assembly.parts.dialogue.reply_tokens == load_profile("cpu").profile.llm.dialogue.max_reply_tokens


def test_what_waits_between_stages_is_bounded_and_only_a_microphones_frames_are_dropped() -> None:
    for live in (True, False):
        edges = Edges.make(live=live)
        for channel in edges.all():
            waits = 0
            try:
                while waits < 1000 and channel.put(object(), timeout_s=0.001):
                    waits += 1
            except TimeoutError:
                assert not (live and channel is edges.frames)
            assert waits == channel.capacity == len(channel)
            assert channel.counts.dropped == (1 if live and channel is edges.frames else 0)


def test_turns_do_not_grow(start: Callable[[Sink], Runtime]) -> None:
    """The same commands again and again: what two rounds allocated serves the later ones.

    Two, since a text's cache takes memory as it fills, and only then has every beginning of the dialogue been seen.
    """
    Path("/proc/self/clear_refs").write_text("5")  # what other tests in this process peaked at does not count,
    before_kib = _rss_kib()  # nor what they hold
    runtime = start(NullSink())
    names = [name for name in COMMANDS if name not in ("en17", "zh17")][::4]
    settled_kib = threads = 0
    for round_number in range(4):
        for name in names:
            say(runtime, name)
        gc.collect()
        if round_number == 1:
            settled_kib, threads = _rss_kib(), threading.active_count()
    assert len(names) == 12
    assert threading.active_count() == threads
    assert _rss_kib() - settled_kib < 8 * 1024, "more than 340 KiB a turn"
    assert _rss_kib("VmHWM") - before_kib < 2 * 1024 * 1024


def _rss_kib(what: str = "VmRSS") -> int:
    line = next(line for line in Path("/proc/self/status").read_text().splitlines() if line.startswith(what))
    return int(line.split()[1])


def _spoken(assembly: Assembly, text: str) -> np.ndarray:
    """The English voice's own speech at 16 kHz, without the silence around it."""
    voice = assembly.parts.tts._voices["en"]
    samples = np.concatenate(list(voice.synthesise(text)))
    loud = np.flatnonzero(np.abs(samples) > 0.02)
    return np.asarray(soxr.resample(samples[loud[0] : loud[-1]], voice.sample_rate_hz, SAMPLE_RATE_HZ), np.float32)


def _frames(samples: np.ndarray, *, realtime: bool = False) -> Iterator[AudioFrame]:
    begin_s = time.monotonic()
    for first in range(0, len(samples), 512):
        if realtime:
            time.sleep(max(0.0, begin_s + (first + 512) / SAMPLE_RATE_HZ - time.monotonic()))
        yield AudioFrame(samples[first : first + 512], first, time.monotonic_ns())
    yield AudioFrame(np.zeros(0, np.float32), len(samples), time.monotonic_ns(), end_of_stream=True)
