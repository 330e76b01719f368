"""A cabin in which the microphone hears the loudspeaker: a synthetic echo path, and two devices with their own clocks.

No recording is needed: a direct sound, early reflections and a decaying tail, behind a loudspeaker that distorts. The
same seed gives the same cabin.
"""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass

import numpy as np
import soxr
from numpy.typing import NDArray

from pipeline.audio.far_end import PlayedSound
from pipeline.frames import SAMPLE_RATE_HZ, AudioFrame

Audio = NDArray[np.float32]

NS_PER_S = 1_000_000_000
BLOCK_S = 0.01
FRAME_SAMPLES = 512
BEGIN_NS = 1_000_000_000


@dataclass(frozen=True, slots=True)
class EchoPath:
    """From what a loudspeaker is given to what the microphone hears of it.

    delay_ms: of the devices' buffers and the air. decay_ms: until the tail is 60 dB down; a car takes 50 to 100 ms.
    distortion: share of the loudspeaker's second and third harmonics at full scale.
    """

    delay_ms: float = 60.0
    decay_ms: float = 80.0
    distortion: float = 0.05
    seed: int = 7

    def response(self) -> Audio:
        """The impulse response behind the delay, float32, of unit energy."""
        random = np.random.default_rng(self.seed)
        length = round(self.decay_ms * SAMPLE_RATE_HZ / 1000)
        seconds = np.arange(length) / SAMPLE_RATE_HZ
        tail = random.standard_normal(length) * 10.0 ** (-3.0 * seconds / (self.decay_ms / 1000.0)) * 0.15
        tail[: SAMPLE_RATE_HZ // 1000] = 0.0
        tail[0] = 1.0
        for reflection in random.integers(16, 160, 6):
            tail[reflection] += random.uniform(-0.5, 0.5)
        unit: Audio = (tail / np.sqrt(np.sum(tail**2))).astype(np.float32)
        return unit

    def apply(self, samples: Audio) -> Audio:
        """What arrives of float32 (n,) at 16 kHz: float32, longer by the delay and the tail."""
        driven = samples + self.distortion * (samples**2 - samples**3)
        size = len(samples) + round(self.decay_ms * SAMPLE_RATE_HZ / 1000)
        folded = np.fft.irfft(np.fft.rfft(driven, size) * np.fft.rfft(self.response(), size), size)
        silence = np.zeros(round(self.delay_ms * SAMPLE_RATE_HZ / 1000), np.float32)
        return np.concatenate([silence, folded.astype(np.float32)])


@dataclass(frozen=True, slots=True)
class Loudspeaker:
    """A device that plays `samples` from `start_s` on, at its own rate, which is off by `ppm`; silence before it."""

    sound: PlayedSound
    samples: Audio
    start_s: float = 0.0
    ppm: float = 0.0

    def at_microphone(self) -> Audio:
        """The samples as the microphone's clock sees them, float32 at 16 kHz."""
        rate_hz = self.sound.rate_hz * (1.0 + self.ppm * 1e-6)
        played: Audio = soxr.resample(self.samples, rate_hz, SAMPLE_RATE_HZ, quality="VHQ").astype(np.float32)
        return np.concatenate([np.zeros(round(self.start_s * SAMPLE_RATE_HZ), np.float32), played])


def heard(near: Audio, loudspeakers: Sequence[Loudspeaker], path: EchoPath, echo_gain: float) -> tuple[Audio, Audio]:
    """The microphone's samples, as long as `near`, and the echo in them. Not clipped."""
    echo = np.zeros(len(near), np.float32)
    for loudspeaker in loudspeakers:
        arriving = path.apply(loudspeaker.at_microphone())[: len(near)]
        echo[: len(arriving)] += echo_gain * arriving
    return near + echo, echo


def frames(
    microphone: Audio,
    loudspeakers: Sequence[Loudspeaker],
    *,
    frame_samples: int = FRAME_SAMPLES,
    late_ms: float = 0.0,
    seed: int = 3,
) -> Iterator[AudioFrame]:
    """The microphone's frames, while the loudspeakers are given their blocks at the time they are due.

    late_ms: callbacks of both devices come up to so much later than they should.
    """
    random = np.random.default_rng(seed)
    feeding = [_blocks(loudspeaker, random, late_ms) for loudspeaker in loudspeakers]
    due = [next(blocks, None) for blocks in feeding]
    for start in range(0, len(microphone), frame_samples):
        part = microphone[start : start + frame_samples]
        last = start + frame_samples >= len(microphone)
        now_ns = BEGIN_NS + (start + len(part)) * NS_PER_S // SAMPLE_RATE_HZ + round(random.uniform(0, late_ms) * 1e6)
        for place, loudspeaker in enumerate(loudspeakers):
            while (block := due[place]) is not None and block[0] <= now_ns:
                loudspeaker.sound.wrote(block[1], block[0])
                due[place] = next(feeding[place], None)
        yield AudioFrame(part, start, now_ns, end_of_stream=last)


def _blocks(loudspeaker: Loudspeaker, random: np.random.Generator, late_ms: float) -> Iterator[tuple[int, Audio]]:
    """When each block is asked for, and its samples; silence before the start and for ever behind the end."""
    sound, size = loudspeaker.sound, round(BLOCK_S * loudspeaker.sound.rate_hz)
    silence = np.zeros(round(loudspeaker.start_s * sound.rate_hz * (1.0 + loudspeaker.ppm * 1e-6)), np.float32)
    samples = np.concatenate([silence, loudspeaker.samples])
    number = 0
    while True:
        block = samples[number * size : (number + 1) * size]
        block = np.concatenate([block, np.zeros(size - len(block), np.float32)])
        due_ns = BEGIN_NS + number * BLOCK_S * NS_PER_S / (1.0 + loudspeaker.ppm * 1e-6)
        yield round(due_ns + random.uniform(0, late_ms) * 1e6), block
        number += 1
