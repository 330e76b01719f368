"""Where audio comes from: a WAV file at real-time pace or as fast as it is taken, or the microphone."""

from __future__ import annotations

import logging
import threading
from collections.abc import Generator, Iterator
from pathlib import Path
from typing import Any, Literal

import numpy as np
import soxr
from numpy.typing import NDArray

from models.errors import DeviceAbsent
from pipeline.audio.portaudio import SampleRing, device_info, load_sounddevice
from pipeline.audio.wav import open_wav, stream_wav
from pipeline.clock import Clock, SystemClock
from pipeline.frames import SAMPLE_RATE_HZ, AudioFrame

Audio = NDArray[np.float32]
Pace = Literal["realtime", "fast"]

FRAME_SAMPLES = 512
_NO_SAMPLES: Audio = np.zeros(0, np.float32)
_BUFFERED_NS = 500_000_000
"""A block so much late was not waiting in the device's buffer: what it should have held is lost."""
_SLICES = 12

log = logging.getLogger("cockpit.audio")


class WavSource:
    """A WAV as a stream of frames. Iterate once; the last frame has `end_of_stream` and may be short or empty.

    pace "realtime" hands out each frame when its last sample would have been captured; "fast" at once. `captured_ns` is
    the scheduled time of the frame's last sample in real time, the moment it is handed out otherwise. No silence is
    invented at the end: `end_of_stream` flushes the last word.
    """

    def __init__(
        self,
        path: Path | str,
        *,
        pace: Pace = "realtime",
        frame_samples: int = FRAME_SAMPLES,
        clock: Clock | None = None,
    ) -> None:
        """Raises InputError at once when the file cannot be used (see `pipeline.audio.wav.open_wav`)."""
        if frame_samples < 1:
            raise ValueError(f"frame_samples must be at least 1, not {frame_samples}")
        self.path = Path(path)
        self._pace = pace
        self._frame_samples = frame_samples
        self._clock: Clock = clock or SystemClock()
        open_wav(self.path).close()

    def __iter__(self) -> Iterator[AudioFrame]:
        """Yield the frames. Raises InputError when the samples turn out to be unusable."""
        start_ns = self._clock.now_ns()
        first_sample = 0
        for samples, last in _cut(stream_wav(self.path), self._frame_samples):
            end_ns = start_ns + (first_sample + len(samples)) * 1_000_000_000 // SAMPLE_RATE_HZ
            if self._pace == "realtime":
                self._clock.sleep_until_ns(end_ns)
            captured_ns = end_ns if self._pace == "realtime" else self._clock.now_ns()
            yield AudioFrame(samples, first_sample, captured_ns, end_of_stream=last)
            first_sample += len(samples)


def _cut(blocks: Iterator[Audio], size: int) -> Iterator[tuple[Audio, bool]]:
    """Cut blocks of any length into read-only pieces of `size`, the last one flagged and at most that long."""
    piece, filled = np.empty(size, np.float32), 0
    for block in blocks:
        taken = 0
        while taken < len(block):
            if filled == size:
                piece.setflags(write=False)
                yield piece, False
                piece, filled = np.empty(size, np.float32), 0
            count = min(size - filled, len(block) - taken)
            piece[filled : filled + count] = block[taken : taken + count]
            filled += count
            taken += count
    piece.setflags(write=False)
    yield piece[:filled], True


