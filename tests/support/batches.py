"""Greedy decoding of several texts in one run each token."""

from __future__ import annotations

from collections.abc import Sequence

from models.engines.llm.batch import TextBatch
from models.engines.llm.session import Continuation, LmSession


def together(batch: TextBatch, sessions: Sequence[LmSession], count: int) -> list[list[int]]:
    """Greedy tokens of texts whose prompts are computed; chosen in one run of the head, as they are served."""
    going = [Continuation(session, count, None) for session in sessions]
    out: list[list[int]] = [[] for _ in sessions]
    while active := [index for index, each in enumerate(going) if not each.over]:
        missing = [index for index in active if sessions[index].missing]
        chosen: dict[int, int] = {}
        if missing:
            hidden = batch.step([sessions[index] for index in missing])
            chosen = dict(zip(missing, batch.head.best_each(hidden, [None] * len(missing)), strict=True))
        for index in active:
            token = chosen[index] if index in chosen else batch.head.best(sessions[index].last_hidden)
            if going[index].take(token):
                out[index].append(token)
    return out
