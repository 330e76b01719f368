"""The parser's vocabulary: pieces of the default language model's, with its embedding rows turned to fewer dimensions.

The rows know that 打开 and 开启, "chilly" and "cold" are alike without a sentence that says so. They are centred,
scaled to one length, turned to their principal axes and stay as they are in training, so words that no training
sentence has lie beside those that it has.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from pathlib import Path

import numpy as np
from numpy.typing import NDArray

from models.build.llm_gguf import Checkpoint

UNKNOWN, DIGITS = "<unk>", "<digits>"
"""As in pipeline/nlu/parser/features.py."""
FREQUENT_WORDS = 60_000
"""English words up to this id of the language model's vocabulary, whose ids fall with frequency."""
LONGEST_PIECE = 4
"""Letters of a piece within a word."""
LONGEST_WORD = 5
_CJK = re.compile(r"[㐀-鿿]+")
_WORD = re.compile(r" [a-z]+(?:'[a-z]+)?")
_PIECE = re.compile(r"[a-z]+")


@dataclass(frozen=True, slots=True)
class Vocabulary:
    """pieces: id - 1 -> text. table: (n, dimensions) float32. kept: share of the rows' variance that is left."""

    pieces: list[str]
    table: NDArray[np.float32]
    kept: float


def vocabulary_of(checkpoint: Path, dimensions: int) -> Vocabulary:
    """Read a GGUF file whose vocabulary is byte-level BPE. Raises InputError for what is none."""
    opened = Checkpoint.open(checkpoint)
    texts = [_text(token) for token in opened.field("tokenizer.ggml.tokens")]
    chosen = [i for i, text in enumerate(texts) if text is not None and _wanted(text, i)]
    rows = opened.values("token_embd.weight")
    digits = [i for i, text in enumerate(texts) if text is not None and re.fullmatch(r"\d", text)]
    table = np.concatenate((rows[chosen], rows[digits].mean(0, keepdims=True)))
    turned, kept = _turned(table, dimensions)
    unknown = np.zeros((1, dimensions), np.float32)
    names = [str(texts[i]) for i in chosen]
    return Vocabulary([UNKNOWN, DIGITS, *names], np.concatenate((unknown, turned[-1:], turned[:-1])), kept)


def _wanted(text: str, number: int) -> bool:
    if _CJK.fullmatch(text):
        return len(text) <= LONGEST_WORD
    if _WORD.fullmatch(text):
        return number < FREQUENT_WORDS
    if _PIECE.fullmatch(text):
        return len(text) <= LONGEST_PIECE and number < FREQUENT_WORDS
    return len(text) == 1 and not text.isalnum() and text.isprintable() and not text.isspace()


def _turned(rows: NDArray[np.float32], dimensions: int) -> tuple[NDArray[np.float32], float]:
    centred = rows - rows.mean(0)
    centred /= np.linalg.norm(centred, axis=1, keepdims=True) + 1e-6
    values, axes = np.linalg.eigh(centred.T @ centred)
    kept = float(values[-dimensions:].sum() / values.sum())
    turned = centred @ axes[:, ::-1][:, :dimensions]
    scaled: NDArray[np.float32] = (turned / turned.std()).astype(np.float32)
    return scaled, kept


def _text(token: str) -> str | None:
    """The text of a byte-level token; None where it is no whole text."""
    bytes_of = _byte_values()
    try:
        return bytes(bytes_of[character] for character in token).decode()
    except (KeyError, UnicodeDecodeError):
        return None


def _byte_values(known: dict[str, int] = {}) -> dict[str, int]:  # noqa: B006  filled once
    """The byte behind each character of a byte-level vocabulary (GPT-2's table)."""
    if not known:
        printable = [*range(ord("!"), ord("~") + 1), *range(ord("¡"), ord("¬") + 1), *range(ord("®"), ord("ÿ") + 1)]
        others = [byte for byte in range(256) if byte not in printable]
        known |= {chr(byte): byte for byte in printable}
        known |= {chr(256 + i): byte for i, byte in enumerate(others)}
    return known


def quantised(table: NDArray[np.float32]) -> tuple[NDArray[np.int8], NDArray[np.float32]]:
    """(n + 1, d) int8 rows and (n + 1,) scales; row 0 is no piece."""
    padded = np.concatenate((np.zeros((1, table.shape[1]), np.float32), table))
    scales = np.abs(padded).max(1) / 127
    rows = np.rint(padded / np.where(scales == 0, 1, scales)[:, None]).astype(np.int8)
    return rows, scales.astype(np.float16).astype(np.float32)


def rounded(table: NDArray[np.float32]) -> NDArray[np.float32]:
    """The rows as the graph will read them, so that training sees the same."""
    rows, scales = quantised(table)
    return (rows * scales[:, None])[1:].astype(np.float32)


def joined(pieces: Sequence[str]) -> NDArray[np.uint8]:
    """The pieces as stored: lines of UTF-8."""
    return np.frombuffer("\n".join(pieces).encode(), np.uint8)
