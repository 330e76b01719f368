"""Where reply audio goes: one WAV per turn, or the speaker. Both know what was heard when barge-in cuts a reply.

A sink is fed by one thread (`play`); `stop` and `speaking` may come from another. Frames of a generation older than the
one last stopped are refused.

Prompts of guidance are fed by a thread of their own (`prompt`). A WAV sink writes each into `guidance-NNNN.wav`, and
the file of a reply that one came into holds what was heard: the prompt, then the clause that was cut, from its start.
"""

from __future__ import annotations

import threading
from collections import deque
from contextlib import suppress
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from models.errors import DeviceAbsent, InputError
from pipeline.audio.far_end import PlayedSound
from pipeline.audio.portaudio import device_info, load_sounddevice
from pipeline.audio.prompts import UNDER_A_PROMPT, PromptMixer, SpokenPrompt
from pipeline.audio.source import Pace
from pipeline.audio.wav import write_wav
from pipeline.clock import Clock, SystemClock
from pipeline.frames import OverReply, PromptFrame, SpeechFrame

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
    mixed: list[tuple[int, Audio]] = field(default_factory=list)
    """Prompts under which it goes on quietly: where each begins, which may be before the reply, and its samples."""
    starts: list[int] = field(default_factory=list)
    """Where clauses begin, and where they begin anew after a prompt."""

    def add(self, frame: SpeechFrame, samples: Audio) -> None:
        if frame.text and (not self.clauses or self.clauses[-1][1] != frame.clause_index):
            self.clauses.append((self.samples, frame.clause_index, frame.text))
            self.starts.append(self.samples)
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

    def clause_start(self, position: int) -> int:
        """Of the clause that sounds at `position`; the position itself where nothing is left of one."""
        if position >= self.samples:
            return position
        return max((start for start in self.starts if start <= position), default=0)

    def clause_end(self, position: int) -> int:
        """Of the clause that sounds at `position`; the position itself between two of them."""
        return min((start for start in self.starts if start >= position), default=max(self.samples, position))

    def insert(self, at: int, samples: Audio, resume: int) -> None:
        """`samples` are heard at `at`, and then the reply goes on from `resume`, which is no later."""
        whole = self.audio()
        added = len(samples) + at - resume
        self.parts = [whole[:at], samples, whole[resume:]]
        self.samples += added
        self._shift(at, added)
        if resume < at:
            self.starts.append(at + len(samples))

    def remove(self, start: int, stop: int) -> None:
        """These samples are not heard after all. They hold no beginning of a clause."""
        whole = self.audio()
        self.parts = [whole[:start], whole[stop:]]
        self.samples -= stop - start
        self._shift(stop, start - stop)

    def _shift(self, begin: int, by: int) -> None:
        self.starts = [start + by * (start >= begin) for start in self.starts]
        self.clauses = [(start + by * (start >= begin), index, text) for start, index, text in self.clauses]

    def audio(self) -> Audio:
        """All of it so far, float32 (samples,)."""
        whole: Audio = np.concatenate(self.parts) if self.parts else np.zeros(0, np.float32)
        for at, prompt in self.mixed:
            first, last = max(0, at), min(len(whole), at + len(prompt))
            if first < last:
                whole[first:last] = whole[first:last] * UNDER_A_PROMPT + prompt[first - at : last - at]
        return whole


