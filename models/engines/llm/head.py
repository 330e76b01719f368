"""The head graph at run time: from a hidden state to the next token, over the whole vocabulary or over given ids."""

from __future__ import annotations

from collections.abc import Sequence

import numpy as np
import onnxruntime as ort
from numpy.typing import NDArray

F32 = NDArray[np.float32]
Ids = NDArray[np.int64]

MODE_PLAIN, MODE_FEW, MODE_MANY, MODE_SCORE, MODE_FULL = range(5)
"""As in the built graph: see models/build/llm_head.py."""
FEW_LIMIT = 4096
"""Up to this many allowed ids it is cheaper to read their exact rows than to multiply with the whole quick head."""
ROWS_AT_ONCE = 32
"""Rows per run where each row's shortlist is unpacked to float32, about 2 MB each."""
NO_IDS: Ids = np.empty(0, np.int64)


class LmHead:
    """Owns the head session. Every call takes hidden (R, hidden) float32 and leaves it as it was."""

    def __init__(self, session: ort.InferenceSession) -> None:
        self._session = session
        self._modes = [np.array([mode], np.int64) for mode in range(5)]

    def _run(self, hidden: F32, mode: int, allowed: Ids) -> tuple[Ids, F32]:
        feed = {"hidden": hidden, "mode": self._modes[mode], "allowed": allowed}
        ids, values = self._session.run(["ids", "values"], feed)
        return ids, values

    def best(self, hidden: F32, allowed: Ids | None = None) -> int:
        """The arg-max token of the last row, among `allowed` (int64, not empty) when given."""
        if allowed is None:
            mode, allowed = MODE_PLAIN, NO_IDS
        else:
            mode = MODE_FEW if allowed.size <= FEW_LIMIT else MODE_MANY
        return int(self._run(hidden, mode, allowed)[0][-1, 0])

    def best_each(self, hidden: F32, allowed: Sequence[Ids | None]) -> list[int]:
        """The arg-max token of every row, among its own `allowed` where given: those without share one run."""
        free = [row for row, ids in enumerate(allowed) if ids is None]
        best = dict(zip(free, self.best_rows(hidden[free]).tolist(), strict=True)) if free else {}
        rows = enumerate(allowed)
        return [best[row] if ids is None else self.best(hidden[row : row + 1], ids) for row, ids in rows]

    def row(self, hidden: F32, index: int) -> F32:
        """One row, (1, hidden)."""
        return hidden[index : index + 1]

    def best_rows(self, hidden: F32) -> Ids:
        """The arg-max token of every row, (R,)."""
        return np.concatenate([self._run(hidden[i], MODE_PLAIN, NO_IDS)[0][:, 0] for i in _slices(len(hidden))])

    def log_probabilities(self, parts: Sequence[F32], targets: Ids) -> F32:
        """Log-probability (R,) of `targets` (R,) over the whole vocabulary, nats. parts: their R rows, in order."""
        hidden = parts[0] if len(parts) == 1 else np.concatenate(parts)
        return np.concatenate([self._run(hidden[i], MODE_SCORE, targets[i])[1][:, 0] for i in _slices(len(hidden))])

    def logits(self, hidden: F32) -> F32:
        """All logits (R, vocab): for measuring quality only; they are large."""
        return np.concatenate([self._run(hidden[i], MODE_FULL, NO_IDS)[1] for i in _slices(len(hidden))])


def _slices(rows: int) -> list[slice]:
    return [slice(start, start + ROWS_AT_ONCE) for start in range(0, rows, ROWS_AT_ONCE)]
