"""Where reply audio goes: one WAV per turn, or the speaker. Both know what was heard when barge-in cuts a reply.

A sink is fed by one thread (`play`); `stop` and `speaking` may come from another. Frames of a generation older than the
one last stopped are refused.
"""

from __future__ import annotations

import threading
from collections import deque
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from models.errors import DeviceUnavailable, InputError
from pipeline.audio.portaudio import SampleRing, device_info, load_sounddevice
from pipeline.audio.source import Pace
from pipeline.audio.wav import write_wav
from pipeline.clock import Clock, SystemClock
from pipeline.frames import SpeechFrame

Audio = NDArray[np.float32]

STALE = 0
"""What `play` returns for a frame that barge-in has outdated: no time at all."""

_REMEMBERED_REPLIES = 256
_DUCKED = 0.25
"""Loudness of a reply while somebody speaks over it: 12 dB down."""


@dataclass(frozen=True, slots=True)
class Played:
    """What became of one reply. `captured_ns`: when the newest speech behind it was captured, as its frames say."""

    turn_id: int
    generation: int
    captured_ns: int
    first_out_ns: int
    """Monotonic time at which the first sample went out."""
    heard_samples: int
    sample_rate_hz: int
    text: str
    """The clauses of which at least the first sample was heard."""
    complete: bool
    path: Path | None = None


@dataclass(slots=True)
class _Reply:
    """A reply in progress. `start`: position of each clause in samples, with its text."""

    turn_id: int
    generation: int
    captured_ns: int
    rate_hz: int
    first_out_ns: int
    parts: list[Audio] = field(default_factory=list)
    samples: int = 0
    clauses: list[tuple[int, int, str]] = field(default_factory=list)
    ended: bool = False

    def add(self, frame: SpeechFrame, samples: Audio) -> None:
        if frame.text and (not self.clauses or self.clauses[-1][1] != frame.clause_index):
            self.clauses.append((self.samples, frame.clause_index, frame.text))
        self.samples += len(samples)
        self.ended = self.ended or frame.last

    def played(self, heard_samples: int, path: Path | None = None) -> Played:
        text = " ".join(text for start, _, text in self.clauses if start < heard_samples)
        return Played(
            turn_id=self.turn_id,
            generation=self.generation,
            captured_ns=self.captured_ns,
            first_out_ns=self.first_out_ns,
            heard_samples=heard_samples,
            sample_rate_hz=self.rate_hz,
            text=text,
            complete=self.ended and heard_samples >= self.samples,
            path=path,
        )

    def belongs(self, frame: SpeechFrame) -> bool:
        return (self.turn_id, self.generation) == (frame.turn_id, frame.generation)


def _at_rate(frame: SpeechFrame, rate_hz: int) -> Audio:
    """The frame's samples at `rate_hz`: voices of two rates may share one reply."""
    if frame.sample_rate_hz == rate_hz or not len(frame.samples):
        return frame.samples
    resampled: Audio = soxr.resample(frame.samples, frame.sample_rate_hz, rate_hz)
    return resampled


