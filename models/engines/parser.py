"""The parser's graph on ONNX Runtime: features of one sentence in, every logit out."""

from __future__ import annotations

import json
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import numpy as np
import onnxruntime
from numpy.typing import NDArray

from models.engines.placement import CpuPlacement
from models.engines.sentence_encoder import SentenceTokenizer
from models.errors import ModelDamaged, ModelMissing, fetch_command

F32 = NDArray[np.float32]
I64 = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class ParserScores:
    """Logits. reasons (R,); choices (K, all heads side by side); points (K, 3, T): number, first, last; what (2, T)."""

    reasons: F32
    choices: F32
    points: F32
    what: F32


class ParserEngine:
    """One loaded parser. Not thread-safe: one stage owns it. config: labels, tags, temperatures (parser.json)."""

    def __init__(
        self, session: onnxruntime.InferenceSession, config: dict[str, Any], tokenizer: SentenceTokenizer
    ) -> None:
        self._session = session
        self.config = config
        self.tokenizer = tokenizer

    @classmethod
    def load(cls, folder: Path, *, threads: int = 1) -> ParserEngine:
        """Load a built folder. Raises ModelMissing or ModelDamaged."""
        session = CpuPlacement(threads).open(folder / "parser.onnx").inner
        try:
            config = json.loads((folder / "parser.json").read_text(encoding="utf-8"))
        except OSError as error:
            raise ModelMissing(f"{error.filename} is missing; run: {fetch_command(folder.name)}") from error
        except ValueError as error:
            raise ModelDamaged(f"{folder}: {error}; run: {fetch_command(folder.name)}") from error
        return cls(session, config, SentenceTokenizer.load(folder))

    def run(self, ids: I64, cover: F32, shares: I64, sizes: I64, tags: I64, last: I64) -> ParserScores:
        """Scores of one sentence; inputs as pipeline/nlu/parser/features.py describes them."""
        inputs = {"ids": ids, "cover": cover, "shares": shares, "sizes": sizes, "tags": tags, "last": last}
        reasons, choices, points, what = self._session.run(["reasons", "choices", "points", "what"], inputs)
        return ParserScores(reasons[0], choices, points, what)
