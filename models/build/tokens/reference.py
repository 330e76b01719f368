"""Token ids of a GGUF file's vocabulary, computed plainly from its own tables: what the built tokenizer must give.

Shares no code with the `tokenizers` library nor with llm_tokenizer.py: the splits are Python's own regular expressions,
the merges are done one by one. Milliseconds a text, which is enough for the corpus of a check.
"""

from __future__ import annotations

import re
import sys
import unicodedata
from collections.abc import Callable, Sequence
from functools import cache, cached_property
from itertools import groupby

from models.build.llm_gguf import CONTROL, USER_DEFINED, Checkpoint
from models.errors import InputError

_SPACE = "\u2581"
_CONTRACTIONS = "'s|'t|'re|'ve|'m|'ll|'d"
_TAIL = r"| ?[^\s{L}{N}]+[\r\n]*|\s*[\r\n]+|\s+(?!\S)|\s+"
_SPLITS = {
    "qwen2": rf"(?i:{_CONTRACTIONS})|[^\r\n{{L}}{{N}}]?[{{L}}]+|[{{N}}]" + _TAIL,
    "llama-bpe": rf"(?i:{_CONTRACTIONS})|[^\r\n{{L}}{{N}}]?[{{L}}]+|[{{N}}]{{1,3}}" + _TAIL,
    "smollm": rf"{_CONTRACTIONS}| ?[{{L}}]+| ?[{{N}}]+| ?[^\s{{L}}{{N}}]+|\s+(?!\S)|\s+",
}
"""By the name in `tokenizer.ggml.pre`, as llama.cpp defines them (src/llama-vocab.cpp)."""
_DIGITS_ALONE = frozenset({"smollm"})
"""Before the split every numeral stands alone."""


class ReferenceTokenizer:
    """One file's vocabulary. `encode` recognises control marks that are written in the text."""

    def __init__(self, checkpoint: Checkpoint) -> None:
        self._tokens: Sequence[str] = checkpoint.field("tokenizer.ggml.tokens")
        self._types: Sequence[int] = checkpoint.field("tokenizer.ggml.token_type")
        self._ids = {token: number for number, token in enumerate(self._tokens)}
        self._checkpoint = checkpoint
        kind = str(checkpoint.field("tokenizer.ggml.model"))
        if kind not in ("gpt2", "llama"):
            raise InputError(f"{checkpoint.path.name}: tokenizer {kind!r} is not known (known: gpt2, llama)")
        self._part = self._byte_level if kind == "gpt2" else self._sentencepiece

    def encode(self, text: str) -> list[int]:
        """Token ids of `text`, without a start token."""
        ids: list[int] = []
        for number, part in enumerate(self._whole_tokens.split(text)):
            if part:
                ids += [self._ids[part]] if number % 2 else self._part(part)
        return ids

    @cached_property
    def _whole_tokens(self) -> re.Pattern[str]:
        """Tokens that are matched as they stand in the text, the longest first."""
        whole = [t for t, kind in zip(self._tokens, self._types, strict=True) if kind in (CONTROL, USER_DEFINED)]
        choices = "|".join(re.escape(token) for token in sorted(whole, key=len, reverse=True))
        return re.compile(f"({choices or '(?!)'})")

    # --- byte-level BPE: GPT-2 and its descendants --------------------------------------------------------------------
    def _byte_level(self, text: str) -> list[int]:
        pre = str(self._checkpoint.field("tokenizer.ggml.pre"))
        if pre not in _SPLITS:
            raise InputError(f"pre-tokenizer {pre!r} is not known (known: {', '.join(_SPLITS)})")
        ids = []
        for part in _numerals_alone(text) if pre in _DIGITS_ALONE else [text]:
            for word in split_pattern(pre).findall(part):
                pieces = [_BYTE_TO_CHARACTER[byte] for byte in word.encode()]
                ids += [self._ids[piece] for piece in merged(pieces, self._rank_of_pair)]
        return ids

    @cached_property
    def _ranks(self) -> dict[tuple[str, str], int]:
        merges: Sequence[str] = self._checkpoint.field("tokenizer.ggml.merges")
        pairs = (merge.split(" ", 1) for merge in merges)
        return {(left, right): rank for rank, (left, right) in enumerate(pairs)}

    def _rank_of_pair(self, left: str, right: str) -> float | None:
        return self._ranks.get((left, right))

    # --- SentencePiece BPE: Gemma, Llama 2 ----------------------------------------------------------------------------
    def _sentencepiece(self, text: str) -> list[int]:
        before = _SPACE if self._checkpoint.field("tokenizer.ggml.add_space_prefix", False) else ""
        pieces = merged([*(before + text.replace(" ", _SPACE))], self._rank_of_union)
        ids = []
        for piece in pieces:
            if piece in self._ids:
                ids.append(self._ids[piece])
            else:
                ids += [self._ids[f"<0x{byte:02X}>"] for byte in piece.encode()]
        return ids

    @cached_property
    def _scores(self) -> Sequence[float]:
        scores: Sequence[float] = self._checkpoint.field("tokenizer.ggml.scores")
        return scores

    def _rank_of_union(self, left: str, right: str) -> float | None:
        union = self._ids.get(left + right)
        return None if union is None else -self._scores[union]


def merged(pieces: list[str], rank: Callable[[str, str], float | None]) -> list[str]:
    """`pieces` after the best neighbours were joined, again and again, the first of equals first. rank: lower is
    better, None is never.
    """
    pieces = list(pieces)
    while True:
        ranked = [(r, at) for at in range(len(pieces) - 1) if (r := rank(pieces[at], pieces[at + 1])) is not None]
        if not ranked:
            return pieces
        _, at = min(ranked)
        pieces[at : at + 2] = [pieces[at] + pieces[at + 1]]


def _numerals_alone(text: str) -> list[str]:
    parts: list[str] = []
    for numeral, group in groupby(text, lambda c: unicodedata.category(c).startswith("N")):
        characters = list(group)
        parts += characters if numeral else ["".join(characters)]
    return parts


@cache
def split_pattern(pre: str) -> re.Pattern[str]:
    """The words that merges stay inside of. Python's `re` has no \\p{L}: the classes are written out."""
    return re.compile(_SPLITS[pre].replace("{L}", _class_of("L")).replace("{N}", _class_of("N")))


@cache
def _class_of(letter: str) -> str:
    """Every character whose Unicode category begins with `letter`, as the inside of a character class."""
    hits = [point for point in range(sys.maxunicode + 1) if unicodedata.category(chr(point))[0] == letter]
    ranges: list[list[int]] = []
    for point in hits:
        if ranges and point == ranges[-1][1] + 1:
            ranges[-1][1] = point
        else:
            ranges.append([point, point])
    return "".join(f"\\U{first:08x}-\\U{last:08x}" for first, last in ranges)


def _characters_of_bytes() -> list[str]:
    """GPT-2's table: printable bytes stand for themselves, the others for characters from U+0100 on."""
    plain = {*range(0x21, 0x7F), *range(0xA1, 0xAD), *range(0xAE, 0x100)}
    further = iter(range(0x100, 0x200))
    return [chr(byte) if byte in plain else chr(next(further)) for byte in range(0x100)]


_BYTE_TO_CHARACTER = _characters_of_bytes()
