"""Microphone and speaker of a process that stays: each may come late, go and come back. They are waited for and opened
anew, in ever longer intervals, and whoever wants to know is told when one is lost and when it is back.

PortAudio lists the devices once, when it begins. To see one that came later it has to begin anew, with no stream open:
the microphone's loop does that while it has none itself and the speaker is silent.
"""

from __future__ import annotations

import logging
import threading
from collections import deque
from collections.abc import Callable, Iterator
from contextlib import closing
from dataclasses import dataclass, replace
from itertools import chain

from models.errors import DeviceAbsent
from pipeline.audio.far_end import PlayedSound
from pipeline.audio.portaudio import begin_anew
from pipeline.audio.sink import STALE, Played, SpeakerSink
from pipeline.audio.source import MicSource
from pipeline.backoff import Backoff
from pipeline.clock import Clock, SystemClock
from pipeline.frames import SAMPLE_RATE_HZ, AudioFrame, OverReply, PromptFrame, SpeechFrame

log = logging.getLogger("cockpit.audio")

_SLICE_S = 0.25
"""A wait is made of these: a stop of the whole process costs only one of them."""
_SILENT_S = 3.0
"""A speaker that takes nothing for so long is lost."""
_REMEMBERED = 64


@dataclass(frozen=True, slots=True)
class DeviceEvents:
    """lost: told the reason when a device goes, and at each try in vain. back: told its name once it is there again."""

    lost: Callable[[str], object]
    back: Callable[[str], object]


