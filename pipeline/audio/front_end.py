"""Echo cancelling, noise suppression and gain control between the microphone and the wake word, in blocks of 20 ms.

The reference is what the loudspeaker's callback has handed out (see `pipeline.audio.far_end`). A Kalman filter takes
out what is linear of the echo and leaves the driver whole: that is what is recognised. WebRTC's audio processing module
suppresses the rest behind it, and some of the driver: that decides, with the powers of what is left and of the echo,
whether somebody speaks. While nothing has been played for some seconds both rest, and frames pass as they are, late by
as much as always.
"""

from __future__ import annotations

import importlib
import time
from collections.abc import Callable, Iterable, Iterator
from dataclasses import dataclass, replace
from typing import Any, Literal

import numpy as np
from numpy.typing import NDArray

from models.errors import DeviceUnavailable
from pipeline.audio.far_end import FarEnd, PlayedSound
from pipeline.audio.kalman import KalmanEcho
from pipeline.frames import SAMPLE_RATE_HZ, AudioFrame

Audio = NDArray[np.float32]
Echo = Literal["cancel", "half_duplex", "off"]
Noise = Literal["off", "low", "moderate", "high", "very_high"]
Gain = Literal["off", "adaptive"]

BLOCK_SAMPLES = 320
_CANCELLER_SAMPLES, _SUPPRESSOR_SAMPLES = 128, 96
"""By so much what these parts of the module hand on is behind what they are given."""
_LEVELS: tuple[Noise, ...] = ("low", "moderate", "high", "very_high")
_SOUNDS = 1e-4
"""Amplitude from which the loudspeaker counts as sounding: 80 dB below full scale."""
_ECHO_S = 0.6
"""For so long after the loudspeaker's last sound its echo may be heard: the delay and the cabin's reverberation."""
_REST_S = 2.0
_SETTLING_S = 3.0
"""A canceller that has heard less of the loudspeaker takes too little out: until then nobody is taken to speak."""
_LEFT_OF_ECHO = 0.15
"""Power of the loudest that a settled canceller leaves, against the echo: 8 dB down."""
_ABOVE = 2.0
"""What is left counts as somebody's speech from so much more power than noise and the rest of the echo have."""
_HOLD_BLOCKS = 8
_TAIL_BLOCKS = 5
"""The echo's power falls by a fifth a block behind its loudest."""
_FLOOR_RISES = 1.005
"""A block, while the power of noise is above what it is taken for: 1 dB a second."""
_LONGEST_WAIT_SAMPLES = 960
"""So much of the microphone is held back for a loudspeaker's callback that is late."""
_PRIMED_SAMPLES = 480
_PARTITIONS = 12
"""Blocks of the linear filter: delay and reverberation up to 0.24 s."""
_FORGET = 0.98
_NO_SAMPLES: Audio = np.zeros(0, np.float32)


@dataclass(frozen=True, slots=True)
class FrontConfig:
    """See the profile's section `audio.front`."""

    echo: Echo = "cancel"
    noise: Noise = "off"
    gain: Gain = "off"


@dataclass(frozen=True, slots=True)
class FrontStatus:
    """active: what is done to the echo just now, with the reason. Levels in dB, None before anything was played.

    echo_reduction_db: the microphone's level before and behind the canceller, while something plays.
    block_us: mean time of 10 ms of sound; jumps: how often the reference was aligned anew.
    """

    echo: Echo
    noise: Noise
    gain: Gain
    active: str
    echo_reduction_db: float | None
    block_us: float
    drift_ppm: float
    jumps: int

    def as_json(self) -> dict[str, object]:
        return {name: getattr(self, name) for name in self.__slots__} | {"text": str(self)}

    def __str__(self) -> str:
        reduced = "" if self.echo_reduction_db is None else f", echo {self.echo_reduction_db:.0f} dB lower"
        return f"echo {self.active}{reduced}; noise {self.noise}; gain {self.gain}"


