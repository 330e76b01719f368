"""Whisper on ONNX Runtime: one encoder run per utterance, then a greedy decode loop over a preallocated cache.

Files in the model folder: encoder.onnx, decoder.onnx, config.json, tokenizer.json (shapes: models/build/whisper.py).
The encoder sees the speech and 2 s that stand for the silence up to 30 s (see TAIL_ROWS). Chinese comes out simplified.
"""

from __future__ import annotations

import math
from collections.abc import Callable, Sequence
from pathlib import Path

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray
from opencc import OpenCC
from tokenizers import Tokenizer

from models.engines.base import Audio, Hypothesis, never_cancelled
from models.engines.hotwords import HotwordTree
from models.engines.logmel import HOP_SAMPLES, RATE_HZ, log_mel
from models.engines.whisper_decoder import Decoder, WhisperConfig, open_session
from models.engines.whisper_guards import MAX_REPEATS, believable, repeats
from models.errors import InputError, ModelMissing

PAD_S = 1.0
"""Silence that follows the last sample at full resolution."""
TAIL_ROWS = 50
"""Rows of silence, spread evenly over the rest of the 30 s that Whisper was trained to see. Without them it cannot tell
that the speech is over and repeats itself: 1 s of plain padding gives 20 runaway texts over 48 recorded commands."""
TAIL_MASS = 0.5
"""Each spread row stands for the rows it replaces: its attention score gets this share of the log of their count."""
MAX_WINDOW_S = 29.0
MIN_SPEECH_S = 0.1
MIN_PEAK = 1e-3
MAX_TOKENS_PER_S = 14.0
Cancelled = Callable[[], bool]


