"""Microphone and speaker against a fake sounddevice, and both sinks: ids and times reach them, barge-in cuts them."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Callable
from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from models.errors import DeviceUnavailable, InputError
from pipeline.audio.portaudio import SampleRing
from pipeline.audio.sink import STALE, SpeakerSink, WavSink
from pipeline.audio.source import MicSource, WavSource
from pipeline.frames import SpeechFrame
from tests.support.audio_frames import tone
from tests.support.fake_clock import FakeClock


class PortAudioError(Exception):
    """As sounddevice names it."""


class FakeStream:
    """Keeps the callback so that a test can be the device."""

    opened: list[FakeStream] = []  # noqa: RUF012

    def __init__(self, **settings: Any) -> None:
        if settings["device"] == "busy":
            raise PortAudioError("Device unavailable [PaErrorCode -9985]")
        self.settings = settings
        self.callback: Callable[..., None] = settings["callback"]
        FakeStream.opened.append(self)

    def start(self) -> None: ...
    def close(self) -> None: ...
    def __enter__(self) -> FakeStream:
        return self

    def __exit__(self, *_: object) -> None: ...


def fake_module(devices: list[dict[str, Any]]) -> types.ModuleType:
    module = types.ModuleType("sounddevice")

    def query_devices(device: Any = None, kind: str | None = None) -> Any:
        if kind is None:
            return devices
        fitting = [item for item in devices if device in (None, "busy", item["name"])]
        if not fitting:
            raise PortAudioError(f"Error querying device {device}")
        return fitting[0]

    module.query_devices = query_devices  # type: ignore[attr-defined]
    module.PortAudioError = PortAudioError  # type: ignore[attr-defined]
    module.InputStream = module.OutputStream = FakeStream  # type: ignore[attr-defined]
    return module


def headset(rate_hz: int = 48_000) -> dict[str, Any]:
    return {"name": "headset", "default_samplerate": float(rate_hz), "max_input_channels": 1, "max_output_channels": 2}


@pytest.fixture
def device(monkeypatch: pytest.MonkeyPatch) -> types.ModuleType:
    module = fake_module([headset()])
    FakeStream.opened.clear()
    monkeypatch.setitem(sys.modules, "sounddevice", module)
    return module


def status(overflow: bool = False) -> types.SimpleNamespace:
    return types.SimpleNamespace(input_overflow=overflow)


# --- ring ----------------------------------------------------------------------------------------------------------
def test_the_ring_keeps_order_across_its_edge_and_refuses_what_does_not_fit() -> None:
    ring = SampleRing(7)
    taken: list[float] = []
    given = 0
    for count in (3, 7, 0, 5, 1, 6, 7):
        given += ring.write(np.arange(given, given + count, dtype=np.float32))
        out = np.zeros(4, np.float32)
        taken.extend(out[: ring.read_into(out)].tolist())
    assert taken == [float(value) for value in range(len(taken))]
    assert len(ring) == given - len(taken) <= 7
    ring.skip_to(ring.written)
    assert len(ring) == 0
    ring.skip_to(0)
    assert len(ring) == 0


# --- microphone ----------------------------------------------------------------------------------------------------
def test_the_microphone_is_resampled_from_its_own_rate(device: types.ModuleType) -> None:
    clock = FakeClock()
    source = MicSource(clock=clock)
    assert source.rate_hz == 48_000
    frames = iter(source)
    sound = tone(1.0, 48_000).astype(np.float32)[:, None]

    def play() -> None:
        while not FakeStream.opened:
            pass
        stream = FakeStream.opened[0]
        assert stream.settings["samplerate"] == 48_000
        for start in range(0, 48_000, 480):
            clock.ns += 10_000_000
            stream.callback(sound[start : start + 480], 480, None, status(overflow=start == 4800))
        source.stop()

    thread = threading.Thread(target=play)
    thread.start()
    heard = list(frames)
    thread.join()
    samples = np.concatenate([frame.samples for frame in heard])
    assert abs(len(samples) - 16_000) <= 2
    assert np.abs(samples[400:15_000] - tone(1.0, 16_000)[400:15_000]).max() < 0.01
    assert heard[-1].end_of_stream
    assert heard[-1].captured_ns <= clock.ns
    assert [frame.captured_ns for frame in heard] == sorted(frame.captured_ns for frame in heard)
    assert source.xruns == 1
    assert source.overrun_samples == 0


def test_a_full_ring_is_counted_not_overwritten(device: types.ModuleType) -> None:
    source = MicSource(ring_s=0.01)
    source._captured(np.ones((1000, 1), np.float32), 1000, None, status())
    assert source.overrun_samples == 1000 - 480


def test_a_microphone_that_falls_silent_is_opened_once_more_and_is_then_an_error(device: types.ModuleType) -> None:
    source = MicSource(silent_device_s=0.01)
    with pytest.raises(DeviceUnavailable, match="stopped delivering"):
        next(iter(source))
    assert source.reopened == 1
    assert len(FakeStream.opened) == 2


def test_what_the_device_missed_while_the_process_was_stopped_is_a_jump(device: types.ModuleType) -> None:
    clock = FakeClock()
    source = MicSource(clock=clock)
    block = np.zeros((480, 1), np.float32)
    taken = iter(source)
    heard = []
    for number in range(200):
        clock.ns += 10_000_000 + (4_000_000_000 if number == 100 else 0)
        source._captured(block, 480, None, status())
        if number in (99, 199):
            heard.append(next(taken))
            while len(source._ring):
                heard.append(next(taken))
    assert source.missed_samples == 4 * 48_000
    jumps = [
        (right.first_sample - left.first_sample - len(left.samples), right.after_loss)
        for left, right in pairwise(heard)
        if right.first_sample != left.first_sample + len(left.samples)
    ]
    assert jumps == [(4 * 16_000, True)]


def test_a_stop_of_the_process_is_no_silent_device(device: types.ModuleType, monkeypatch: pytest.MonkeyPatch) -> None:
    """One slice of the wait runs out during the stop; the next block comes right behind it."""
    source = MicSource()
    answers = iter([False, False, True])
    monkeypatch.setattr(source._arrived, "wait", lambda seconds: next(answers))
    assert source._wait()


@pytest.mark.parametrize("kind", [MicSource, SpeakerSink])
def test_without_portaudio_or_device_start_is_refused(kind: type, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    with pytest.raises(DeviceUnavailable, match=r"cockpit-voice\[audio\]") as caught:
        kind()
    assert caught.value.exit_code == 3
    monkeypatch.setitem(sys.modules, "sounddevice", fake_module([]))
    with pytest.raises(DeviceUnavailable, match="connect one"):
        kind()
    monkeypatch.setitem(sys.modules, "sounddevice", fake_module([headset()]))
    with pytest.raises(DeviceUnavailable, match="There are: headset"):
        kind("other")


def test_a_missing_portaudio_library_names_its_package(monkeypatch: pytest.MonkeyPatch) -> None:
    def refuse(name: str) -> Any:
        raise OSError("PortAudio library not found")

    monkeypatch.setattr("pipeline.audio.portaudio.importlib.import_module", refuse)
    with pytest.raises(DeviceUnavailable, match="apt-get install libportaudio2"):
        MicSource()


def test_a_device_in_use_is_refused(device: types.ModuleType) -> None:
    with pytest.raises(DeviceUnavailable, match="close what uses it"):
        next(iter(MicSource("busy")))
    with pytest.raises(DeviceUnavailable, match="close what uses it"):
        SpeakerSink("busy").start()


# --- sinks ---------------------------------------------------------------------------------------------------------
def speech(turn_id: int, samples: int, *, index: int = 0, generation: int = 0, last: bool = False, rate: int = 16_000):  # type: ignore[no-untyped-def]
    sound = np.full(samples, 0.25, np.float32)
    return SpeechFrame(turn_id, generation, sound, rate, 777, clause_index=index, text=f"clause {index}", last=last)


def test_turn_id_and_capture_time_reach_the_wav(tmp_path: Path) -> None:
    clock = FakeClock()
    sink = WavSink(tmp_path, clock=clock)
    first_ns = sink.play(speech(5, 8_000))
    assert first_ns == clock.ns
    assert sink.speaking()
    clock.ns += 100_000_000
    assert sink.play(speech(5, 8_000, index=1, last=True)) == first_ns + 500_000_000
    (played,) = sink.played()
    assert (played.turn_id, played.captured_ns, played.first_out_ns) == (5, 777, first_ns)
    assert (played.heard_samples, played.text, played.complete) == (1_600, "clause 0", False)
    clock.ns = first_ns + 1_000_000_000
    assert not sink.speaking()
    sink.close()
    (played,) = sink.played()
    assert played.complete
    assert played.text == "clause 0 clause 1"
    assert played.path == tmp_path / "turn-0005.wav"
    assert soundfile.info(played.path).frames == 16_000


def test_barge_in_cuts_the_wav_to_what_was_heard(tmp_path: Path) -> None:
    clock = FakeClock()
    sink = WavSink(tmp_path, clock=clock)
    sink.play(speech(1, 16_000))
    sink.play(speech(1, 16_000, index=1, last=True))
    clock.ns += 250_000_000
    sink.stop(1)
    assert not sink.speaking()
    assert sink.play(speech(1, 100)) == STALE
    (played,) = sink.played()
    assert (played.heard_samples, played.text, played.complete) == (4_000, "clause 0", False)
    assert soundfile.info(tmp_path / "turn-0001.wav").frames == 4_000
    sink.play(speech(2, 160, generation=1, last=True))
    assert sink.speaking()


def test_fast_pace_takes_a_reply_as_heard(tmp_path: Path) -> None:
    sink = WavSink(tmp_path, pace="fast")
    sink.play(speech(1, 16_000))
    assert sink.speaking()
    sink.play(speech(1, 0, last=True))
    assert not sink.speaking()
    assert sink.played()[0].complete


def test_an_empty_reply_leaves_no_file(tmp_path: Path) -> None:
    sink = WavSink(tmp_path)
    sink.play(speech(1, 0, last=True))
    assert not sink.speaking()
    sink.close()
    assert sink.played()[0].path is None
    assert list(tmp_path.iterdir()) == []


def test_voices_of_two_rates_share_a_reply(tmp_path: Path) -> None:
    sink = WavSink(tmp_path, pace="fast")
    sink.play(speech(1, 22_050, rate=22_050))
    sink.play(speech(1, 16_000, index=1, last=True))
    assert abs(soundfile.info(tmp_path / "turn-0001.wav").frames - 44_100) <= 2


def test_a_folder_that_cannot_be_made_is_refused(tmp_path: Path) -> None:
    (tmp_path / "file").write_text("")
    with pytest.raises(InputError, match="--out"):
        WavSink(tmp_path / "file" / "out")


def test_the_speaker_plays_reports_and_is_cut(device: types.ModuleType) -> None:
    clock = FakeClock()
    sink = SpeakerSink(clock=clock)
    sink.start()
    emit = FakeStream.opened[0].callback
    assert sink.play(speech(3, 16_000, last=False)) == clock.ns
    assert sink.play(speech(3, 16_000, index=1, last=True)) == clock.ns + 1_000_000_000
    assert sink.speaking()
    out = np.zeros((24_000, 1), np.float32)
    emit(out, len(out), None, None)
    assert abs(float(out[12_000, 0]) - 0.25) < 0.01
    sink.stop(1)
    assert not sink.speaking()
    emit(out, len(out), None, None)
    assert not out.any()
    (played,) = sink.played()
    assert (played.turn_id, played.captured_ns, played.heard_samples) == (3, 777, 24_000)
    assert played.text == "clause 0"
    assert sink.play(speech(3, 100)) == STALE
    assert sink.underruns == 0
    sink.close()


def test_late_reply_audio_is_counted(device: types.ModuleType) -> None:
    sink = SpeakerSink()
    sink.play(speech(1, 160))
    sink._emit(np.zeros((4_800, 1), np.float32), 4_800, None, None)
    assert sink.underruns == 1


def test_capture_time_travels_from_the_wav_to_the_sink(tmp_path: Path) -> None:
    clock = FakeClock()
    soundfile.write(tmp_path / "in.wav", tone(0.1, 16_000), 16_000)
    frame = list(WavSource(tmp_path / "in.wav", clock=clock))[-1]
    sink = WavSink(tmp_path, clock=clock)
    out_ns = sink.play(SpeechFrame(9, 0, np.ones(10, np.float32), 16_000, frame.captured_ns, last=True))
    assert sink.played()[0].captured_ns == frame.captured_ns <= out_ns
