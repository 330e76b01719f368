"""microWakeWord: a streaming model of some 50 KB, through pymicro-wakeword's C library; models come from the store."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any, Final

import numpy as np

from models.engines.base import Audio
from models.errors import ConfigError, ModelMissing, StartupError, fetch_command

CHUNK_SAMPLES: Final = 480
"""30 ms at 16 kHz: three feature frames, one step of the model."""
_SETTLE_SAMPLES: Final = 16_000
"""The model carries state: its first second of answers means nothing (what its firmware ignores, too)."""


class MicroWakeWordDetector:
    """One wake word. Stateful and not thread-safe: one stage owns it."""

    chunk_samples = CHUNK_SAMPLES
    buffer_samples = _SETTLE_SAMPLES

    def __init__(self, word: str, features: Any, classifier: Any, threshold: float) -> None:
        self.word = word
        self.threshold = threshold
        self._features = features
        self._classifier = classifier

    @classmethod
    def load(cls, model_dir: Path, word: str) -> MicroWakeWordDetector:
        """word: name of a model in `model_dir`, such as hey_jarvis. Its description holds the threshold.

        Raises ModelMissing (no models), ConfigError (unknown word) or StartupError (the C library is not installed).
        """
        words = sorted(path.stem for path in model_dir.glob("*.json") if path.with_suffix(".tflite").is_file())
        if not words:
            raise ModelMissing(f"no wake words in {model_dir}; run: {fetch_command('microwakeword')}")
        if word not in words:
            raise ConfigError(f"wake word {word!r} is unknown; choose one of: {', '.join(words)}")
        try:
            from pymicro_wakeword import MicroWakeWord, MicroWakeWordFeatures
        except ImportError as error:
            raise StartupError(f"{error}: wake words need the extra, pip install 'cockpit-voice[wake]'") from error
        description = json.loads((model_dir / f"{word}.json").read_text(encoding="utf-8"))
        threshold = float(description["micro"]["probability_cutoff"])
        classifier = MicroWakeWord.from_config(model_dir / f"{word}.json")
        return cls(word, MicroWakeWordFeatures(), classifier, threshold)

    def probability(self, samples: Audio) -> float:
        """samples: float32 (480,) at 16 kHz in [-1, 1], following the last ones. The highest new answer, 0 to 1."""
        pcm = (np.clip(samples, -1.0, 1.0) * 32767.0).astype(np.int16).tobytes()
        best = 0.0
        for features in self._features.process_streaming(pcm):
            value = self._classifier.process_streaming_prob(features)
            if value is not None:
                best = max(best, float(value))
        return best

    def reset(self) -> None:
        """Forget all audio, as after a pause in the stream."""
        self._features.reset()
        self._classifier.reset()

    def close(self) -> None:
        self._classifier.close()