class WhisperEngine:
    """A SpeechRecognizer (models/engines/base.py). Not thread-safe: one stage owns it."""

    def __init__(
        self, config: WhisperConfig, tokenizer: Tokenizer, encoder: ort.InferenceSession, decoder: Decoder
    ) -> None:
        self.config = config
        self._tokenizer = tokenizer
        self._encoder = encoder
        self.decoder = decoder
        self._simplified = OpenCC("t2s")
        self._traditional = OpenCC("s2t")
        self._trees: dict[tuple[str, tuple[str, ...]], HotwordTree] = {}
        self.encoder_rows = 0
        """Positions of 20 ms the last encoder run saw: what its cost is proportional to."""

    @classmethod
    def load(cls, model_dir: Path, *, threads: int = 2, provider: str = "cpu") -> WhisperEngine:
        """Open a built model. Raises ModelMissing for a missing file, StartupError for a provider that will not run."""
        config_path = model_dir / "config.json"
        if not config_path.is_file():
            raise ModelMissing(f"{config_path} is missing; run `cockpit models build whisper-base`")
        config = WhisperConfig.read(config_path)
        decoder = Decoder(open_session(model_dir / "decoder.onnx", threads, provider), config)
        decoder.allocate()
        tokenizer = Tokenizer.from_file(str(model_dir / "tokenizer.json"))
        return cls(config, tokenizer, open_session(model_dir / "encoder.onnx", threads, provider), decoder)

    def warm_up(self) -> None:
        rng = np.random.default_rng(0)
        for seconds in (1.0, 3.0, 6.0):
            noise = rng.standard_normal(int(seconds * RATE_HZ)).astype(np.float32) * 0.05
            self._encode(noise)
            for token in range(4):
                self.decoder.step([token], self.text_bias())

    def transcribe(
        self,
        samples: Audio,
        *,
        languages: Sequence[str],
        hotwords: Sequence[str] = (),
        cancelled: Cancelled = never_cancelled,
    ) -> Hypothesis:
        """samples: float32 (n,) at 16 kHz, any n >= 0, read only. `cancelled` is asked between decoder steps; once it
        returns True the text decoded so far is dropped and an empty hypothesis comes back."""
        self._check_languages(languages)
        parts = [self._window(part, languages, hotwords, cancelled) for part in split_windows(samples)]
        kept = [part for part in parts if part.text]
        if not kept:
            return parts[0] if parts else Hypothesis("", languages[0], 0.0, 1.0)
        joint = "" if kept[0].language == "zh" else " "
        tokens = tuple(token for part in kept for token in part.tokens)
        logprob = float(np.average([p.avg_logprob for p in kept], weights=[len(p.tokens) + 1 for p in kept]))
        return Hypothesis(
            joint.join(p.text for p in kept), kept[0].language, logprob, min(p.no_speech for p in kept), tokens
        )

    def _check_languages(self, languages: Sequence[str]) -> None:
        unknown = [name for name in languages if name not in self.config.languages]
        if unknown or not languages:
            raise InputError(f"unknown languages {unknown}; this model knows {sorted(self.config.languages)}")

    def _encode(self, samples: Audio) -> None:
        """Run the encoder over `samples` and the silence behind, and hand the cross keys and values to the decoder."""
        rows, log_count = context_rows(samples.size, self.config.encoder_positions)
        self.encoder_rows = rows.size
        mass = ort.OrtValue.ortvalue_from_numpy(log_count.reshape(1, 1, 1, -1))
        binding = self._encoder.io_binding()
        binding.bind_cpu_input("mel", log_mel(samples, 2 * rows.size, self.config.mel_bands))
        binding.bind_cpu_input("positions", rows)
        binding.bind_ortvalue_input("log_count", mass)
        names = [meta.name for meta in self._encoder.get_outputs()]
        for name in names:
            binding.bind_output(name)
        self._encoder.run_with_iobinding(binding)
        self.decoder.begin({**dict(zip(names, binding.get_outputs(), strict=True)), "log_count": mass})

    def text_bias(self) -> NDArray[np.float32]:
        bias = np.zeros(self.config.vocabulary, np.float32)
        bias[list(self.config.suppress)] = -np.inf
        bias[list(self.config.languages.values())] = -np.inf
        bias[[t for name, t in self.config.tokens.items() if name != "end"]] = -np.inf
        return bias

    def _language_bias(self, languages: Sequence[str]) -> NDArray[np.float32]:
        bias = np.full(self.config.vocabulary, -np.inf, np.float32)
        bias[[self.config.languages[name] for name in languages]] = 0.0
        return bias

    def _window(
        self, samples: Audio, languages: Sequence[str], hotwords: Sequence[str], cancelled: Cancelled
    ) -> Hypothesis:
        """Recognise at most 30 s."""
        if samples.size < MIN_SPEECH_S * RATE_HZ or np.abs(samples).max(initial=0.0) < MIN_PEAK:
            return Hypothesis("", languages[0], 0.0, 1.0)
        self._encode(samples)
        special = self.config.tokens
        first = self.decoder.step([special["start"]], self._language_bias(languages))
        no_speech = float(np.exp(first.no_speech_logit - first.log_sum_exp))
        language_token = int(first.ids[0])
        language = next(name for name in languages if self.config.languages[name] == language_token)
        prompt = [language_token, special["transcribe"], special["no_timestamps"]]
        tree = self._tree(language, tuple(hotwords))
        tokens, logprob, boost = self._greedy(prompt, samples.size, tree, cancelled)
        text = self._tokenizer.decode(tokens, skip_special_tokens=True).strip()
        if language == "zh":
            text = self._simplified.convert(text)
        average = logprob / (len(tokens) + 1)
        if not believable(text, average, no_speech):
            return Hypothesis("", language, average, no_speech)
        # the guards were measured with what hot words add; the caller is told how likely the text is without it
        unbiased = average - boost / (len(tokens) + 1)
        return Hypothesis(text, language, unbiased, no_speech, tuple(tokens))

    def _tree(self, language: str, hotwords: tuple[str, ...]) -> HotwordTree:
        """The hot words written in `language`'s script, as Whisper writes them. Built once per list."""
        key = (language, hotwords)
        if key not in self._trees:
            self._trees.clear()
            spellings: set[str] = set()
            for word in hotwords:
                if is_chinese(word) != (language == "zh"):
                    continue
                if language == "zh":
                    spellings |= {word, self._traditional.convert(word)}
                else:
                    spellings |= {f" {word}", f" {word.capitalize()}"}
            encode = self._tokenizer.encode
            self._trees[key] = HotwordTree.of(encode(s, add_special_tokens=False).ids for s in sorted(spellings))
        return self._trees[key]

    def _greedy(
        self, prompt: list[int], samples: int, tree: HotwordTree, cancelled: Cancelled
    ) -> tuple[list[int], float, float]:
        """Decode until the end token. Returns the text tokens, the sum of their log-probabilities, end included, and
        how much of that sum the hot words added.
        """
        limit = min(
            8 + int(MAX_TOKENS_PER_S * samples / RATE_HZ), self.config.decoder_positions - self.decoder.filled - 4
        )
        bias, begin_bias = self.text_bias(), self.text_bias()
        begin_bias[list(self.config.suppress_at_begin)] = -np.inf
        state: frozenset[int] = frozenset()
        added = tree.boost(begin_bias, state)
        step = self.decoder.step(prompt, added)
        tokens: list[int] = []
        logprob, boost = 0.0, 0.0
        while len(tokens) < limit:
            if cancelled():
                return [], 0.0, 0.0
            token = int(step.ids[0])
            logprob += float(step.values[0]) - step.log_sum_exp
            boost += float(added[token])
            if token == self.config.tokens["end"]:
                break
            tokens.append(token)
            if repeats(tokens, MAX_REPEATS):
                return [], 0.0, 0.0
            state = tree.advance(state, token)
            added = tree.boost(bias, state)
            step = self.decoder.step([token], added)
        return tokens, logprob, boost


def is_chinese(text: str) -> bool:
    """True when `text` holds a CJK ideograph."""
    return any("\u4e00" <= character <= "\u9fff" for character in text)


def context_rows(samples: int, positions: int) -> tuple[NDArray[np.int64], NDArray[np.float32]]:
    """Rows of the positional table for `samples` of speech, and the log of how many rows each stands for (x TAIL_MASS).

    Both (T,): every row of the speech and its pad, then TAIL_ROWS spread to the table's end.
    """
    head = min(positions, math.ceil((samples / RATE_HZ + PAD_S) * RATE_HZ / (2 * HOP_SAMPLES)))
    count = min(TAIL_ROWS, positions - head)
    tail = np.rint(np.linspace(head, positions - 1, count)).astype(np.int64)
    mass = TAIL_MASS * math.log((positions - head) / count) if count else 0.0
    return np.concatenate([np.arange(head), tail]), np.repeat(np.array([0.0, mass], np.float32), [head, count])


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
