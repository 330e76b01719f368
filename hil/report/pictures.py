"""The pictures of a report, as numbers for its page: waveform, spectrogram, waterfall, distribution."""

from __future__ import annotations

import base64
import struct
import zlib
from collections.abc import Mapping, Sequence
from typing import Any

import numpy as np
from numpy.typing import NDArray

from hil.acoustics.noise import Audio, active_level
from pipeline.frames import SAMPLE_RATE_HZ

_WINDOW, _RANGE_DB = 256, 80.0
"""Of the spectrogram: samples of one column, and how far down black is."""
STAGE_COLOURS = {"endpoint": "#8c959f", "asr": "#0969da", "llm": "#8250df", "tts_first": "#bf8700"}
_BESIDE = ("asr",)
"""Runs inside the trailing silence: its bar takes no place of its own."""
WIDTH, _WAVE, _SHARES, _ROW = 720, 60, 120, 16
_MOST_BARS = 20
_ENOUGH = 10
"""So many turns must there be for a distribution to say something."""


def wave(sound: Audio, times: Sequence[float]) -> dict[str, Any]:
    """What was heard, with the end of speech and the first sound of the first reply."""
    peaks = np.array([np.abs(part).max(initial=0.0) for part in np.array_split(sound, WIDTH)])
    heights = peaks / (peaks.max() or 1.0) * _WAVE / 2
    bars = (f"M{x} {_WAVE / 2 - height:.1f}v{2 * height:.1f}" for x, height in enumerate(heights))
    end = speech_end(sound)
    marks = [(end, "end of speech")]
    if times:
        marks.append((end + times[0] / 1e3, f"first audio after {times[0]:.0f} ms"))
    scale = WIDTH / (len(sound) / SAMPLE_RATE_HZ)
    placed = [{"x": round(min(at * scale, WIDTH)), "text": text} for at, text in marks]
    return {"height": _WAVE, "path": "".join(bars), "marks": placed, "spectrogram": spectrogram(sound)}


def spectrogram(sound: Audio) -> str:
    """A PNG as a data URI: time to the right, 0 to 8 kHz upwards, 80 dB from dark to bright."""
    hop = max(1, len(sound) // WIDTH)
    starts = np.arange(0, max(1, len(sound) - _WINDOW), hop)
    frames = np.lib.stride_tricks.sliding_window_view(np.pad(sound, (0, _WINDOW)), _WINDOW)[starts]
    power = np.abs(np.fft.rfft(frames * np.hanning(_WINDOW), axis=1)) ** 2
    level_db = 10.0 * np.log10(power + 1e-12)
    bright = np.clip((level_db - level_db.max() + _RANGE_DB) / _RANGE_DB, 0.0, 1.0)
    grey = (bright[:, ::-1].T * 255).astype(np.uint8)
    return "data:image/png;base64," + base64.b64encode(_png(grey)).decode()


def _png(grey: NDArray[np.uint8]) -> bytes:
    """8-bit grey, as RFC 2083 has it."""

    def chunk(kind: bytes, data: bytes) -> bytes:
        return struct.pack(">I", len(data)) + kind + data + struct.pack(">I", zlib.crc32(kind + data))

    height, width = grey.shape
    header = struct.pack(">IIBBBBB", width, height, 8, 0, 0, 0, 0)
    lines = b"".join(b"\0" + row.tobytes() for row in grey)
    return b"\x89PNG\r\n\x1a\n" + chunk(b"IHDR", header) + chunk(b"IDAT", zlib.compress(lines, 6)) + chunk(b"IEND", b"")


def speech_end(sound: Audio) -> float:
    """Seconds to the end of the last 10 ms block that is within 25 dB of the active level."""
    size = SAMPLE_RATE_HZ // 100
    blocks = sound[: len(sound) - len(sound) % size].reshape(-1, size)
    loud = np.flatnonzero(np.sqrt(np.mean(blocks**2, axis=1)) > active_level(sound) * 10 ** (-25 / 20))
    return 0.0 if not len(loud) else float(loud[-1] + 1) / 100


def waterfall(turns: Sequence[Mapping[str, Any]], limit: float | None) -> dict[str, Any] | None:
    """Stages of each turn, one row below the other, from the end of speech to the first sound."""
    shown = [turn["ms"] for turn in turns if turn["ms"]["first_audio"] is not None][:_MOST_BARS]
    if not shown:
        return None
    longest = max([ms["first_audio"] for ms in shown] + [limit or 0.0])
    scale, bars = WIDTH / longest, []
    for number, ms in enumerate(shown):
        x = 0.0
        for stage, colour in STAGE_COLOURS.items():
            width = (ms[stage] or 0.0) * scale
            bar = {"x": round(x, 1), "y": number * _ROW + 2, "width": round(width, 1), "colour": colour}
            bars.append(bar | {"text": f"{stage} {ms[stage]} ms"})
            x += 0.0 if stage in _BESIDE else width
        end = {"x": round(ms["first_audio"] * scale, 1), "y": number * _ROW + 2, "width": 2, "colour": "#1a7f37"}
        bars.append(end | {"text": f"first audio {ms['first_audio']} ms"})
    drawn = None if limit is None else round(limit * scale, 1)
    return {"height": len(shown) * _ROW, "bars": bars, "limit": drawn, "longest": round(longest)}


def shares(times: Sequence[float], limit: float | None) -> dict[str, Any] | None:
    """Share of turns whose first sound came within so many ms."""
    if len(times) < _ENOUGH:
        return None
    values = sorted(times)
    scale = WIDTH / max(values[-1], limit or 0.0)
    steps = [
        f"{value * scale:.1f},{_SHARES * (1 - number / len(values)):.1f}" for number, value in enumerate(values, 1)
    ]
    p50, p99 = np.percentile(values, (50, 99))
    drawn = None if limit is None else round(limit * scale, 1)
    points = f"0,{_SHARES} {' '.join(steps)}"
    told = {"p50": round(p50), "p99": round(p99), "turns": len(values)}
    return {"height": _SHARES, "points": points, "limit": drawn, **told}
