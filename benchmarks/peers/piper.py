"""piper-tts on the published checkpoint. Runs in a process of its own."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Any


class PiperTts:
    """The published engine. threads: of ONNX Runtime; None leaves the package's own choice."""

    def __init__(self, model: Path, config: Path, threads: int | None = None) -> None:
        import piper

        self._voice: Any = piper.PiperVoice.load(model, config)
        if threads is not None:
            import onnxruntime as ort

            options = ort.SessionOptions()
            options.intra_op_num_threads = threads
            self._voice.session = ort.InferenceSession(str(model), options, providers=["CPUExecutionProvider"])

    def measure(self, text: str, whole: bool = True) -> tuple[float, float, float]:
        """First sound (ms), everything (ms) and seconds of audio of one synthesis. whole False: ends at first sound."""
        start_s = time.perf_counter()
        chunks = iter(self._voice.synthesize(text))
        first = next(chunks, None)
        first_ms = (time.perf_counter() - start_s) * 1e3
        samples = 0 if first is None else len(first.audio_int16_array)
        if whole:
            samples += sum(len(chunk.audio_int16_array) for chunk in chunks)
        return first_ms, (time.perf_counter() - start_s) * 1e3, samples / self._voice.config.sample_rate
