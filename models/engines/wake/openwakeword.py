"""openWakeWord on TensorFlow Lite, through pyopen-wakeword's C library; the models come from the store, as data.

Its trained models forbid commercial use: `microwakeword.py` is the default.
"""

from __future__ import annotations

from pathlib import Path
from typing import Final

import numpy as np

from models.engines.base import Audio
from models.errors import ConfigError, ModelMissing, StartupError, fetch_command

CHUNK_SAMPLES: Final = 1280
"""80 ms at 16 kHz: what one decision takes in."""
_MEL_WINDOW_SAMPLES: Final = 12_400
"""One embedding looks back over 76 mel frames: 775 ms."""
_FEATURES = ("melspectrogram.tflite", "embedding_model.tflite")


class OpenWakeWordDetector:
    """One wake word. Stateful and not thread-safe: one stage owns it.

    buffer_samples: audio it must have heard before its answers mean anything (before that its window is part silence).
    """

    chunk_samples = CHUNK_SAMPLES
    threshold = 0.5

    def __init__(self, word: str, features: object, classifier: object, buffer_samples: int) -> None:
        self.word = word
        self.buffer_samples = buffer_samples
        self._features = features
        self._classifier = classifier

    @classmethod
    def load(cls, model_dir: Path, word: str) -> OpenWakeWordDetector:
        """word: name of a model in `model_dir`, such as hey_jarvis.

        Raises ModelMissing (files), ConfigError (unknown word) or StartupError (the C library is not installed).
        """
        missing = [name for name in _FEATURES if not (model_dir / name).is_file()]
        if missing:
            raise ModelMissing(
                f"{model_dir} lacks {', '.join(missing)}; run: {fetch_command('openwakeword', accept_licence=True)}"
            )
        words = sorted(path.stem for path in model_dir.glob("*.tflite") if path.name not in _FEATURES)
        if word not in words:
            raise ConfigError(f"wake word {word!r} is unknown; choose one of: {', '.join(words)}")
        try:
            from pyopen_wakeword import OpenWakeWord, OpenWakeWordFeatures
            from pyopen_wakeword.openwakeword import _find_tensorflowlite_c
        except ImportError as error:
            raise StartupError(f"{error}: wake words need the extra, pip install 'cockpit-voice[wake]'") from error
        library = _find_tensorflowlite_c()
        features = OpenWakeWordFeatures(
            melspectrogram_model=model_dir / _FEATURES[0],
            embedding_model=model_dir / _FEATURES[1],
            libtensorflowlite_c_path=library,
        )
        classifier = OpenWakeWord.from_model(model_dir / f"{word}.tflite", library)
        window = int(classifier.input_windows) * CHUNK_SAMPLES + _MEL_WINDOW_SAMPLES
        detector = cls(word, features, classifier, window)
        detector.reset()
        return detector

    def probability(self, samples: Audio) -> float:
        """samples: float32 (1280,) at 16 kHz in [-1, 1], following the last ones. The highest new answer, 0 to 1."""
        pcm = (np.clip(samples, -1.0, 1.0) * 32767.0).astype(np.int16).tobytes()
        best = 0.0
        for embeddings in self._features.process_streaming(pcm):  # type: ignore[attr-defined]
            for value in self._classifier.process_streaming(embeddings):  # type: ignore[attr-defined]
                best = max(best, float(value))
        return best

    def reset(self) -> None:
        """Forget all audio, as after a pause in the stream."""
        self._features.reset()  # type: ignore[attr-defined]
        self._classifier.reset()  # type: ignore[attr-defined]
        # The library computes some seconds of silence with the first chunk: here, not when somebody speaks.
        self.probability(np.zeros(CHUNK_SAMPLES, np.float32))

    def close(self) -> None:
        self._classifier.close()  # type: ignore[attr-defined]
        self._features.close()  # type: ignore[attr-defined]
