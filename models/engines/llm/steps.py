"""The seam for what computes single tokens faster than the graphs do, in the memory that the graphs use.

Prompts, drafts and scores stay with ONNX Runtime. A placement that has kernels of its own for a model offers a
`StepDecoder`; where it has none it says why, and the graphs compute every token.
"""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from typing import Protocol, runtime_checkable

import onnxruntime as ort

from models.engines.llm.memory import Sizes
from models.engines.placement import Buffer

StepRow = tuple[int, int, int]
"""(token, its position, slot of its text)."""


@dataclass(frozen=True, slots=True)
class StepModel:
    """One loaded model: what it is and where everything lies.

    rms_epsilon: None in folders that were built before it was written. weights: by the names of the graphs'
    initializers. caches: "key.0", "value.0", ...: (slots, kv_heads, rows, head_dim). hidden: (slots, hidden), one row a
    slot. logits: float32 (rows, vocab) and best: int64 (rows, 1), as the head's graph leaves them.
    """

    architecture: str
    rms_epsilon: float | None
    sizes: Sizes
    weights: Mapping[str, ort.OrtValue]
    caches: Mapping[str, Buffer]
    hidden: Buffer
    logits: Buffer
    best: Buffer


class StepDecoder(Protocol):
    """One lane's decoder of one model. One thread uses it at a time."""

    texts: int
    """Most texts in one step."""

    def step(self, rows: Sequence[StepRow]) -> None:
        """Queue one token of each text: its keys and values go to its slot's cache, its hidden state to `hidden` at its
        slot, its logits and the best token to row i of `logits` and `best`. `Placement.read` waits for it.
        """
        ...


@runtime_checkable
class DecodesSteps(Protocol):
    """A placement that may have such a decoder."""

    def step_decoder(self, model: StepModel) -> StepDecoder | str:
        """The decoder of `model` in this lane, made at start; or why there is none.

        Raises ModelMissing and FingerprintMismatch, naming the command, where its kernels are not compiled.
        """
        ...