class LastingMicrophone:
    """Frames from whichever microphone `device` names at the time, until `stop`. Iterate once.

    While there is none, no frames come; the first one behind that has `after_loss`, and `first_sample` jumps by what
    was missed. Raises DeviceUnavailable only for what cannot come back: no PortAudio, no sounddevice.
    """

    def __init__(
        self,
        device: str | None,
        events: DeviceEvents,
        *,
        frame_samples: int,
        speaker: LastingSpeaker | None = None,
        backoff: Backoff | None = None,
        silent_device_s: float = 3.0,
        clock: Clock | None = None,
    ) -> None:
        self.steps = 0
        """Frames, and looks for a device: grows while the loop is well."""
        self.losses = 0
        self.samples_lost = 0
        self.xruns = 0
        self._device = device
        self._events = events
        self._frame_samples = frame_samples
        self._speaker = speaker
        self._backoff = backoff or Backoff()
        self._silent_device_s = silent_device_s
        self._clock: Clock = clock or SystemClock()
        self._source: MicSource | None = None
        self._stopped = False
        self._lost = False
        self._wanted_anew = threading.Event()
        self._position = 0
        self._newest_ns = self._clock.elapsed_ns()

    def stop(self) -> None:
        """End the stream. Any thread."""
        self._stopped = True
        self._wanted_anew.set()
        source = self._source
        if source is not None:
            source.stop()

    def use(self, device: str | None) -> None:
        """From now on another device, or the same one opened anew. Any thread."""
        self._device = device
        self._wanted_anew.set()

    def look(self) -> str:
        """The device's name, before it is opened; empty, and told as lost, where there is none."""
        try:
            return MicSource(self._device).name
        except DeviceAbsent as error:
            self._lose(error)
            return ""

    def __iter__(self) -> Iterator[AudioFrame]:
        while not self._stopped:
            self._wanted_anew.clear()
            try:
                for frame in self._frames():
                    if self._lost:
                        self._lost = False
                        self._backoff.reset()
                        assert self._source is not None
                        self._events.back(self._source.name)
                    yield frame
            except DeviceAbsent as error:
                self._lose(error)
                self._wait(self._backoff.next_s())
                self._look_for_devices()

    def _frames(self) -> Iterator[AudioFrame]:
        """From one opening of the device, until `stop`, `use`, or its end."""
        source = MicSource(
            self._device, frame_samples=self._frame_samples, silent_device_s=self._silent_device_s, clock=self._clock
        )
        self._source, first = source, True
        offset: int | None = None
        xruns, lost = self.xruns, self.samples_lost
        with closing(iter(source)) as frames:
            for frame in frames:
                self.steps += 1
                if offset is None:
                    missed_ns = self._clock.elapsed_ns() - self._newest_ns
                    missed = max(0, missed_ns * SAMPLE_RATE_HZ // 1_000_000_000 - len(frame.samples))
                    offset = 0 if self._position == 0 else self._position + missed - frame.first_sample
                moved = replace(
                    frame,
                    first_sample=frame.first_sample + offset,
                    after_loss=frame.after_loss or (first and self._position > 0),
                )
                first = False
                self._position = moved.first_sample + len(moved.samples)
                self.xruns, self.samples_lost = xruns + source.xruns, lost + source.lost_samples
                self._newest_ns = self._clock.elapsed_ns()
                yield moved
                if self._wanted_anew.is_set() and not self._stopped:
                    return

    def _lose(self, error: DeviceAbsent) -> None:
        self.losses += not self._lost
        self._lost = True
        self._events.lost(str(error))

    def _wait(self, seconds: float) -> None:
        left_s = seconds
        while left_s > 0 and not self._wanted_anew.is_set():
            self.steps += 1
            self._wanted_anew.wait(min(left_s, _SLICE_S))
            left_s -= _SLICE_S

    def _look_for_devices(self) -> None:
        """Let PortAudio list the devices again, unless that would cut off what is being said."""
        speaker = self._speaker
        if speaker is None:
            begin_anew()
        elif speaker.step_aside():
            try:
                begin_anew()
            finally:
                speaker.come_back()


class LastingSpeaker:
    """A Sink on whichever speaker `device` names at the time. See cockpit.runtime.Sink and SpeakerSink.

    While there is none, replies and prompts are taken and lost: nobody hears them, and none counts as heard. `start`
    looks for the device, in a thread of its own from then on.
    """

    def __init__(
        self,
        device: str | None,
        events: DeviceEvents,
        *,
        backoff: Backoff | None = None,
        silent_s: float = _SILENT_S,
        clock: Clock | None = None,
    ) -> None:
        self._device = device
        self._events = events
        self._backoff = backoff or Backoff()
        self._silent_s = silent_s
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._sink: SpeakerSink | None = None
        self._aside = False
        self._lost = False
        self._generation = 0
        self._volume = 1.0
        self._underruns = 0
        self._played: deque[Played] = deque(maxlen=_REMEMBERED)
        self._ended = threading.Event()
        self._look = threading.Event()
        self._thread = threading.Thread(target=self._run, name="speaker", daemon=True)
        self.steps = 0
        """Looks at the device: grows while the thread is well."""
        self.losses = 0

    @property
    def name(self) -> str:
        """Of the device that is open; empty without one."""
        sink = self._sink
        return "" if sink is None else sink.name

    @property
    def sounded(self) -> PlayedSound | None:
        """What the device that is open was given; None without one."""
        sink = self._sink
        return None if sink is None else sink.sounded

    @property
    def volume(self) -> float:
        """Of replies and prompts: a factor in [0, 1]."""
        return self._volume

    @property
    def underruns(self) -> int:
        """Blocks in which a reply was under way but its audio came too late, on all devices since the start."""
        sink = self._sink
        return self._underruns + (0 if sink is None else sink.underruns)

    def set_volume(self, volume: float) -> None:
        """From the next block on, on this device and those after it. Any thread."""
        with self._lock:
            self._volume = volume
            if self._sink is not None:
                self._sink.volume = volume

    def start(self) -> None:
        """Look for the device once, here; go on looking after it. Raises DeviceUnavailable for what cannot come."""
        self._open()
        self._thread.start()

    def use(self, device: str | None) -> None:
        """From now on another device. What sounds is cut off. Any thread."""
        self._device = device
        with self._lock:
            self._drop()
        self._look.set()

    def step_aside(self) -> bool:
        """Close the device for a moment, unless something sounds. False: not now."""
        with self._lock:
            if self._sink is not None and (self._sink.speaking() or self._sink.prompting()):
                return False
            self._drop()
            self._aside = True
            return True

    def come_back(self) -> None:
        """After `step_aside`."""
        self._aside = False
        self._look.set()

    # --- as a sink -------------------------------------------------------------------------------------------------
    def play(self, frame: SpeechFrame) -> int:
        if frame.generation < self._generation:
            return STALE
        sink = self._sink
        out_ns = STALE if sink is None else sink.play(frame)
        lost = sink is None or sink.closed
        return self._clock.now_ns() if lost and frame.generation >= self._generation else out_ns

    def stop(self, generation: int) -> None:
        self._generation = max(self._generation, generation)
        sink = self._sink
        if sink is not None:
            sink.stop(generation)

    def duck(self, quiet: bool) -> None:
        sink = self._sink
        if sink is not None:
            sink.duck(quiet)

    def prompt(self, frame: PromptFrame) -> int:
        sink = self._sink
        return self._clock.now_ns() if sink is None else sink.prompt(frame)

    def stop_prompt(self) -> int:
        sink = self._sink
        return -1 if sink is None else sink.stop_prompt()

    def prompting(self) -> bool:
        sink = self._sink
        return sink is not None and sink.prompting()

    def prompt_wait_ns(self, over_reply: OverReply) -> int:
        sink = self._sink
        return 0 if sink is None else sink.prompt_wait_ns(over_reply)

    def speaking(self) -> bool:
        sink = self._sink
        return sink is not None and sink.speaking()

    def played(self) -> tuple[Played, ...]:
        with self._lock:
            sink = self._sink
            return tuple(chain(self._played, () if sink is None else sink.played()))

    def close(self) -> None:
        """Look after it no more, and close it. Safe to call twice."""
        self._ended.set()
        self._look.set()
        if self._thread.ident is not None:
            self._thread.join(5.0)
        with self._lock:
            self._drop()

    # --- the device ------------------------------------------------------------------------------------------------
    def _run(self) -> None:
        blocks, still_s, wait_s = -1, 0.0, 0.0
        while not self._ended.is_set():
            self.steps += 1
            if self._look.wait(_SLICE_S):
                self._look.clear()
                wait_s = 0.0
            sink = self._sink
            if sink is None:
                wait_s -= _SLICE_S
                if wait_s <= 0 and not self._aside and not self._ended.is_set() and not self._open():
                    wait_s = self._backoff.next_s()
                still_s = 0.0
                continue
            still_s = 0.0 if sink.blocks != blocks else still_s + _SLICE_S
            blocks = sink.blocks
            if still_s >= self._silent_s:
                with self._lock:
                    self._drop()
                self._tell_lost(f"the speaker {sink.name} takes no sound any more")

    def _open(self) -> bool:
        try:
            sink = SpeakerSink(self._device, clock=self._clock)
            sink.start()
        except DeviceAbsent as error:
            self._tell_lost(str(error))
            return False
        with self._lock:
            sink.stop(self._generation)
            sink.volume = self._volume
            self._sink = sink
        self._backoff.reset()
        if self._lost:
            self._lost = False
            self._events.back(sink.name)
        return True

    def _drop(self) -> None:
        """Close what is open. Called with the lock held."""
        sink, self._sink = self._sink, None
        if sink is not None:
            sink.close()
            self._underruns += sink.underruns
            self._played.extend(sink.played())

    def _tell_lost(self, reason: str) -> None:
        if not self._lost:
            self._lost = True
            self.losses += 1
        self._events.lost(reason)
