"""multilingual-e5-small on ONNX Runtime: texts to vectors whose dot product says how alike they mean, across zh and en.

The model was trained with a word before each text: "query: " before what is looked for and before texts that are
compared with each other, "passage: " before what is looked through (intfloat/multilingual-e5-small, model card).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from functools import lru_cache
from pathlib import Path
from threading import Lock
from typing import Any, Literal

import numpy as np
import onnxruntime
from numpy.typing import NDArray
from tokenizers import Tokenizer

from models.engines.placement import CpuPlacement
from models.errors import ModelDamaged, ModelMissing, fetch_command

F32 = NDArray[np.float32]
SPACE = "\u2581"
"""What a piece that begins a word begins with."""
Side = Literal["query", "passage"]


_reading = Lock()


@lru_cache(maxsize=1)
def _read_tokenizer(text: str) -> Tokenizer:
    return Tokenizer.from_str(text)


def _tokenizer(text: str) -> Tokenizer:
    """The tokenizer of a tokenizer.json: read once, the encoder's and the parser's are the same (0.6 s, 60 MB)."""
    with _reading:
        return _read_tokenizer(text)


class SentenceTokenizer:
    """Text to the encoder's ids. Thread-safe."""

    def __init__(self, inner: Tokenizer, config: dict[str, Any]) -> None:
        self._inner = inner
        self._replaced: dict[str, str] = config["replaced"]
        self._mark = inner.token_to_id(SPACE)
        self.longest = int(config["positions"])
        self.first, self.last, self.unknown = (int(config[name]) for name in ("bos", "eos", "unk"))

    @classmethod
    def load(cls, folder: Path) -> SentenceTokenizer:
        """Read a built folder. Raises ModelMissing or ModelDamaged."""
        try:
            config = json.loads((folder / "tokens.json").read_text(encoding="utf-8"))
            text = (folder / "tokenizer.json").read_text(encoding="utf-8")
        except OSError as error:
            raise ModelMissing(f"{error.filename} is missing; run: {fetch_command(folder.name)}") from error
        except ValueError as error:
            raise ModelDamaged(f"{folder}: {error}; run: {fetch_command(folder.name)}") from error
        return cls(_tokenizer(text), config)

    def pieces(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of `text` without the marks of its ends, and for each the characters [start, end) of `text` it covers.

        A mark of a word's beginning that stands alone covers none.
        """
        replaced, source = [], []
        for number, character in enumerate(text):
            read = self._replaced.get(character, character)
            replaced.append(read)
            source += [number] * len(read)
        found = self._inner.encode("".join(replaced), add_special_tokens=False)
        places = [(source[start], source[end - 1] + 1) for start, end in found.offsets]
        ids = list(found.ids)
        return ids, [
            (start, start if id_ == self._mark else end) for id_, (start, end) in zip(ids, places, strict=True)
        ]

    def piece(self, number: int) -> str:
        """The text of an id; a word's beginning is marked with U+2581."""
        return str(self._inner.id_to_token(number))

    def windows(self, text: str) -> list[list[int]]:
        """Ids of `text` with the marks of its ends, in as many stretches as the encoder's longest text makes needed."""
        ids, _ = self.pieces(text)
        room = self.longest - 2
        starts = range(0, max(len(ids), 1), room)
        return [[self.first, *ids[start : start + room], self.last] for start in starts]


class SentenceEncoder:
    """One loaded encoder. Not thread-safe: one stage owns it."""

    def __init__(self, session: onnxruntime.InferenceSession, tokenizer: SentenceTokenizer) -> None:
        self._session = session
        self._tokenizer = tokenizer
        self.width = int(session.get_outputs()[0].shape[0])

    @classmethod
    def load(cls, folder: Path, *, threads: int = 1) -> SentenceEncoder:
        """Load a built folder. Raises ModelMissing or ModelDamaged."""
        return cls(CpuPlacement(threads).open(folder / "encoder.onnx").inner, SentenceTokenizer.load(folder))

    def embed(self, texts: Sequence[str], side: Side = "query") -> F32:
        """(n, width) float32 of length 1, one row a text. A text longer than the encoder reads at once is read in
        stretches, and its row is their mean, weighted by their length.
        """
        rows = np.zeros((len(texts), self.width), np.float32)
        for number, text in enumerate(texts):
            for ids in self._tokenizer.windows(f"{side}: {text.strip()}"):
                (vector,) = self._session.run(["vector"], {"tokens": np.array(ids, np.int64)})
                rows[number] += max(len(ids) - 2, 1) * vector
            rows[number] /= np.linalg.norm(rows[number])
        return rows
