"""The real sinks on a fake clock: what was heard of them, as (loudness, milliseconds) in the order it sounded."""

from __future__ import annotations

from itertools import pairwise
from pathlib import Path
from typing import Any

import numpy as np
import pytest
import soundfile

from pipeline.audio import sink as sinks
from pipeline.audio.sink import SpeakerSink, WavSink
from pipeline.frames import SpeechFrame
from tests.support.fake_clock import FakeClock

RATE_HZ = 16_000
BLOCK_MS = 10
Heard = list[tuple[float, int]]


def runs(samples: Any) -> Heard:
    """Stretches of one loudness, without the silence before and after."""
    values = np.round(np.asarray(samples, np.float32), 2)
    edges = [0, *(np.flatnonzero(np.diff(values)) + 1), len(values)]
    found = [(round(float(values[a]), 2), round((b - a) * 1000 / RATE_HZ)) for a, b in pairwise(edges)]
    loud = [place for place, (value, _) in enumerate(found) if value]
    return found[loud[0] : loud[-1] + 1] if loud else []


def clause(index: int, ms: int, *, turn_id: int = 1, generation: int = 0, last: bool = False) -> SpeechFrame:
    """A clause of a reply: 0.1 loud, the next one 0.2, and so on."""
    samples = np.full(ms * RATE_HZ // 1000, 0.1 * (index + 1), np.float32)
    return SpeechFrame(turn_id, generation, samples, RATE_HZ, 7, clause_index=index, text=f"clause {index}", last=last)


class WavRig:
    """A WAV sink in real time."""

    def __init__(self, folder: Path) -> None:
        self.clock = FakeClock()
        self.folder = folder
        self.sink = WavSink(folder, clock=self.clock)

    def advance(self, seconds: float) -> None:
        self.clock.ns += round(seconds * 1e9)

    def heard(self) -> Heard:
        self.sink.close()
        files = sorted(self.folder.glob("turn-*.wav")) or sorted(self.folder.glob("guidance-*.wav"))
        return runs(np.concatenate([soundfile.read(file)[0] for file in files])) if files else []


class SpeakerRig:
    """A speaker whose device is this object."""

    def __init__(self, monkeypatch: pytest.MonkeyPatch, ring_s: float = 60.0) -> None:
        monkeypatch.setattr(sinks, "load_sounddevice", lambda: None)
        monkeypatch.setattr(sinks, "device_info", lambda *_: {"default_samplerate": float(RATE_HZ), "name": "fake"})
        self.clock = FakeClock()
        self.sink = SpeakerSink(clock=self.clock, ring_s=ring_s)
        self.blocks: list[Any] = []

    def advance(self, seconds: float) -> None:
        for _ in range(round(seconds * 1000 / BLOCK_MS)):
            block = np.zeros((RATE_HZ * BLOCK_MS // 1000, 1), np.float32)
            self.sink._emit(block, len(block), None, None)
            self.blocks.append(block[:, 0])
            self.clock.ns += BLOCK_MS * 1_000_000

    def heard(self) -> Heard:
        return runs(np.concatenate(self.blocks))
