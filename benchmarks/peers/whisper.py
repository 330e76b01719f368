"""faster-whisper as its documentation shows it: CTranslate2 int8 on the CPU. Runs in a process of its own."""

from __future__ import annotations

import json
import tempfile
import time
from pathlib import Path
from typing import Any

import numpy as np
from numpy.typing import NDArray

RATE_HZ = 16_000


def ctranslate2_folder(source: Path, made: Path) -> Path:
    """The pinned files as CTranslate2 wants them, in `made`; the vocabulary (timestamps too) in a file of its own."""
    tokenizer = json.loads((source / "tokenizer.json").read_text(encoding="utf-8"))
    ids = {**tokenizer["model"]["vocab"], **{t["content"]: t["id"] for t in tokenizer["added_tokens"]}}
    times = [f"<|{step * 0.02:.2f}|>" for step in range(1501)]
    vocabulary = [name for name in sorted(ids, key=ids.__getitem__) if name not in times] + times
    for name in ("model.bin", "config.json", "tokenizer.json"):
        (made / name).symlink_to(source / name)
    (made / "vocabulary.json").write_text(json.dumps(vocabulary), encoding="utf-8")
    return made


class FasterWhisper:
    """The recogniser on the files of `folder` (models/store: the sources of whisper-base).

    languages: where detection picks another one, the likelier of these is used. Empty: whatever it detects.
    """

    def __init__(self, folder: Path, threads: int, languages: tuple[str, ...] = ()) -> None:
        from faster_whisper import WhisperModel

        self._languages = languages
        with tempfile.TemporaryDirectory() as made:
            files = ctranslate2_folder(folder, Path(made))
            self._model: Any = WhisperModel(str(files), device="cpu", compute_type="int8", cpu_threads=threads)

    def transcribe(self, samples: NDArray[np.float32]) -> tuple[str, str, float]:
        """samples: float32 (n,) at 16 kHz. Returns (text, language, ms)."""
        start_s = time.perf_counter()
        options: dict[str, Any] = {"beam_size": 1}
        if self._languages:
            options |= {"without_timestamps": samples.size <= 30 * RATE_HZ, "condition_on_previous_text": False}
        segments, info = self._model.transcribe(samples, **options)
        if self._languages and info.language not in self._languages:
            shares = dict(info.all_language_probs or [])
            language = max(self._languages, key=lambda name: shares.get(name, 0.0))
            segments, info = self._model.transcribe(samples, language=language, **options)
        text = "".join(segment.text for segment in segments).strip()
        return text, info.language, (time.perf_counter() - start_s) * 1e3
