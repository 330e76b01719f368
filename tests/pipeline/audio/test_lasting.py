"""Devices that come late, go, come back and are renamed, against a fake sounddevice."""

from __future__ import annotations

import sys
import threading
import types
from collections.abc import Iterator
from typing import Any

import numpy as np
import pytest

from models.errors import DeviceUnavailable
from pipeline.audio.lasting import DeviceEvents, LastingMicrophone, LastingSpeaker
from pipeline.backoff import Backoff
from pipeline.frames import AudioFrame, SpeechFrame
from tests.support.waiting import ended, until

BLOCK = 480


class PortAudioError(Exception):
    """As sounddevice names it."""


class Machine:
    """Which devices there are, and PortAudio's list of them, made when it began. Streams deliver when told to."""

    def __init__(self) -> None:
        self.inputs = ["headset"]
        self.outputs = ["headset"]
        self.listed: tuple[list[str], list[str]] = ([], [])
        self.streams: list[Stream] = []
        self.begun = 0
        self.initialise()

    def initialise(self) -> None:
        assert not self.streams, "PortAudio begins anew while streams are open"
        self.listed = (list(self.inputs), list(self.outputs))
        self.begun += 1

    def find(self, device: str | None, kind: str, *, there: bool) -> str:
        listed = self.listed[kind == "output"]
        real = self.inputs if kind == "input" else self.outputs
        names = [name for name in listed if device in (None, name) and (not there or name in real)]
        if not names:
            raise PortAudioError(f"no {kind} {device}")
        return names[0]

    def module(self) -> types.ModuleType:
        module: Any = types.ModuleType("sounddevice")

        def query_devices(device: str | None = None, kind: str = "") -> Any:
            info = {"default_samplerate": 48_000.0, "max_input_channels": 1, "max_output_channels": 1}
            if not kind:
                inputs, outputs = self.listed
                return [info | {"name": name, "max_output_channels": 0} for name in inputs] + [
                    info | {"name": name, "max_input_channels": 0} for name in outputs
                ]
            return info | {"name": self.find(device, kind, there=False)}

        module.query_devices = query_devices
        module.PortAudioError = PortAudioError
        module.InputStream = lambda **settings: Stream(self, "input", settings)
        module.OutputStream = lambda **settings: Stream(self, "output", settings)
        module._terminate = lambda: None
        module._initialize = self.initialise
        return module  # type: ignore[no-any-return]

    def stream(self, kind: str) -> Stream | None:
        return next((stream for stream in self.streams if stream.kind == kind), None)

    def deliver(self, kind: str = "input") -> None:
        """One block to or from the device, where it is there and open."""
        stream = self.stream(kind)
        real = self.inputs if kind == "input" else self.outputs
        if stream is not None and stream.name in real:
            status = types.SimpleNamespace(input_overflow=False)
            stream.callback(np.zeros((BLOCK, 1), np.float32), BLOCK, None, status)


class Stream:
    def __init__(self, machine: Machine, kind: str, settings: dict[str, Any]) -> None:
        self.name = machine.find(settings["device"], kind, there=True)
        self.machine, self.kind, self.callback = machine, kind, settings["callback"]
        machine.streams.append(self)

    def start(self) -> None: ...

    def close(self) -> None:
        self.machine.streams.remove(self)

    def __enter__(self) -> Stream:
        return self

    def __exit__(self, *_: object) -> None:
        self.close()


@pytest.fixture
def machine(monkeypatch: pytest.MonkeyPatch) -> Machine:
    made = Machine()
    monkeypatch.setitem(sys.modules, "sounddevice", made.module())
    return made


class Told:
    """What was told of a device."""

    def __init__(self) -> None:
        self.lost: list[str] = []
        self.back: list[str] = []

    @property
    def events(self) -> DeviceEvents:
        return DeviceEvents(self.lost.append, self.back.append)


def quick() -> Backoff:
    return Backoff(0.01, 0.02)


