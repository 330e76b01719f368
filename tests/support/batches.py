"""Greedy decoding of several texts in one run each token."""

from __future__ import annotations

from collections.abc import Sequence

from models.engines.llm.batch import TextBatch
from models.engines.llm.session import Continuation, LmSession


def together(batch: TextBatch, sessions: Sequence[LmSession], count: int) -> list[list[int]]:
    """Greedy tokens of texts whose prompts are computed."""
    going = [Continuation(session, count, None) for session in sessions]
    out: list[list[int]] = [[] for _ in sessions]
    while any(not each.over for each in going):
        waiting = [each for each in going if not each.over and each.session.missing]
        if waiting:
            batch.step([each.session for each in waiting])
        chosen = [index for index, each in enumerate(going) if not each.over]
        for index in chosen:
            token = batch.head.best(going[index].session.last_hidden)
            if going[index].take(token):
                out[index].append(token)
    return out