def _at_rate(frame: SpeechFrame | PromptFrame, rate_hz: int) -> Audio:
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
        self._prompt: SpokenPrompt | None = None
        self._stopped_prompt = -1
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
                reply.first_out_ns = self._beginning(reply, now_ns)
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

    def prompt(self, frame: PromptFrame) -> int:
        """See cockpit.runtime.Sink. Into the reply that sounds, and into a file of its own."""
        with self._lock:
            if frame.prompt_id <= self._stopped_prompt:
                return STALE
            now_ns = self._clock.now_ns()
            prompt = self._prompt
            if prompt is None or prompt.prompt_id != frame.prompt_id:
                self._write_prompt(now_ns)
                due_ns = now_ns + self._prompt_wait_ns(frame.over_reply, now_ns)
                prompt = self._prompt = SpokenPrompt(frame.prompt_id, frame.sample_rate_hz, frame.over_reply, due_ns)
            start_ns = max(now_ns, prompt.end_ns) if self._pace == "realtime" else now_ns
            samples = _at_rate(frame, prompt.rate_hz)
            if len(samples) and self._reply is not None and self._pace == "realtime":
                self._into_reply(self._reply, prompt, samples, start_ns)
            prompt.add(samples, start_ns)
            if frame.last:
                prompt.ended = True
                self._write_prompt(max(now_ns, prompt.end_ns))
            return start_ns

    def stop_prompt(self) -> int:
        """See cockpit.runtime.Sink."""
        with self._lock:
            now_ns = self._clock.now_ns()
            prompt, reply = self._prompt, self._reply
            if prompt is None or not self._prompt_sounds(now_ns):
                return -1
            if reply is not None and prompt.at >= 0:
                heard_to = max(0, self._position(reply, now_ns))
                if heard_to < prompt.at:
                    reply.remove(heard_to, prompt.at)
            reply_mixed = [] if reply is None else reply.mixed
            if reply is not None and reply_mixed and prompt.over_reply == "duck":
                at, samples = reply_mixed[-1]
                reply_mixed[-1] = (at, samples[: max(0, self._position(reply, now_ns) - at)])
            if reply is not None and reply.ended:
                self._write(reply, reply.samples)
            self._write_prompt(now_ns)
            prompt.ended, prompt.end_ns = True, now_ns
            self._stopped_prompt = prompt.prompt_id
            return prompt.prompt_id

    def prompting(self) -> bool:
        """See cockpit.runtime.Sink."""
        with self._lock:
            return self._prompt_sounds(self._clock.now_ns())

    def prompt_wait_ns(self, over_reply: OverReply) -> int:
        """See cockpit.runtime.Sink."""
        with self._lock:
            return self._prompt_wait_ns(over_reply, self._clock.now_ns())

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
            self._write_prompt(self._clock.now_ns())

    def _prompt_sounds(self, now_ns: int) -> bool:
        prompt = self._prompt
        if prompt is None or self._pace == "fast":
            return False
        return not prompt.ended or now_ns < prompt.end_ns

    def _prompt_wait_ns(self, over_reply: OverReply, now_ns: int) -> int:
        if self._pace == "fast":
            return 0
        wait_ns = 0 if self._prompt is None else max(0, self._prompt.end_ns - now_ns)
        reply = self._reply
        if over_reply != "queue" or wait_ns or reply is None or now_ns >= self._end_ns(reply):
            return wait_ns
        position = max(0, self._position(reply, now_ns))
        return (reply.clause_end(position) - position) * 1_000_000_000 // reply.rate_hz

    def _beginning(self, reply: _Reply, now_ns: int) -> int:
        """When a reply's first sample is heard: after a prompt that sounds, or quietly under it."""
        prompt = self._prompt
        if prompt is None or not self._prompt_sounds(now_ns):
            return now_ns
        if prompt.over_reply != "duck":
            return max(now_ns, prompt.end_ns)
        left = prompt.heard(prompt.end_ns)[len(prompt.heard(now_ns)) :]
        reply.mixed.append((0, soxr.resample(left, prompt.rate_hz, reply.rate_hz)))
        return now_ns

    def _into_reply(self, reply: _Reply, prompt: SpokenPrompt, samples: Audio, start_ns: int) -> None:
        """What the reply sounds like with these samples of a prompt, which are heard from `start_ns` on."""
        samples = soxr.resample(samples, prompt.rate_hz, reply.rate_hz)
        position = self._position(reply, start_ns)
        if prompt.over_reply == "duck":
            reply.mixed.append((position, samples))
        elif reply.samples == 0 or (prompt.at < 0 and position <= 0):  # it has not begun: it begins later
            reply.first_out_ns = max(reply.first_out_ns, start_ns + len(samples) * 1_000_000_000 // reply.rate_hz)
        elif prompt.at >= 0:
            gap = np.zeros(max(0, position - prompt.at), np.float32)
            reply.insert(prompt.at, np.concatenate([gap, samples]), prompt.at)
            prompt.at += len(gap) + len(samples)
        elif position < reply.samples or not reply.ended:
            at = min(position, reply.samples)
            gap = np.zeros(position - at, np.float32)
            resume = reply.clause_start(at) if prompt.over_reply == "interrupt" else at
            reply.insert(at, np.concatenate([gap, samples]), resume)
            prompt.at = at + len(gap) + len(samples)
        if reply.ended:
            self._write(reply, reply.samples)

    def _write_prompt(self, heard_to_ns: int) -> None:
        prompt = self._prompt
        if prompt is not None and len(audio := prompt.heard(heard_to_ns)):
            write_wav(self.folder / f"guidance-{prompt.prompt_id:04d}.wav", audio, prompt.rate_hz)

    def _position(self, reply: _Reply, at_ns: int) -> int:
        return (at_ns - reply.first_out_ns) * reply.rate_hz // 1_000_000_000

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
            write_wav(self._path(reply), reply.audio()[:heard_samples], reply.rate_hz)

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
        self.rate_hz: int = round(info["default_samplerate"])
        self.name = str(info["name"])
        self.latency_ns = round(float(info.get("default_low_output_latency", 0.0)) * 1e9)
        self.underruns = 0
        self.blocks = 0
        """How often the device has asked for sound; stands still when it is gone."""
        self.closed = False
        self.sounded = PlayedSound(self.rate_hz)
        """What the device was given, silence included."""
        self._device = device
        self._clock: Clock = clock or SystemClock()
        self._mixer = PromptMixer(self.rate_hz, ring_s)
        self._ring = self._mixer.replies
        self._room = threading.Event()
        self._lock = threading.Lock()
        self._generation = 0
        self._stopped_prompt = -1
        self._gain = 1.0
        self.volume = 1.0
        """Of replies and prompts: a factor in [0, 1]. Any thread may set it; it counts within one callback."""
        self._reply: _Reply | None = None
        self._reply_start = 0
        self._played: deque[Played] = deque(maxlen=_REMEMBERED_REPLIES)
        self._stream: Any = None

    def start(self) -> None:
        """Open the device. Raises DeviceAbsent."""
        try:
            self._stream = self._module.OutputStream(
                device=self._device, samplerate=self.rate_hz, channels=1, dtype="float32", callback=self._emit
            )
            self._stream.start()
        except self._module.PortAudioError as error:
            raise DeviceAbsent(
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
            waiting = self._mixer.samples_until_reply()
            out_ns = self._clock.now_ns() + waiting * 1_000_000_000 // self.rate_hz + self.latency_ns
            if reply.samples == 0:
                reply.first_out_ns = out_ns
            clauses = len(reply.clauses)
            reply.add(frame, samples)
            if len(reply.clauses) > clauses:
                self._mixer.begin_clause()
        return out_ns if self._queue(samples, frame.generation) else STALE

    def stop(self, generation: int) -> None:
        """Silence everything older than `generation` within one callback."""
        with self._lock:
            self._generation = max(self._generation, generation)
            if self._reply is not None and self._reply.generation < generation:
                self._finish()
                self._mixer.cut_to = self._ring.written
            self._room.set()

    def duck(self, quiet: bool) -> None:
        """Play more quietly, within one callback, while somebody speaks over a reply. Any thread."""
        self._gain = _DUCKED if quiet else 1.0

    def speaking(self) -> bool:
        """True while reply audio waits to be heard."""
        return self._ring.written > max(self._ring.consumed, self._mixer.cut_to)

    def prompt(self, frame: PromptFrame) -> int:
        """See cockpit.runtime.Sink. Waits while the ring of prompts is full."""
        samples = _at_rate(frame, self.rate_hz)
        with self._lock:
            if frame.prompt_id <= self._stopped_prompt:
                return STALE
            waiting = self._mixer.samples_until_prompt(frame.over_reply)
            self._mixer.begin_prompt(frame.prompt_id, frame.over_reply)
            out_ns = self._clock.now_ns() + waiting * 1_000_000_000 // self.rate_hz + self.latency_ns
        sent = 0
        while sent < len(samples):
            self._room.clear()
            with self._lock:
                if frame.prompt_id <= self._stopped_prompt or self.closed:
                    return STALE
                sent += self._mixer.prompts.write(samples[sent:])
            if sent < len(samples):
                self._room.wait(1.0)
        if frame.last:
            with self._lock:
                self._mixer.end_prompt()
        return out_ns

    def stop_prompt(self) -> int:
        """See cockpit.runtime.Sink."""
        with self._lock:
            stopped = self._mixer.stop_prompt()
            self._stopped_prompt = max(self._stopped_prompt, stopped)
        self._room.set()
        return stopped

    def prompting(self) -> bool:
        """See cockpit.runtime.Sink."""
        return self._mixer.sounding

    def prompt_wait_ns(self, over_reply: OverReply) -> int:
        """See cockpit.runtime.Sink."""
        with self._lock:
            return self._mixer.samples_until_prompt(over_reply) * 1_000_000_000 // self.rate_hz

    def played(self) -> tuple[Played, ...]:
        """The newest replies, oldest first; one still sounding is the last, with what was heard so far."""
        with self._lock:
            if self._reply is None:
                return tuple(self._played)
            return (*self._played, self._reply.played(self._heard(self._reply)))

    def close(self) -> None:
        """Close the device; what waits is not played, and whoever waits for room goes on."""
        with self._lock:
            self.closed = True
            self._finish()
        self._room.set()
        stream, self._stream = self._stream, None
        if stream is not None:
            with suppress(self._module.PortAudioError):  # of a device that is gone already
                stream.close()

    def _queue(self, samples: Audio, generation: int) -> bool:
        sent = 0
        while True:
            self._room.clear()
            with self._lock:  # so that `stop` cuts behind everything that was written before it
                if generation < self._generation or self.closed:
                    return False
                self._mixer.keep_running_clause()
                sent += self._ring.write(samples[sent:])
            if sent == len(samples):
                return True
            self._room.wait(1.0)

    def _emit(self, outdata: Audio, _frames: int, _time: Any, _status: Any) -> None:
        """PortAudio's callback: hand out what waits, then silence. outdata: float32 (n, 1)."""
        self.blocks += 1
        count = self._mixer.render(outdata[:, 0], self._gain)
        outdata[count:] = 0.0
        if self.volume != 1.0:
            outdata[:count] *= self.volume
        self.sounded.wrote(outdata[:, 0], self._clock.now_ns())
        reply = self._reply
        waited = reply is not None and not reply.ended and reply.samples > 0
        if count < len(outdata) and waited and not self._mixer.sounding:
            self.underruns += 1
        self._room.set()

    def _heard(self, reply: _Reply) -> int:
        return max(0, min(reply.samples, self._ring.furthest - self._reply_start))

    def _finish(self) -> None:
        """Record the reply in progress as heard so far. Called with the lock held."""
        reply, self._reply = self._reply, None
        if reply is not None:
            self._played.append(reply.played(self._heard(reply)))
