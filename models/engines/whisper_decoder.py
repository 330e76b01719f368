"""Whisper's decoder session with its cache, and the configuration that both of its graphs share."""

from __future__ import annotations

import json
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

from models.errors import InputError, ModelMissing, StartupError

PROVIDERS = {"cpu": "CPUExecutionProvider", "cuda": "CUDAExecutionProvider"}


@dataclass(frozen=True, slots=True)
class WhisperConfig:
    """config.json of a built Whisper. Counts are in tokens, frames of 10 ms (mel) or 20 ms (encoder positions)."""

    mel_bands: int
    encoder_positions: int
    decoder_positions: int
    width: int
    decoder_layers: int
    decoder_heads: int
    vocabulary: int
    tokens: dict[str, int]
    languages: dict[str, int]
    suppress: tuple[int, ...]
    suppress_at_begin: tuple[int, ...]

    @staticmethod
    def read(path: Path) -> WhisperConfig:
        raw = json.loads(path.read_text(encoding="utf-8"))
        fields = {name: raw[name] for name in WhisperConfig.__dataclass_fields__}
        fields["suppress"], fields["suppress_at_begin"] = tuple(raw["suppress"]), tuple(raw["suppress_at_begin"])
        return WhisperConfig(**fields)


@dataclass(frozen=True, slots=True)
class Step:
    """What one decoder run says of its last position. `ids` and `values` (raw logit + bias) are best first."""

    ids: NDArray[np.int64]
    values: NDArray[np.float32]
    log_sum_exp: float
    no_speech_logit: float


class Decoder:
    """The decoder session with its cache: every buffer is allocated once and bound as both past and present."""

    def __init__(self, session: ort.InferenceSession, config: WhisperConfig) -> None:
        self._session = session
        self._config = config
        self._binding = session.io_binding()
        self._filled = 0
        self._outputs: dict[str, ort.OrtValue] = {}
        self._cache: list[ort.OrtValue] = []
        self._token = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1), np.int64))
        self._position = ort.OrtValue.ortvalue_from_numpy(np.zeros((1, 1), np.int64))
        self._last_index = ort.OrtValue.ortvalue_from_numpy(np.zeros(1, np.int32))
        self._total = ort.OrtValue.ortvalue_from_numpy(np.zeros((), np.int32))
        self._bias = ort.OrtValue.ortvalue_from_numpy(np.zeros(config.vocabulary, np.float32))

    @property
    def filled(self) -> int:
        """Tokens in the cache."""
        return self._filled

    def allocate(self) -> None:
        """Make and bind the cache and the outputs. Call once, before the first utterance."""
        c = self._config
        shape = (1, c.decoder_heads, c.decoder_positions, c.width // c.decoder_heads)
        for i in range(c.decoder_layers):
            for part in ("key", "value"):
                buffer = ort.OrtValue.ortvalue_from_numpy(np.zeros(shape, np.float32))
                self._binding.bind_ortvalue_input(f"past_{part}_{i}", buffer)
                self._binding.bind_ortvalue_output(f"present_{part}_{i}", buffer)
                self._cache.append(buffer)
        for meta in self._session.get_outputs():
            if not meta.name.startswith("present_"):
                dtype = np.int64 if meta.name == "ids" else np.float32
                self._outputs[meta.name] = ort.OrtValue.ortvalue_from_shape_and_type(tuple(meta.shape), dtype, "cpu", 0)
                self._binding.bind_ortvalue_output(meta.name, self._outputs[meta.name])
        for name, value in (("last_index", self._last_index), ("total", self._total), ("bias", self._bias)):
            self._binding.bind_ortvalue_input(name, value)

    def begin(self, cross: dict[str, ort.OrtValue]) -> None:
        """Start an utterance: bind its cross keys and values, forget the cached tokens."""
        for name, value in cross.items():
            self._binding.bind_ortvalue_input(name, value)
        self._filled = 0

    def rewind(self, filled: int) -> None:
        """Keep only the first `filled` cached tokens."""
        self._filled = min(filled, self._filled)

    def step(self, tokens: Sequence[int], bias: NDArray[np.float32]) -> Step:
        """Append `tokens` and return the last position's best candidates under `bias` (V,)."""
        count = len(tokens)
        total = self._filled + count
        if total > self._config.decoder_positions:
            raise InputError(f"the decoder holds {self._config.decoder_positions} tokens, {total} were asked for")
        if count == 1:
            self._token.update_inplace(np.array([tokens], np.int64))
            self._position.update_inplace(np.array([[self._filled]], np.int64))
            self._binding.bind_ortvalue_input("tokens", self._token)
            self._binding.bind_ortvalue_input("positions", self._position)
        else:
            self._binding.bind_cpu_input("tokens", np.array([tokens], np.int64))
            self._binding.bind_cpu_input("positions", np.arange(self._filled, total, dtype=np.int64)[None])
        self._last_index.update_inplace(np.array([total - 1], np.int32))
        self._total.update_inplace(np.array(total, np.int32))
        self._bias.update_inplace(bias)
        self._session.run_with_iobinding(self._binding)
        self._filled = total
        out = {name: value.numpy() for name, value in self._outputs.items()}
        return Step(
            out["ids"][0], out["values"][0], float(out["log_sum_exp"][0, 0]), float(out["no_speech_logit"][0, 0])
        )


def open_session(path: Path, threads: int, provider: str) -> ort.InferenceSession:
    if not path.is_file():
        raise ModelMissing(f"{path} is missing; run `cockpit models build whisper-base`")
    if provider not in PROVIDERS:
        raise StartupError(f"unknown provider {provider!r}; known are {sorted(PROVIDERS)}")
    options = ort.SessionOptions()
    options.intra_op_num_threads = threads
    options.inter_op_num_threads = 1
    # Workers that spin while the other stages compute took 2x as long on two busy cores (716 ms against 358 ms).
    options.add_session_config_entry("session.intra_op.allow_spinning", "0")
    options.log_severity_level = 3
    session = ort.InferenceSession(path, options, providers=[PROVIDERS[provider]])
    if session.get_providers()[0] != PROVIDERS[provider]:
        raise StartupError(f"{provider!r} was asked for but {session.get_providers()[0]} runs {path.name}")
    return session