class FrontEnd:
    """Cleans the microphone's frames. One thread takes `frames`; any may ask for `status`.

    played: what the loudspeaker that is open was given; None while there is none.
    """

    def __init__(self, config: FrontConfig, played: Callable[[], PlayedSound | None]) -> None:
        """Raises DeviceUnavailable (exit code 3) when the module is needed and is not installed."""
        self.config = config
        self._played = played
        self._cancels = config.echo == "cancel"
        self._always = config.noise != "off" or config.gain != "off"
        self.delay_samples = _CANCELLER_SAMPLES * self._cancels + _SUPPRESSOR_SAMPLES * (config.noise != "off")
        self._processor = _processor(config) if self._cancels or self._always else None
        self._linear = KalmanEcho(BLOCK_SAMPLES, _PARTITIONS)
        self._far: FarEnd | None = None
        self._jumps = 0
        self._pending = _NO_SAMPLES
        self._past: Audio = np.zeros(_PRIMED_SAMPLES, np.float32)
        self._next_sample: int | None = None
        self._after_loss = False
        self._since_sound = round(_REST_S * SAMPLE_RATE_HZ)
        self._settled_samples = 0
        self._deaf = False
        self._floor = np.inf
        self._echo_power = 0.0
        self._held_blocks = 0
        self._rests = True
        self._power_in = self._power_out = 0.0
        self._block_us = 0.0

    def status(self) -> FrontStatus:
        """What it does just now."""
        far, config = self._far, self.config
        reduction = None
        if self._power_in and self._power_out:
            reduction = round(float(10 * np.log10(self._power_in / self._power_out)), 1)
        jumps, drift_ppm = self._jumps, 0.0
        if far is not None:
            jumps, drift_ppm = jumps + far.jumps, round(far.drift_ppm, 1)
        return FrontStatus(
            config.echo,
            config.noise,
            config.gain,
            self._active(),
            reduction,
            round(self._block_us, 1),
            drift_ppm,
            jumps,
        )

    def frames(self, source: Iterable[AudioFrame]) -> Iterator[AudioFrame]:
        """The frames of `source`, cleaned, in whole blocks of 10 ms; `first_sample` goes on as in `source`."""
        if self.config.echo == "off" and not self._always:
            yield from source
            return
        for frame in source:
            if frame.after_loss or frame.first_sample != self._next_sample:
                yield from self._break(frame)
            self._next_sample = frame.first_sample + len(frame.samples)
            self._pending = np.concatenate([self._pending, frame.samples])
            if frame.end_of_stream:
                yield self._last(frame)
                continue
            count = len(self._pending) // BLOCK_SAMPLES * BLOCK_SAMPLES
            if count:
                cleaned = self._take(count, frame.captured_ns, wait=len(self._pending) < _LONGEST_WAIT_SAMPLES)
                if cleaned is not None:
                    yield cleaned

    # --- from frames to blocks -------------------------------------------------------------------------------------
    def _take(self, count: int, captured_ns: int, *, wait: bool) -> AudioFrame | None:
        """The next `count` samples; None where they wait for the loudspeaker's callback. captured_ns: of the last that
        pends.
        """
        near = self._pending[:count]
        left = len(self._pending) - count
        end_ns = captured_ns - left * 1_000_000_000 // SAMPLE_RATE_HZ
        far = self._far_end(count, end_ns, wait)
        if far is None:
            return None
        self._pending = self._pending[count:]
        samples, detected = self._clean(near, far)
        assert self._next_sample is not None
        after_loss, self._after_loss = self._after_loss, False
        late_ns = self.delay_samples * 1_000_000_000 // SAMPLE_RATE_HZ
        return AudioFrame(
            samples,
            self._next_sample - left - count,
            end_ns - late_ns,
            after_loss=after_loss,
            over_playback=self._echoes,
            for_detection=detected,
        )

    def _last(self, frame: AudioFrame) -> AudioFrame:
        """All that is left, with as many zeros as whole blocks and the module's delay need."""
        length = len(self._pending) + self.delay_samples
        missing = -(-length // BLOCK_SAMPLES) * BLOCK_SAMPLES - len(self._pending)
        self._pending = np.concatenate([self._pending, np.zeros(missing, np.float32)])
        assert self._next_sample is not None
        self._next_sample += missing
        end_ns = frame.captured_ns + missing * 1_000_000_000 // SAMPLE_RATE_HZ
        whole = self._take(len(self._pending), end_ns, wait=False)
        assert whole is not None
        self._next_sample = None
        return replace(_cut(whole, length), captured_ns=frame.captured_ns, end_of_stream=True)

    def _break(self, frame: AudioFrame) -> Iterator[AudioFrame]:
        """Before a frame that does not follow the last one: what pends, and then everything starts anew."""
        if self._next_sample is not None and len(self._pending):
            pending_ns = frame.captured_ns - len(frame.samples) * 1_000_000_000 // SAMPLE_RATE_HZ
            pending = len(self._pending)
            rest = self._last(replace(frame, captured_ns=pending_ns))
            yield replace(_cut(rest, pending), end_of_stream=False)
        self._pending = _NO_SAMPLES
        self._past[:] = 0.0
        self._after_loss = frame.after_loss
        if self._far is not None:
            self._far.restart()
        if self._processor is not None and not self._rests:
            self._processor.process(self._past, np.zeros_like(self._past) if self._cancels else None)

    def _far_end(self, count: int, end_ns: int, wait: bool) -> Audio | None:
        played = self._played()
        if played is None or self.config.echo == "off":
            self._drop_far()
            return np.zeros(count, np.float32)
        if self._far is None or self._far.played is not played:
            self._drop_far()
            self._far = FarEnd(played)
        jumps = self._far.jumps
        far = self._far.samples(count, end_ns, wait=wait)
        if self._far.jumps != jumps:  # the echo's delay is another one: to be learnt anew
            self._settled_samples = 0
        return far

    def _drop_far(self) -> None:
        if self._far is not None:
            self._jumps += self._far.jumps
            self._far = None

    # --- blocks ----------------------------------------------------------------------------------------------------
    @property
    def _echoes(self) -> bool:
        return self._since_sound < _ECHO_S * SAMPLE_RATE_HZ

    def _clean(self, near: Audio, far: Audio) -> tuple[Audio, Audio | None]:
        """What is recognised, and what decides whether somebody speaks where that is something else."""
        sounds = bool(np.abs(far).max() > _SOUNDS)
        self._since_sound = 0 if sounds else self._since_sound + len(far)
        active = self._cancels and self._since_sound < _REST_S * SAMPLE_RATE_HZ
        begin_ns = time.perf_counter_ns()
        if active and self._rests:
            self._linear.begin(self._past[-BLOCK_SAMPLES:])
        linear = self._linear.process(near, far) if active else near
        spoken = self._spoken(near, linear)
        whole = np.concatenate([self._past, linear])
        past, self._past = self._past, whole[-_PRIMED_SAMPLES:]
        start = len(past) - self.delay_samples
        samples, detected = whole[start : start + len(near)], None
        if active or self._always:
            detected = self._process(past, linear, far)
            self._measure(near, detected, sounds and self._cancels, time.perf_counter_ns() - begin_ns)
            if self._always:
                samples = detected
            if self._echoes and self._cancels:
                detected = detected * np.repeat(spoken, BLOCK_SAMPLES)
        else:
            self._rests = True
        half_duplex = self.config.echo == "half_duplex"
        if self._echoes and (half_duplex or (self._cancels and not self._settled)):
            self._deaf = True
            if half_duplex:
                return np.zeros(len(near), np.float32), None
        elif self._deaf:  # whoever speaks now may have begun before
            self._deaf, self._after_loss = False, True
        return samples, detected

    def _spoken(self, near: Audio, linear: Audio) -> Audio:
        """For each block 1 where what is left is louder than noise and the rest of an echo explain, else 0; float32."""
        left = np.mean(linear.reshape(-1, BLOCK_SAMPLES) ** 2, axis=1)
        echo = np.mean((near - linear).reshape(-1, BLOCK_SAMPLES) ** 2, axis=1)
        spoken = np.zeros(len(left), np.float32)
        for place, (power, echo_power) in enumerate(zip(left.tolist(), echo.tolist(), strict=True)):
            self._floor = min(power, self._floor * _FLOOR_RISES)
            self._echo_power = max(echo_power, self._echo_power * (1.0 - 1.0 / _TAIL_BLOCKS))
            loud = power > _ABOVE * (self._floor + _LEFT_OF_ECHO * self._echo_power)
            self._held_blocks = _HOLD_BLOCKS if loud and self._settled else max(0, self._held_blocks - 1)
            spoken[place] = self._held_blocks > 0
        return spoken

    @property
    def _settled(self) -> bool:
        return self._settled_samples >= _SETTLING_S * SAMPLE_RATE_HZ

    def _process(self, past: Audio, near: Audio, far: Audio) -> Audio:
        assert self._processor is not None
        if self._rests:
            self._rests = False
            self._processor.process(past, np.zeros_like(past) if self._cancels else None)
        cleaned: Audio = self._processor.process(near, far if self._cancels else None)
        return cleaned

    def _measure(self, near: Audio, cleaned: Audio, echo: bool, took_ns: int) -> None:
        self._block_us += (took_ns / 1e3 / (len(near) / 160) - self._block_us) * 0.05
        if echo:
            self._settled_samples += len(near)
            self._power_in = self._power_in * _FORGET + float(np.dot(near, near))
            self._power_out = self._power_out * _FORGET + float(np.dot(cleaned, cleaned))

    def _active(self) -> str:
        if self.config.echo == "off":
            return "is not cancelled: audio.front.echo is off"
        if self._played() is None:
            return "is not cancelled: there is no speaker"
        if self.config.echo == "half_duplex":
            return "is kept out: the microphone is not heard while the speaker sounds"
        return "is cancelled"


def _cut(frame: AudioFrame, length: int) -> AudioFrame:
    detected = frame.for_detection
    return replace(frame, samples=frame.samples[:length], for_detection=None if detected is None else detected[:length])


def _processor(config: FrontConfig) -> Any:
    try:
        module = importlib.import_module("pywebrtc_audio")
    except ImportError as error:
        raise DeviceUnavailable(
            f'no echo canceller ({error}); install it: pip install "cockpit-voice[audio]", or set audio.front.echo to '
            "half_duplex, or to off where the microphone does not hear the speaker"
        ) from error
    return module.AudioProcessor(
        sample_rate=SAMPLE_RATE_HZ,
        echo_cancellation=config.echo == "cancel",
        noise_suppression=config.noise != "off",
        ns_level=_LEVELS.index(config.noise) if config.noise != "off" else 0,
        auto_gain_control=config.gain == "adaptive",
    )
