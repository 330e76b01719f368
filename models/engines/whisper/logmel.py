"""Whisper's log-mel spectrogram in numpy: 25 ms Hann windows every 10 ms, 80 slaney mel bands up to 8 kHz.

Source: the reference `audio.py` of Whisper (constants) and Slaney's Auditory Toolbox (mel scale).
"""

from __future__ import annotations

from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000
WINDOW_SAMPLES = 400
HOP_SAMPLES = 160
MEL_BANDS = 80


def _hz_to_mel(hz: NDArray[np.float64]) -> NDArray[np.float64]:
    """Slaney's scale: linear below 1 kHz (15 mel), logarithmic above with 27 steps per factor of 6.4."""
    linear = hz * 3.0 / 200.0
    log = 15.0 + np.log(np.maximum(hz, 1.0) / 1000.0) * 27.0 / np.log(6.4)
    return np.where(hz < 1000.0, linear, log)


def _mel_to_hz(mel: NDArray[np.float64]) -> NDArray[np.float64]:
    return np.where(mel < 15.0, mel * 200.0 / 3.0, 1000.0 * np.exp((mel - 15.0) * np.log(6.4) / 27.0))


@lru_cache(maxsize=4)
def mel_filters(bands: int = MEL_BANDS) -> NDArray[np.float32]:
    """Triangular filters (bins, bands) float32 with equal area, over the power spectrum's WINDOW_SAMPLES/2+1 bins."""
    bins_hz = np.fft.rfftfreq(WINDOW_SAMPLES, 1.0 / RATE_HZ)
    top = _hz_to_mel(np.array([RATE_HZ / 2.0]))[0]
    edges_hz = _mel_to_hz(np.linspace(0.0, top, bands + 2))
    rise = (bins_hz[:, None] - edges_hz[None, :-2]) / np.diff(edges_hz)[None, :-1]
    fall = (edges_hz[None, 2:] - bins_hz[:, None]) / np.diff(edges_hz)[None, 1:]
    area = 2.0 / (edges_hz[2:] - edges_hz[:-2])
    return np.ascontiguousarray(np.maximum(0.0, np.minimum(rise, fall)) * area, dtype=np.float32)


@lru_cache(maxsize=1)
def hann_window() -> NDArray[np.float32]:
    """The window of one frame (WINDOW_SAMPLES,) float32."""
    return np.asarray(np.hanning(WINDOW_SAMPLES + 1)[:-1], dtype=np.float32)


def centred(samples: NDArray[np.float32], frames: int) -> NDArray[np.float32]:
    """`samples` (n,) and silence up to `frames` hops, as the windows see it: float32 (frames * HOP + WINDOW - HOP,).

    Audio beyond `frames` hops is left out. As in the reference the signal is centred by mirroring its edges.
    """
    length, half = frames * HOP_SAMPLES, WINDOW_SAMPLES // 2
    padded = np.zeros(length + WINDOW_SAMPLES, dtype=np.float32)
    kept = min(samples.size, length)
    padded[half : half + kept] = samples[:kept]
    padded[:half] = padded[half + 1 : WINDOW_SAMPLES + 1][::-1]
    padded[half + length :] = padded[length - 1 : half + length - 1][::-1]
    return padded[: length + WINDOW_SAMPLES - HOP_SAMPLES]


def log_mel(samples: NDArray[np.float32], frames: int, bands: int = MEL_BANDS) -> NDArray[np.float32]:
    """Spectrogram (1, bands, frames) float32 of `centred(samples, frames)` at 16 kHz.

    As in the reference the values are clamped to 8 decades below the loudest one.
    """
    windows = np.lib.stride_tricks.sliding_window_view(centred(samples, frames), WINDOW_SAMPLES)[::HOP_SAMPLES]
    spectrum = np.fft.rfft(windows * hann_window(), axis=-1)
    power = spectrum.real**2 + spectrum.imag**2
    log = np.log10(np.maximum(power @ mel_filters(bands), 1e-10))
    log = (np.maximum(log, log.max() - 8.0) + 4.0) / 4.0
    return np.ascontiguousarray(log.T[None], dtype=np.float32)
