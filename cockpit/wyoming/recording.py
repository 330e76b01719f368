"""Sound that arrives in chunks of any format, as what the recogniser takes."""

from __future__ import annotations

from typing import Any

import numpy as np
import soxr
from numpy.typing import NDArray

from models.engines.base import Audio
from models.errors import InputError
from pipeline.frames import SAMPLE_RATE_HZ

MOST_SECONDS = 120.0
"""What a client says in one go; the API takes longer recordings."""
_FULL_SCALE = {1: 1 << 7, 2: 1 << 15, 3: 1 << 23, 4: 1 << 31}


class Recording:
    """One audio stream of a client. Format: rate in Hz, width in bytes a sample, channels."""

    def __init__(self, data: dict[str, Any]) -> None:
        """data: of the event `audio-start`. Raises InputError for a format that is not read."""
        self._format = _format(data)
        rate_hz, _, _ = self._format
        self._resampler = soxr.ResampleStream(rate_hz, SAMPLE_RATE_HZ, 1) if rate_hz != SAMPLE_RATE_HZ else None
        self._pieces: list[Audio] = []
        self._samples = 0
        self._rest = b""

    def push(self, data: dict[str, Any], payload: bytes) -> None:
        """One chunk; half a sample at its end waits for the next. Raises InputError."""
        if _format(data) != self._format:
            raise InputError(f"the format changes in the midst of the sound: {self._format}, then {_format(data)}")
        rate_hz, width, channels = self._format
        sound = self._rest + payload
        whole = len(sound) - len(sound) % (width * channels)
        self._rest = sound[whole:]
        samples = _mono(sound[:whole], width, channels)
        self._samples += len(samples)
        if self._samples > MOST_SECONDS * rate_hz:
            raise InputError(f"recordings of more than {MOST_SECONDS:g} s are not taken")
        self._keep(samples, last=False)

    def whole(self) -> Audio:
        """Float32 (n,) at 16 kHz. Raises InputError when there is no sound in it."""
        self._keep(np.zeros(0, np.float32), last=True)
        samples = np.concatenate(self._pieces) if self._pieces else np.zeros(0, np.float32)
        if not len(samples):
            raise InputError("no sound came between audio-start and audio-stop")
        return samples

    def _keep(self, samples: Audio, *, last: bool) -> None:
        if self._resampler is not None:
            samples = self._resampler.resample_chunk(samples, last=last)
        if len(samples):
            self._pieces.append(np.ascontiguousarray(samples, np.float32))


def _format(data: dict[str, Any]) -> tuple[int, int, int]:
    rate_hz, width, channels = (data.get(name) for name in ("rate", "width", "channels"))
    if not isinstance(rate_hz, int) or not 4_000 <= rate_hz <= 384_000:
        raise InputError(f"rate is to be 4000 to 384000 Hz, not {str(rate_hz)[:40]}")
    if not isinstance(width, int) or width not in _FULL_SCALE:
        raise InputError(f"width is to be 1 to 4 bytes, not {str(width)[:40]}")
    if not isinstance(channels, int) or not 1 <= channels <= 8:
        raise InputError(f"channels is to be 1 to 8, not {str(channels)[:40]}")
    return rate_hz, width, channels


def _mono(sound: bytes, width: int, channels: int) -> Audio:
    """Little-endian PCM as float32 in [-1, 1], the mean of its channels. 8-bit sound is unsigned, as in WAV files."""
    samples: NDArray[np.float32]
    if width == 1:
        samples = np.frombuffer(sound, np.uint8).astype(np.float32) - 128
    elif width == 3:
        padded = np.zeros((len(sound) // 3, 4), np.uint8)
        padded[:, 1:] = np.frombuffer(sound, np.uint8).reshape(-1, 3)
        samples = (padded.view("<i4")[:, 0] >> 8).astype(np.float32)
    else:
        samples = np.frombuffer(sound, f"<i{width}").astype(np.float32)
    mono: Audio = (samples.reshape(-1, channels).mean(axis=1) / _FULL_SCALE[width]).astype(np.float32)
    return mono
