"""Draft tokens without a second model: a text that repeats itself is guessed to go on as it did before."""

from __future__ import annotations

from collections.abc import Sequence


def propose(tokens: Sequence[int], most: int) -> list[int]:
    """Up to `most` tokens that followed where the text last ended as it does now; none when it never did.

    Three equal tokens are preferred to two, and the latest place to earlier ones.
    """
    if most < 1 or len(tokens) < 3:
        return []
    third, second, last = tokens[-3:]
    pair = 0
    ends = [at for at, token in enumerate(tokens) if token == last]
    for at in reversed(ends[:-1]):
        if at < 1 or tokens[at - 1] != second:
            continue
        if at > 1 and tokens[at - 2] == third:
            return list(tokens[at + 1 : at + 1 + most])
        pair = pair or at
    return list(tokens[pair + 1 : pair + 1 + most]) if pair else []
