"""A Piper (VITS) voice on ONNX Runtime, in two graphs: the encoder sees the whole clause, the vocoder runs in chunks.

The vocoder is convolutional: what it makes of a latent frame (256 samples) depends on 11 neighbours either way. So
each chunk runs with 12 frames of context on both sides, which are then cut off, and its samples equal those of one run
over the whole clause. The first sound costs the encoder plus one short chunk, however long the clause.
The latent stays where the placement's sessions run: phoneme ids go in, PCM comes out.
"""

from __future__ import annotations

import json
import unicodedata
from collections.abc import Iterator
from dataclasses import dataclass, replace
from functools import partial
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.engines.base import Audio
from models.engines.placement import CpuPlacement, GraphSession, Placement
from models.engines.preemption import redone
from models.engines.tts.espeak import Phonemizer
from models.errors import ModelMissing, fetch_command

SAMPLES_PER_FRAME = 256
CONTEXT_FRAMES = 12
FIRST_CHUNK_FRAMES = 24
CHUNK_FRAMES = 72
CPU_CHUNKS = (12, 24, 48)
"""Frames of the first chunks on a CPU, where shorter runs cost less: each sounds longer than the next one is made."""
_WARM_UP_TEXT = "Okay, turning left in two hundred meters."


@dataclass(frozen=True, slots=True)
class PiperConfig:
    """What `voice.json` says. Scales: noise of the latent, speed (larger is slower), noise of the durations."""

    sample_rate_hz: int
    espeak_voice: str
    noise_scale: float
    length_scale: float
    noise_w: float
    phoneme_ids: dict[str, list[int]]

    def ids(self, phonemes: str) -> NDArray[np.int64]:
        """int64 (1, n): start, then every known phoneme and a pad, then end. Unknown signs are left out."""
        pad = self.phoneme_ids["_"]
        ids = [*self.phoneme_ids["^"], *pad]
        for sign in unicodedata.normalize("NFD", phonemes):
            if sign in self.phoneme_ids:
                ids += [*self.phoneme_ids[sign], *pad]
        return np.array([[*ids, *self.phoneme_ids["$"]]], dtype=np.int64)