class WavSink:
    """Writes `turn-NNNN.wav` per reply, whole or not at all, at the rate of the reply's first frame.

    pace "realtime" behaves as a speaker would: `speaking()` until the reply would have sounded to its end, and `stop()`
    cuts the file to what would have been heard. "fast" takes a reply as heard once its last frame is in.
    """

    def __init__(self, folder: Path | str, *, pace: Pace = "realtime", clock: Clock | None = None) -> None:
        """Makes `folder`. Raises InputError when it cannot be made."""
        self.folder = Path(folder)
        self._pace = pace
        self._clock: Clock = clock or SystemClock()
        self._lock = threading.Lock()
        self._generation = 0
        self._reply: _Reply | None = None
        self._played: deque[Played] = deque(maxlen=_REMEMBERED_REPLIES)
        try:
            self.folder.mkdir(parents=True, exist_ok=True)
        except OSError as error:
            raise InputError(
                f"cannot write replies to {self.folder} ({error.strerror}); choose another --out"
            ) from error

    def play(self, frame: SpeechFrame) -> int:
        """Take one frame; returns the monotonic ns at which its first sample goes out, `STALE` when it is outdated."""
        with self._lock:
            if frame.generation < self._generation:
                return STALE
            now_ns = self._clock.now_ns()
            if self._reply is not None and not self._reply.belongs(frame):
                self._finish(self._reply.samples)
            if self._reply is None:
                self._reply = _Reply(frame.turn_id, frame.generation, frame.captured_ns, frame.sample_rate_hz, now_ns)
            reply = self._reply
            if reply.samples == 0:
                reply.first_out_ns = now_ns
            samples = _at_rate(frame, reply.rate_hz)
            out_ns = max(now_ns, self._end_ns(reply)) if self._pace == "realtime" else now_ns
            reply.add(frame, samples)
            if len(samples):
                reply.parts.append(samples)
            if frame.last:
                self._write(reply, reply.samples)
                if self._pace == "fast":
                    self._finish(reply.samples)
            return out_ns

    def stop(self, generation: int) -> None:
        """Silence everything older than `generation`: what was not heard by now is cut off the file."""
        with self._lock:
            self._generation = max(self._generation, generation)
            if self._reply is not None and self._reply.generation < generation:
                self._finish(self._heard(self._reply))

    def duck(self, quiet: bool) -> None:
        """A file has no listener whose ear to spare."""

    def speaking(self) -> bool:
        """True while a reply is open or, in real time, still sounding."""
        with self._lock:
            reply = self._reply
            if reply is None or reply.samples == 0:
                return False
            return not reply.ended or (self._pace == "realtime" and self._clock.now_ns() < self._end_ns(reply))

    def played(self) -> tuple[Played, ...]:
        """The newest replies, oldest first; one still sounding is the last, with what was heard so far."""
        with self._lock:
            if self._reply is None:
                return tuple(self._played)
            return (*self._played, self._reply.played(self._heard(self._reply), self._path(self._reply)))

    def close(self) -> None:
        """Write what is left of an unfinished reply."""
        with self._lock:
            if self._reply is not None:
                self._finish(self._reply.samples)

    def _end_ns(self, reply: _Reply) -> int:
        return reply.first_out_ns + reply.samples * 1_000_000_000 // reply.rate_hz

    def _heard(self, reply: _Reply) -> int:
        if self._pace == "fast":
            return reply.samples
        elapsed_ns = self._clock.now_ns() - reply.first_out_ns
        return min(reply.samples, elapsed_ns * reply.rate_hz // 1_000_000_000)

    def _path(self, reply: _Reply) -> Path:
        return self.folder / f"turn-{reply.turn_id:04d}.wav"

    def _write(self, reply: _Reply, heard_samples: int) -> None:
        if heard_samples:
            write_wav(self._path(reply), np.concatenate(reply.parts)[:heard_samples], reply.rate_hz)

    def _finish(self, heard_samples: int) -> None:
        reply, self._reply = self._reply, None
        assert reply is not None
        if not (reply.ended and heard_samples == reply.samples):
            self._write(reply, heard_samples)
        self._played.append(reply.played(heard_samples, self._path(reply) if heard_samples else None))


class SpeakerSink:
    """The speaker at its own rate, through a preallocated ring that the callback empties. `start()` opens the device.

    `underruns` counts the blocks in which a reply was under way but its audio came too late.
    """

    def __init__(self, device: int | str | None = None, *, ring_s: float = 60.0, clock: Clock | None = None) -> None:
        """Raises DeviceUnavailable (exit code 3) when PortAudio or the device is not there."""
        self._module = load_sounddevice()
        info = device_info(self._module, device, "output")
        self.rate_hz = round(info["default_samplerate"])
        self.name = str(info["name"])
        self.latency_ns = round(float(info.get("default_low_output_latency", 0.0)) * 1e9)
        self.underruns = 0
        self._device = device
        self._clock: Clock = clock or SystemClock()
        self._ring = SampleRing(int(ring_s * self.rate_hz))
        self._room = threading.Event()
        self._lock = threading.Lock()
        self._generation = 0
        self._cut_to = 0
        self._gain = 1.0
        self._reply: _Reply | None = None
        self._reply_start = 0
        self._played: deque[Played] = deque(maxlen=_REMEMBERED_REPLIES)
        self._stream: Any = None

    def start(self) -> None:
        """Open the device. Raises DeviceUnavailable."""
        try:
            self._stream = self._module.OutputStream(
                device=self._device, samplerate=self.rate_hz, channels=1, dtype="float32", callback=self._emit
            )
            self._stream.start()
        except self._module.PortAudioError as error:
            raise DeviceUnavailable(
                f"cannot open the speaker {self.name} at {self.rate_hz} Hz: {error}; close what uses it"
            ) from error

    def play(self, frame: SpeechFrame) -> int:
        """Queue one frame, waiting while the ring is full; returns when its first sample goes out (monotonic ns).

        Returns `STALE` when the frame is outdated, also when barge-in came while waiting.
        """
        with self._lock:
            if frame.generation < self._generation:
                return STALE
            if self._reply is None or not self._reply.belongs(frame):
                self._finish()
                self._reply_start = self._ring.written
                self._reply = _Reply(frame.turn_id, frame.generation, frame.captured_ns, self.rate_hz, 0)
            reply = self._reply
            samples = _at_rate(frame, self.rate_hz)
            waiting_ns = len(self._ring) * 1_000_000_000 // self.rate_hz
            out_ns = self._clock.now_ns() + waiting_ns + self.latency_ns
            if reply.samples == 0:
                reply.first_out_ns = out_ns
            reply.add(frame, samples)
        return out_ns if self._queue(samples, frame.generation) else STALE

    def stop(self, generation: int) -> None:
        """Silence everything older than `generation` within one callback."""
        with self._lock:
            self._generation = max(self._generation, generation)
            if self._reply is not None and self._reply.generation < generation:
                self._finish()
                self._cut_to = self._ring.written
            self._room.set()

    def duck(self, quiet: bool) -> None:
        """Play more quietly, within one callback, while somebody speaks over a reply. Any thread."""
        self._gain = _DUCKED if quiet else 1.0

    def speaking(self) -> bool:
        """True while reply audio waits to be heard."""
        return self._ring.written > max(self._ring.consumed, self._cut_to)

    def played(self) -> tuple[Played, ...]:
        """The newest replies, oldest first; one still sounding is the last, with what was heard so far."""
        with self._lock:
            if self._reply is None:
                return tuple(self._played)
            return (*self._played, self._reply.played(self._heard(self._reply)))

    def close(self) -> None:
        """Close the device; what waits is not played."""
        with self._lock:
            self._finish()
        if self._stream is not None:
            self._stream.close()
            self._stream = None

    def _queue(self, samples: Audio, generation: int) -> bool:
        sent = 0
        while True:
            self._room.clear()
            with self._lock:  # so that `stop` cuts behind everything that was written before it
                if generation < self._generation:
                    return False
                sent += self._ring.write(samples[sent:])
            if sent == len(samples):
                return True
            self._room.wait(1.0)

    def _emit(self, outdata: Audio, _frames: int, _time: Any, _status: Any) -> None:
        """PortAudio's callback: hand out what waits, then silence. outdata: float32 (n, 1)."""
        self._ring.skip_to(self._cut_to)
        count = self._ring.read_into(outdata[:, 0])
        outdata[:count] *= self._gain
        outdata[count:] = 0.0
        reply = self._reply
        if count < len(outdata) and reply is not None and not reply.ended and reply.samples:
            self.underruns += 1
        self._room.set()

    def _heard(self, reply: _Reply) -> int:
        return max(0, min(reply.samples, self._ring.consumed - self._reply_start))

    def _finish(self) -> None:
        """Record the reply in progress as heard so far. Called with the lock held."""
        reply, self._reply = self._reply, None
        if reply is not None:
            self._played.append(reply.played(self._heard(reply)))
