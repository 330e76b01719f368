"""Whisper on ONNX Runtime: one encoder run per utterance, then a greedy decode loop over a preallocated cache.

Files in the model folder: encoder.onnx, decoder.onnx, config.json, tokenizer.json (shapes: models/build/whisper.py).
Chinese comes out simplified. Where it runs is the placement's business; on a GPU lane only PCM goes in and a few dozen
bytes per token come out.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TypeVar

import numpy as np
from numpy.typing import NDArray
from opencc import OpenCC
from tokenizers import Tokenizer

from models.engines.base import Audio, Hypothesis, never_cancelled
from models.engines.placement import CpuPlacement, Placement
from models.engines.preemption import RunEnded
from models.engines.whisper.decoder import NO_BOOSTS, Decoder, Step, WhisperConfig
from models.engines.whisper.encoder import Encoder, MelEncoder, SamplesEncoder
from models.engines.whisper.guards import MAX_REPEATS, UNCLEAR_NO_SPEECH_LIMIT, believable, repeats
from models.engines.whisper.hotwords import HotwordTree
from models.engines.whisper.logmel import RATE_HZ
from models.engines.whisper.numbers import confusable, margin_of
from models.errors import DeviceUnavailable, InputError, ModelMissing, fetch_command

MAX_WINDOW_S = 29.0
MIN_SPEECH_S = 0.1
MIN_PEAK = 1e-3
MAX_TOKENS_PER_S = 14.0
Cancelled = Callable[[], bool]
T = TypeVar("T")


@dataclass(frozen=True, slots=True)
class _Wording:
    """What decoding in one language favours: its hot words, and the biases (V,) of the first and of the other tokens
    with what may open a hot word already added."""

    hotwords: tuple[str, ...]
    tree: HotwordTree
    first: NDArray[np.float32]
    others: NDArray[np.float32]


class WhisperEngine:
    """A SpeechRecognizer (models/engines/base.py). Not thread-safe: one stage owns it."""

    def __init__(self, config: WhisperConfig, tokenizer: Tokenizer, encoder: Encoder, decoder: Decoder) -> None:
        self.config = config
        self._tokenizer = tokenizer
        self._confusable = confusable(tokenizer)
        self._encoder = encoder
        self.decoder = decoder
        self._simplified = OpenCC("t2s")
        self._traditional = OpenCC("s2t")
        self._wordings: dict[str, _Wording] = {}
        self._language_biases: dict[tuple[str, ...], NDArray[np.float32]] = {}

    @classmethod
    def load(cls, model_dir: Path, *, threads: int = 2, placement: Placement | None = None) -> WhisperEngine:
        """Open a built model on `placement` (None: the CPU with `threads`).

        Raises ModelMissing for a missing file, DeviceUnavailable where the graphs cannot run on the placement.
        """
        config_path = model_dir / "config.json"
        if not config_path.is_file():
            raise ModelMissing(f"{config_path} is missing; run: {fetch_command(model_dir.name)}")
        config = WhisperConfig.read(config_path)
        place = placement or CpuPlacement(threads)
        if (config.precision == "f16") != (place.device != "cpu"):
            remedy = "whisper-base" if place.device == "cpu" else "whisper-base-f16"
            raise DeviceUnavailable(
                f"{model_dir.name} holds {config.precision} graphs, which do not run on {place.device!r}; "
                f"choose {remedy} there ({fetch_command(remedy)})"
            )
        fixed = config.encoder_input == "samples"
        decoder = Decoder(place, place.open(model_dir / "decoder.onnx", capture=fixed), config)
        decoder.allocate()
        session = place.open(model_dir / "encoder.onnx", capture=fixed)
        encoder: Encoder = MelEncoder(session.inner, decoder, config)
        if fixed:
            encoder = SamplesEncoder(place, session, decoder, config)
        encoder.allocate()
        return cls(config, Tokenizer.from_file(str(model_dir / "tokenizer.json")), encoder, decoder)

    @property
    def encoder_rows(self) -> int:
        """Positions of 20 ms the last encoder run saw: what its cost is proportional to."""
        return self._encoder.rows

    def warm_up(self) -> None:
        """Run every graph at its usual sizes, four times: device graphs are captured by the third run."""
        rng = np.random.default_rng(0)
        bias = self._wording("en", ()).others
        for seconds in (1.0, 3.0, 6.0, 1.0):
            self._encoder.encode(rng.standard_normal(int(seconds * RATE_HZ)).astype(np.float32) * 0.05)
            for _ in range(4):
                self.decoder.step([0], bias)
            self.decoder.step([0] * len(self._prompt("en")), bias)

    def transcribe(
        self,
        samples: Audio,
        *,
        languages: Sequence[str],
        hotwords: Sequence[str] = (),
        cancelled: Cancelled = never_cancelled,
    ) -> Hypothesis:
        """samples: float32 (n,) at 16 kHz, any n >= 0, read only. `cancelled` is asked between decoder steps, and
        before a run that was ended for somebody more urgent is done again; once it returns True the text decoded so far
        is dropped and an empty hypothesis comes back."""
        self._check_languages(languages)
        parts = [self._window(part, languages, hotwords, cancelled) for part in split_windows(samples)]
        kept = [part for part in parts if part.text]
        if not kept:
            return next((part for part in parts if part.unclear), parts[0])
        joint = "" if kept[0].language == "zh" else " "
        tokens = tuple(token for part in kept for token in part.tokens)
        logprob = float(np.average([p.avg_logprob for p in kept], weights=[len(p.tokens) + 1 for p in kept]))
        return Hypothesis(
            joint.join(p.text for p in kept),
            kept[0].language,
            logprob,
            min(p.no_speech for p in kept),
            tokens,
            number_margin=min(p.number_margin for p in kept),
        )

    def _check_languages(self, languages: Sequence[str]) -> None:
        unknown = [name for name in languages if name not in self.config.languages]
        if unknown or not languages:
            raise InputError(f"unknown languages {unknown}; this model knows {sorted(self.config.languages)}")

    def text_bias(self) -> NDArray[np.float32]:
        bias = np.zeros(self.config.vocabulary, np.float32)
        bias[list(self.config.suppress)] = -np.inf
        bias[list(self.config.languages.values())] = -np.inf
        bias[[t for name, t in self.config.tokens.items() if name != "end"]] = -np.inf
        return bias

    def _language_bias(self, languages: Sequence[str]) -> NDArray[np.float32]:
        key = tuple(languages)
        if key not in self._language_biases:
            bias = np.full(self.config.vocabulary, -np.inf, np.float32)
            bias[[self.config.languages[name] for name in languages]] = 0.0
            self._language_biases[key] = bias
        return self._language_biases[key]

    def _prompt(self, language: str) -> list[int]:
        special = self.config.tokens
        return [self.config.languages[language], special["transcribe"], special["no_timestamps"]]

    def _window(
        self, samples: Audio, languages: Sequence[str], hotwords: Sequence[str], cancelled: Cancelled
    ) -> Hypothesis:
        """Recognise at most 30 s."""
        if samples.size < MIN_SPEECH_S * RATE_HZ or np.abs(samples).max(initial=0.0) < MIN_PEAK:
            return Hypothesis("", languages[0], 0.0, 1.0)
        try:
            return self._heard(samples, languages, hotwords, cancelled)
        except _GivenUp:
            return Hypothesis("", languages[0], 0.0, 1.0)

    def _heard(
        self, samples: Audio, languages: Sequence[str], hotwords: Sequence[str], cancelled: Cancelled
    ) -> Hypothesis:
        """Raises _GivenUp where a run was ended and is not wanted any more."""
        _redone(lambda: self._encoder.encode(samples), cancelled)
        first = self._step([self.config.tokens["start"]], self._language_bias(languages), NO_BOOSTS, cancelled)
        no_speech = float(np.exp(first.no_speech_logit - first.log_sum_exp))
        language_token = int(first.ids[0])
        language = next(name for name in languages if self.config.languages[name] == language_token)
        wording = self._wording(language, tuple(hotwords))
        tokens, logprob, boost, margin = self._greedy(self._prompt(language), samples.size, wording, cancelled)
        text = self._tokenizer.decode(tokens, skip_special_tokens=True).strip()
        if language == "zh":
            text = self._simplified.convert(text)
        average = logprob / (len(tokens) + 1)
        if not believable(text, average, no_speech):
            return Hypothesis("", language, average, no_speech, unclear=no_speech < UNCLEAR_NO_SPEECH_LIMIT)
        # the guards were measured with what hot words add; the caller is told how likely the text is without it
        unbiased = average - boost / (len(tokens) + 1)
        return Hypothesis(text, language, unbiased, no_speech, tuple(tokens), number_margin=margin)

    def _wording(self, language: str, hotwords: tuple[str, ...]) -> _Wording:
        """The hot words written in `language`'s script, as Whisper writes them. Built once per language and list."""
        kept = self._wordings.get(language)
        if kept is not None and kept.hotwords == hotwords:
            return kept
        spellings: set[str] = set()
        for word in hotwords:
            if is_chinese(word) != (language == "zh"):
                continue
            if language == "zh":
                spellings |= {word, self._traditional.convert(word)}
            else:
                spellings |= {f" {word}", f" {word.capitalize()}"}
        encode = self._tokenizer.encode
        tree = HotwordTree.of(encode(s, add_special_tokens=False).ids for s in sorted(spellings))
        others = tree.boost(self.text_bias(), frozenset())
        first = others.copy()
        first[list(self.config.suppress_at_begin)] = -np.inf
        self._wordings[language] = _Wording(hotwords, tree, first, others)
        return self._wordings[language]

    def _greedy(
        self, prompt: list[int], samples: int, wording: _Wording, cancelled: Cancelled
    ) -> tuple[list[int], float, float, float]:
        """Decode until the end token. Returns the text tokens, the sum of their log-probabilities, end included, how
        much of that sum the hot words added, and the margin of the least certain number (see Hypothesis).
        """
        limit = min(
            8 + int(MAX_TOKENS_PER_S * samples / RATE_HZ), self.config.decoder_positions - self.decoder.filled - 4
        )
        bias, boosts = wording.first, NO_BOOSTS
        state: frozenset[int] = frozenset()
        step = self._step(prompt, bias, boosts, cancelled)
        tokens: list[int] = []
        logprob, boost, margin = 0.0, 0.0, math.inf
        while len(tokens) < limit:
            if cancelled():
                return [], 0.0, 0.0, math.inf
            token = int(step.ids[0])
            margin = min(margin, margin_of(step, token, self._confusable))
            logprob += float(step.values[0]) - step.log_sum_exp
            boost += float(bias[token]) + boosts.get(token, 0.0)
            if token == self.config.tokens["end"]:
                break
            tokens.append(token)
            if repeats(tokens, MAX_REPEATS):
                return [], 0.0, 0.0, math.inf
            state = wording.tree.advance(state, token)
            bias, boosts = wording.others, wording.tree.inside(state)
            step = self._step([token], bias, boosts, cancelled)
        return tokens, logprob, boost, margin

    def _step(
        self, tokens: Sequence[int], bias: NDArray[np.float32], boosts: Mapping[int, float], cancelled: Cancelled
    ) -> Step:
        return _redone(lambda: self.decoder.step(tokens, bias, boosts), cancelled)


class _GivenUp(Exception):
    """A run was ended, and nobody wants the text any more."""


def _redone(work: Callable[[], T], cancelled: Cancelled) -> T:
    """Do it again when it was ended for somebody more urgent; `cancelled` waits where that is due. Raises _GivenUp."""
    while True:
        try:
            return work()
        except RunEnded:
            if cancelled():
                raise _GivenUp from None


def is_chinese(text: str) -> bool:
    """True when `text` holds a CJK ideograph."""
    return any("\u4e00" <= character <= "\u9fff" for character in text)


def split_windows(samples: Audio) -> list[Audio]:
    """Cut audio into windows the encoder can hold, each cut at the quietest 0.2 s of the window's last third."""
    limit, block = int(MAX_WINDOW_S * RATE_HZ), int(0.2 * RATE_HZ)
    parts: list[Audio] = []
    while samples.size > limit:
        start = limit * 2 // 3
        tail = samples[start : start + (limit - start) // block * block].reshape(-1, block)
        cut = start + int((tail**2).sum(axis=1).argmin()) * block + block // 2
        parts.append(samples[:cut])
        samples = samples[cut:]
    return [*parts, samples]