class Listening:
    """A microphone whose frames are taken by a thread; `blocks` are delivered until something holds."""

    def __init__(self, machine: Machine, device: str | None = None, speaker: LastingSpeaker | None = None) -> None:
        self.told = Told()
        self.frames: list[AudioFrame] = []
        self.machine = machine
        self.source = LastingMicrophone(
            device, self.told.events, frame_samples=160, speaker=speaker, backoff=quick(), silent_device_s=0.05
        )
        self._thread = threading.Thread(target=lambda: self.frames.extend(self._all()))
        self._thread.start()

    def _all(self) -> Iterator[AudioFrame]:
        for frame in self.source:
            self.frames.append(frame)
        yield from ()

    def hear(self, frames: int = 1) -> None:
        wanted = len(self.frames) + frames

        def heard() -> bool:
            self.machine.deliver()
            return len(self.frames) >= wanted

        until(heard)

    def end(self) -> None:
        self.source.stop()
        self.machine.deliver()
        ended(self._thread)


@pytest.fixture
def listening(machine: Machine) -> Iterator[Listening]:
    made = Listening(machine)
    yield made
    made.end()
    assert not machine.streams


def test_a_microphone_that_goes_and_comes_back(machine: Machine, listening: Listening) -> None:
    listening.hear(3)
    before = listening.frames[-1]
    assert not any(frame.after_loss for frame in listening.frames)
    machine.inputs.clear()
    until(lambda: listening.told.lost)
    steps = listening.source.steps
    until(lambda: listening.source.steps > steps + 3)  # it goes on looking
    assert listening.source.losses == 1
    machine.inputs.append("headset")
    count = len(listening.frames)
    listening.hear(2)
    back = listening.frames[count]
    assert listening.told.back == ["headset"]
    assert back.after_loss
    assert back.first_sample >= before.first_sample + len(before.samples)
    assert not listening.frames[count + 1].after_loss
    assert not listening.frames[-1].end_of_stream


def test_a_microphone_that_comes_late_is_found_though_portaudio_listed_none(machine: Machine) -> None:
    machine.inputs.clear()
    machine.initialise()
    listening = Listening(machine)
    until(lambda: listening.told.lost)
    assert "connect one" in listening.told.lost[0]
    machine.inputs.append("usb")
    listening.hear(2)
    assert listening.told.back == ["usb"]
    assert listening.frames[0].first_sample == 0
    listening.end()


def test_a_renamed_device_is_used_once_it_is_named(machine: Machine) -> None:
    """A device by name: under another one it is not found, until a reload names it."""
    listening = Listening(machine, "headset")
    listening.hear()
    machine.inputs[:] = ["headset (2)"]
    until(lambda: any("headset (2)" in reason for reason in listening.told.lost))
    listening.source.use("headset (2)")
    listening.hear(2)
    assert listening.told.back == ["headset (2)"]
    listening.end()