class PiperVoice:
    """One voice. Not thread-safe."""

    def __init__(
        self,
        placement: Placement,
        encoder: GraphSession,
        vocoders: tuple[GraphSession, GraphSession],
        config: PiperConfig,
        phonemizer: Phonemizer,
    ) -> None:
        """vocoders: for the first chunk and for the others, on a CPU twice the same."""
        self._placement = placement
        self._encoder = encoder
        self._encoding = encoder.binding()
        self._vocoders = tuple((vocoder, vocoder.binding()) for vocoder in vocoders)
        self._equal_windows = placement.device != "cpu"
        self.config = config
        self._phonemizer = phonemizer
        self.sample_rate_hz = config.sample_rate_hz
        self._pcm = placement.allocate(((CHUNK_FRAMES + 2 * CONTEXT_FRAMES) * SAMPLES_PER_FRAME,), np.float32)

    @classmethod
    def load(
        cls,
        model_dir: Path,
        *,
        threads: int = 2,
        placement: Placement | None = None,
        phonemizer: Phonemizer,
        speed: float = 1.0,
        scales: dict[str, float] | None = None,
    ) -> PiperVoice:
        """Load what `models.build.piper.build_piper` wrote, on `placement` (None: the CPU with `threads`).

        speed: speaking rate, 1 is the voice's own. scales: fields of the config to replace. Raises ModelMissing, and
        DeviceUnavailable where it cannot run.
        """
        path = model_dir / "voice.json"
        if not path.is_file():
            raise ModelMissing(f"no Piper voice in {model_dir}; run: {fetch_command(model_dir.name)}")
        raw: dict[str, Any] = json.loads(path.read_text(encoding="utf-8"))
        config = replace(PiperConfig(**raw), **(scales or {}))  # type: ignore[arg-type]
        config = replace(config, length_scale=config.length_scale / speed)
        place = placement or CpuPlacement(threads)
        encoder, opening = (place.open(model_dir / f"{part}.onnx") for part in ("encoder", "vocoder"))
        others = opening if place.device == "cpu" else place.open(model_dir / "vocoder.onnx")
        return cls(place, encoder, (opening, others), config, phonemizer)

    def synthesise(self, text: str) -> Iterator[Audio]:
        """Float32 chunks in [-1, 1] of at most 0.84 s: the first of about 0.14 s on a CPU, of 0.28 s on a GPU. Raises
        SpeechFailed.
        """
        if not any(character.isalnum() for character in text):
            return
        phonemes = self._phonemizer.phonemes(text, self.config.espeak_voice)
        if not any(sign.isalpha() for sign in phonemes):
            return
        latent = yield from redone(partial(self.latent, phonemes))
        start, frames = 0, latent.shape()[2]
        sizes = iter((FIRST_CHUNK_FRAMES,) if self._equal_windows else CPU_CHUNKS)
        while start < frames:
            stop = min(frames, start + next(sizes, CHUNK_FRAMES))
            yield (yield from redone(partial(self.vocode, latent, start, stop)))
            start = stop

    def latent(self, phonemes: str) -> ort.OrtValue:
        """float32 (1, 192, frames) on the placement's device, for IPA phonemes with punctuation."""
        ids = self.config.ids(phonemes)
        scales = np.array([self.config.noise_scale, self.config.length_scale, self.config.noise_w], dtype=np.float32)
        feeds = {"input": ids, "input_lengths": np.array([ids.shape[1]], dtype=np.int64), "scales": scales}
        binding = self._encoding
        for name, values in feeds.items():
            binding.bind_cpu_input(name, values)
        binding.bind_output("latent", self._placement.device)
        self._encoder.run(binding)
        return binding.get_outputs()[0]

    def vocode(self, latent: ort.OrtValue, start: int, stop: int) -> Audio:
        """Samples of latent frames [start, stop): float32 ((stop - start) * 256,), equal to those of one whole run."""
        first, last = self._window(latent.shape()[2], start, stop)
        vocoder, binding = self._vocoders[start > 0]
        size = (last - first) * SAMPLES_PER_FRAME
        if size > self._pcm.shape[0]:
            self._pcm = self._placement.allocate((size,), np.float32)
        binding.bind_ortvalue_input("latent", latent)
        binding.bind_cpu_input("start", np.array([first], np.int64))
        binding.bind_cpu_input("stop", np.array([last], np.int64))
        pcm = self._pcm.part(0, (1, 1, 1, size))
        pcm.bind_output(binding, "output")
        vocoder.run(binding)
        samples = self._placement.read(pcm).reshape(-1)
        cut = (start - first) * SAMPLES_PER_FRAME
        audio: Audio = np.clip(samples[cut : cut + (stop - start) * SAMPLES_PER_FRAME], -1.0, 1.0)
        return audio

    def _window(self, frames: int, start: int, stop: int) -> tuple[int, int]:
        """The latent frames to run for [start, stop).

        On a GPU every convolution is planned anew when its input's size changes, which costs more than running it: so
        each session sees one size there, with more context than needed before a clause's last chunk.
        """
        first, last = max(0, start - CONTEXT_FRAMES), min(frames, stop + CONTEXT_FRAMES)
        if self._equal_windows:
            usual = CHUNK_FRAMES + 2 * CONTEXT_FRAMES if start else FIRST_CHUNK_FRAMES + CONTEXT_FRAMES
            first = max(0, min(first, last - usual))
        return first, last

    def warm_up(self) -> None:
        """Run both graphs and the phonemizer at their usual sizes."""
        for _ in self.synthesise(_WARM_UP_TEXT):
            pass