class MicSource:
    """The microphone at its own rate, resampled to 16 kHz outside the callback. Iterate once; `stop()` ends it.

    The callback only copies into a preallocated ring. `xruns` counts the blocks PortAudio reported as lost,
    `overrun_samples` what the ring had no room for, `missed_samples` what the device did not deliver in time (the
    process or the machine was stopped). What was lost shows as a jump of `first_sample`; the frame behind it has
    `after_loss`. A device that falls silent is opened once more (`reopened`) before it counts as gone.
    """

    def __init__(
        self,
        device: int | str | None = None,
        *,
        frame_samples: int = FRAME_SAMPLES,
        ring_s: float = 2.0,
        silent_device_s: float = 3.0,
        clock: Clock | None = None,
    ) -> None:
        """Raises DeviceUnavailable (exit code 3) when PortAudio or the device is not there."""
        self._module = load_sounddevice()
        info = device_info(self._module, device, "input")
        self.rate_hz = round(info["default_samplerate"])
        self.name = str(info["name"])
        self.xruns = 0
        self.overrun_samples = 0
        self.missed_samples = 0
        self.reopened = 0
        self.steps = 0
        """Looks for sound, and frames: grows while the source is well, whether the device is or not."""
        self._device = device
        self._frame_samples = frame_samples
        self._silent_device_s = silent_device_s
        self._clock: Clock = clock or SystemClock()
        self._ring = SampleRing(int(ring_s * self.rate_hz))
        self._newest = (0, self._clock.now_ns())
        self._last_block_ns: int | None = None
        self._arrived = threading.Event()
        self._stopped = False
        self._first_sample = 0

    def stop(self) -> None:
        """End the stream: the iterator yields what was captured and then its last frame. Any thread."""
        self._stopped = True
        self._arrived.set()

    def __iter__(self) -> Generator[AudioFrame, None, None]:
        """Yield frames until `stop()`. Raises DeviceAbsent when the device cannot be opened or stays silent."""
        silent_before = -1
        while True:
            try:
                with self._open():
                    yield from self._frames()
            except self._module.PortAudioError as error:  # it went away while it was opened or closed
                raise DeviceAbsent(f"the microphone {self.name}: {error}; reconnect it") from error
            if self._stopped:
                return
            if self._ring.written == silent_before:  # nothing came since it was opened again
                raise DeviceAbsent(f"the microphone {self.name} stopped delivering; reconnect it")
            silent_before = self._ring.written
            self.reopened += 1
            log.warning("the microphone %s stopped delivering: opened again", self.name)

    def _open(self) -> Any:
        try:
            return self._module.InputStream(
                device=self._device, samplerate=self.rate_hz, channels=1, dtype="float32", callback=self._captured
            )
        except self._module.PortAudioError as error:
            raise DeviceAbsent(
                f"cannot open microphone {self.name} at {self.rate_hz} Hz: {error}; close what uses it"
            ) from error

    def _captured(self, indata: Audio, _frames: int, _time: Any, status: Any) -> None:
        """PortAudio's callback: copy and leave. indata: float32 (n, 1), valid only during the call."""
        if status and status.input_overflow:
            self.xruns += 1
        now_ns = self._clock.elapsed_ns()
        if self._last_block_ns is not None:
            late_ns = now_ns - self._last_block_ns - len(indata) * 1_000_000_000 // self.rate_hz
            if late_ns > _BUFFERED_NS:
                self.missed_samples += late_ns * self.rate_hz // 1_000_000_000
        self._last_block_ns = now_ns
        self.overrun_samples += len(indata) - self._ring.write(indata[:, 0])
        self._newest = (self._ring.written, self._clock.now_ns())
        self._arrived.set()

    @property
    def lost_samples(self) -> int:
        """At the device's rate: what the ring had no room for, and what was not delivered."""
        return self.overrun_samples + self.missed_samples

    def _wait(self) -> bool:
        """Wait for the callback; False when the device was silent. In slices: a stop of the process costs only one."""
        for _ in range(_SLICES):
            self.steps += 1
            if self._arrived.wait(self._silent_device_s / _SLICES):
                return True
        return False

    def _frames(self) -> Iterator[AudioFrame]:
        """Frames until `stop()` or until the device falls silent."""
        scratch = np.empty(self._ring.capacity, np.float32)
        resampler = None
        if self.rate_hz != SAMPLE_RATE_HZ:
            resampler = soxr.ResampleStream(self.rate_hz, SAMPLE_RATE_HZ, 1, "float32")
        pending, lost_before, after_loss = _NO_SAMPLES, self._lost(), self.reopened > 0
        captured_ns = 0  # the resampler holds back now more, now less: no frame is older than the one before
        while True:
            stopped = self._stopped
            if not stopped and not self._wait():
                return
            self._arrived.clear()
            written, newest_ns = self._newest
            native = scratch[: self._ring.read_into(scratch)]
            behind_ns = (self._ring.consumed - written) * 1_000_000_000 // self.rate_hz
            block = native.copy() if resampler is None else resampler.resample_chunk(native, last=stopped)
            pending = np.concatenate([pending, np.clip(block, -1.0, 1.0)])
            end_ns = newest_ns + behind_ns
            while len(pending) >= self._frame_samples:
                samples, pending = pending[: self._frame_samples], pending[self._frame_samples :]
                captured_ns = max(captured_ns, end_ns - len(pending) * 1_000_000_000 // SAMPLE_RATE_HZ)
                yield AudioFrame(samples, self._first_sample, captured_ns, after_loss=after_loss)
                self._first_sample, after_loss = self._first_sample + len(samples), False
            if stopped:
                yield AudioFrame(pending, self._first_sample, max(captured_ns, end_ns), end_of_stream=True)
                return
            lost = self._lost()
            if lost != lost_before:
                self._first_sample, lost_before, after_loss = self._first_sample + lost - lost_before, lost, True

    def _lost(self) -> int:
        """Samples at 16 kHz that were lost so far."""
        return int((self.overrun_samples + self.missed_samples) * SAMPLE_RATE_HZ // self.rate_hz)