def test_without_portaudio_nothing_is_waited_for(monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setitem(sys.modules, "sounddevice", None)
    source = LastingMicrophone(None, Told().events, frame_samples=160)
    with pytest.raises(DeviceUnavailable, match=r"cockpit-voice\[audio\]") as caught:
        next(iter(source))
    assert caught.value.exit_code == 3
    with pytest.raises(DeviceUnavailable, match=r"cockpit-voice\[audio\]"):
        LastingSpeaker(None, Told().events).start()


# --- speaker -------------------------------------------------------------------------------------------------------
def frame(turn: int, seconds: float, *, last: bool = False, generation: int = 0) -> SpeechFrame:
    samples = np.full(round(seconds * 48_000), 0.5, np.float32)
    return SpeechFrame(
        turn_id=turn, generation=generation, samples=samples, sample_rate_hz=48_000, captured_ns=0, clause_index=0,
        text=f"reply {turn}", last=last,
    )  # fmt: skip


@pytest.fixture
def speaker(machine: Machine) -> Iterator[tuple[LastingSpeaker, Told]]:
    told = Told()
    made = LastingSpeaker(None, told.events, backoff=quick(), silent_s=0.5)
    yield made, told
    made.close()
    assert not machine.streams


def test_a_speaker_that_goes_in_the_midst_of_a_reply_holds_nobody_up(
    machine: Machine, speaker: tuple[LastingSpeaker, Told]
) -> None:
    sink, told = speaker
    sink.start()
    assert sink.name == "headset"
    sink.play(frame(1, 0.1))
    machine.deliver("output")
    assert sink.speaking()
    machine.outputs.clear()
    playing = threading.Thread(target=lambda: sink.play(frame(1, 100.0, last=True)))  # longer than the ring
    playing.start()
    ended(playing)
    until(lambda: told.lost)
    (reply,) = sink.played()
    assert (reply.heard_samples, reply.complete) == (BLOCK, False)
    assert sink.play(frame(2, 0.1, last=True)) > 0, "the turn goes on, though nobody hears it"
    assert len(sink.played()) == 1, "what nobody heard does not count as heard"
    assert not sink.speaking()
    machine.outputs.append("headset")
    until(lambda: told.back == ["headset"])
    sink.play(frame(3, 0.01, last=True))
    machine.deliver("output")
    assert sink.played()[-1].complete
    assert sink.losses == 1


def test_a_speaker_that_comes_late(machine: Machine, speaker: tuple[LastingSpeaker, Told]) -> None:
    sink, told = speaker
    machine.outputs.clear()
    sink.start()
    assert told.lost
    assert sink.name == ""
    sink.stop(4)
    machine.outputs.append("headset")
    until(lambda: told.back)
    assert sink.play(frame(1, 0.1, generation=3)) == 0, "barge-in holds across devices"
    assert sink.play(frame(1, 0.1, generation=4)) > 0


def test_the_volume_is_heard_at_once_and_holds_across_devices(
    machine: Machine, speaker: tuple[LastingSpeaker, Told]
) -> None:
    sink, told = speaker
    sink.start()

    def loudness() -> float:
        stream, out = machine.stream("output"), np.ones((BLOCK, 1), np.float32)
        assert stream is not None
        stream.callback(out, BLOCK, None, None)
        return float(np.abs(out).max())

    sink.play(frame(1, 1.0))
    assert loudness() == 0.5
    sink.set_volume(0.4)
    assert loudness() == pytest.approx(0.2)
    sink.set_volume(0.0)
    assert loudness() == 0.0
    sink.set_volume(0.4)
    machine.outputs.clear()
    until(lambda: told.lost)
    machine.outputs.append("headset")
    until(lambda: told.back == ["headset"])
    sink.play(frame(2, 1.0))
    assert loudness() == pytest.approx(0.2), "the device that came back is as quiet"


def test_both_of_a_headset_come_back_under_another_name(machine: Machine, speaker: tuple[LastingSpeaker, Told]) -> None:
    """PortAudio must begin anew, which it can only while neither has a stream."""
    sink, _ = speaker
    sink.start()
    listening = Listening(machine, speaker=sink)
    listening.hear()
    begun = machine.begun
    machine.inputs[:] = machine.outputs[:] = ["usb headset"]
    until(lambda: listening.told.lost)
    listening.hear(2)
    assert listening.told.back == ["usb headset"]
    until(lambda: sink.name == "usb headset")
    assert machine.begun > begun
    listening.end()


def test_waits_grow_and_differ_by_chance() -> None:
    waits = Backoff(0.5, 15.0, chance=lambda: 0.0)
    assert [waits.next_s() for _ in range(7)] == [0.5, 1.0, 2.0, 4.0, 8.0, 15.0, 15.0]
    waits.reset()
    assert waits.next_s() == 0.5
    assert Backoff(1.0, 15.0, chance=lambda: 0.8).next_s() == 0.6
