"""Contextual biasing: phrases as token sequences in a prefix tree that boosts what may continue one of them.

Shallow fusion for a greedy decoder: a boost cannot be taken back when the phrase breaks off, so opening a phrase earns
less than going on with one that the decoder opened by itself.
"""

from __future__ import annotations

from collections.abc import Iterable, Sequence

import numpy as np
from numpy.typing import NDArray

START_BOOST = 1.0
"""Nats added to the first token of a phrase."""
INSIDE_BOOST = 3.0
"""Nats added to a token that goes on with an open phrase."""


class HotwordTree:
    """The phrases of one language. Nodes are numbers, 0 is the root; a state is the set of nodes that are open."""

    def __init__(self, children: Sequence[dict[int, int]]) -> None:
        self._children = children

    @classmethod
    def of(cls, phrases: Iterable[Sequence[int]]) -> HotwordTree:
        """phrases: token ids; empty ones are left out."""
        children: list[dict[int, int]] = [{}]
        for phrase in phrases:
            node = 0
            for token in phrase:
                if token not in children[node]:
                    children[node][token] = len(children)
                    children.append({})
                node = children[node][token]
        return cls(children)

    def advance(self, state: frozenset[int], token: int) -> frozenset[int]:
        """The nodes open after `token`; phrases that end there are closed."""
        reached = (self._children[node].get(token) for node in (0, *state))
        return frozenset(node for node in reached if node is not None and self._children[node])

    def boost(self, bias: NDArray[np.float32], state: frozenset[int]) -> NDArray[np.float32]:
        """`bias` (V,) with the boosts of `state` added: a copy. Masked tokens (-inf) stay masked."""
        boosted = bias.copy()
        boosted[list(self._children[0])] += START_BOOST
        inside = self.inside(state)
        boosted[list(inside)] += list(inside.values())
        return boosted

    def inside(self, state: frozenset[int]) -> dict[int, float]:
        """Token -> nats that `state` adds to the boosts of no open phrase."""
        tokens = {token for node in state for token in self._children[node]}
        return {token: INSIDE_BOOST - START_BOOST * (token in self._children[0]) for token in sorted(tokens)}
