"""Whisper's two encoders: of the CPU's graphs, whose cost follows the speech, and of a GPU lane's, always 30 s."""

from __future__ import annotations

import math
from typing import Protocol

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.engines.base import Audio
from models.engines.placement import GraphSession, Placement, dtype_of
from models.engines.preemption import run
from models.engines.whisper.decoder import Decoder, WhisperConfig
from models.engines.whisper.logmel import HOP_SAMPLES, RATE_HZ, WINDOW_SAMPLES, centred, log_mel

PAD_S = 1.0
"""Silence that follows the last sample at full resolution."""
TAIL_ROWS = 50
"""Rows of silence, spread evenly over the rest of the 30 s that Whisper was trained to see. Without them it cannot tell
that the speech is over and repeats itself: 1 s of plain padding gives 20 runaway texts over 48 recorded commands."""
TAIL_MASS = 0.5
"""Each spread row stands for the rows it replaces: its attention score gets this share of the log of their count."""


class Encoder(Protocol):
    """Gives the decoder the cross keys and values of one utterance."""

    rows: int
    """Positions of 20 ms the last run saw: what its cost is proportional to."""

    def allocate(self) -> None:
        """Make and bind what is fixed. Call once, before the first utterance."""
        ...

    def encode(self, samples: Audio) -> None:
        """Run over `samples` (n,) and the silence behind, and begin an utterance at the decoder."""
        ...


class MelEncoder:
    """On the CPU: sees the speech, PAD_S and TAIL_ROWS."""

    def __init__(self, session: ort.InferenceSession, decoder: Decoder, config: WhisperConfig) -> None:
        self._session = session
        self._decoder = decoder
        self._config = config
        self.rows = 0

    def allocate(self) -> None:
        """Every utterance has sizes of its own."""

    def encode(self, samples: Audio) -> None:
        rows, log_count = context_rows(samples.size, self._config.encoder_positions)
        self.rows = rows.size
        mass = ort.OrtValue.ortvalue_from_numpy(log_count.reshape(1, 1, 1, -1))
        binding = self._session.io_binding()
        binding.bind_cpu_input("mel", log_mel(samples, 2 * rows.size, self._config.mel_bands))
        binding.bind_cpu_input("positions", rows)
        binding.bind_ortvalue_input("log_count", mass)
        names = [meta.name for meta in self._session.get_outputs()]
        for name in names:
            binding.bind_output(name)
        run(lambda options: self._session.run_with_iobinding(binding, options))
        self._decoder.begin({**dict(zip(names, binding.get_outputs(), strict=True)), "log_count": mass})


class SamplesEncoder:
    """On a GPU lane: PCM in, cross keys and values straight into the buffers that the decoder reads."""

    def __init__(self, placement: Placement, session: GraphSession, decoder: Decoder, config: WhisperConfig) -> None:
        self._placement = placement
        self._session = session
        self._decoder = decoder
        self._binding = session.binding()
        self.rows = config.encoder_positions
        self._filled = 0

    def allocate(self) -> None:
        meta = self._session.inner.get_inputs()[0]
        self._samples = self._placement.allocate(meta.shape, dtype_of(meta))
        self._samples.bind_input(self._binding, meta.name)
        for name, buffer in self._decoder.cross.items():
            buffer.bind_output(self._binding, name)

    def encode(self, samples: Audio) -> None:
        frames = 2 * self.rows
        padded = centred(samples, frames)
        silent_end = samples.size + WINDOW_SAMPLES < frames * HOP_SAMPLES  # else the mirrored edge holds sound
        filled = WINDOW_SAMPLES // 2 + samples.size if silent_end else padded.size
        changed = padded[: max(filled, self._filled)]  # behind that there is silence already
        self._placement.write(self._samples.part(0, changed.shape), changed)
        self._filled = filled
        self._session.run(self._binding, graph_id=0)
        self._decoder.begin({})


def context_rows(samples: int, positions: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows of the positional table for `samples` of speech, and the log of how many rows each stands for (x TAIL_MASS).

    Both (T,): every row of the speech and its pad, then TAIL_ROWS spread to the table's end.
    """
    head = min(positions, math.ceil((samples / RATE_HZ + PAD_S) * RATE_HZ / (2 * HOP_SAMPLES)))
    count = min(TAIL_ROWS, positions - head)
    tail = np.rint(np.linspace(head, positions - 1, count)).astype(np.int64)
    mass = TAIL_MASS * math.log((positions - head) / count) if count else 0.0
    return np.concatenate([np.arange(head), tail]), np.repeat(np.array([0.0, mass], np.float32), [head, count])
