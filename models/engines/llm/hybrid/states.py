"""Recurrent states of one text: what a run goes on from, and snapshots to go back to.

Keys and values of any position can be used again; a state is only what it was after its last token. So a text that is
rewound goes on from the latest snapshot before that place, and computes the tokens between again.
"""

from __future__ import annotations

from collections.abc import Mapping
from dataclasses import dataclass, field

import numpy as np
from numpy.typing import NDArray

Values = dict[str, NDArray[np.float32]]
"""One text's states by the names of the graph ("conv.0", "ssm.0", ...), (1, ...) each. Never written to."""

RECENT = 2
"""Snapshots of the last prompts' ends: a turn that begins as the last one did goes on from there."""
MARKED = 3
"""Snapshots at boundaries that were named: the static beginning, the tools, a turn."""


@dataclass(frozen=True, slots=True)
class Snapshot:
    """The states after the first `position` tokens."""

    position: int
    values: Values

    @property
    def size_bytes(self) -> int:
        return sum(values.nbytes for values in self.values.values())


@dataclass(slots=True)
class TextStates:
    """shapes: of one text's states by name."""

    shapes: Mapping[str, tuple[int, ...]]
    position: int = 0
    values: Values = field(init=False)
    recent: list[Snapshot] = field(default_factory=list)
    marked: list[Snapshot] = field(default_factory=list)

    def __post_init__(self) -> None:
        self.values = self.nothing()

    def nothing(self) -> Values:
        """The states before the first token."""
        return {name: np.zeros((1, *shape), np.float32) for name, shape in self.shapes.items()}

    @property
    def state_bytes(self) -> int:
        """Of one snapshot."""
        return sum(int(np.prod(shape)) * 4 for shape in self.shapes.values())

    def resumable(self, count: int) -> int:
        """The last position up to `count` that a run can go on from."""
        if self.position == count:
            return count
        return max((held.position for held in self._held() if held.position <= count), default=0)

    def go_to(self, position: int) -> None:
        """Be as after the first `position` tokens, which `resumable` said; what was after them is forgotten."""
        if self.position != position:
            found = next((held for held in self._held() if held.position == position), None)
            assert found is not None or not position, f"no state after {position} tokens"
            self.values = self.nothing() if found is None else found.values
            self.position = position
        self.recent = [held for held in self.recent if held.position <= position]
        self.marked = [held for held in self.marked if held.position <= position]

    def advance(self, values: Values, tokens: int) -> None:
        """A run over `tokens` gave these."""
        self.values, self.position = values, self.position + tokens

    def remember(self) -> None:
        """Take a snapshot; the oldest of the recent ones goes."""
        if self.position and all(held.position != self.position for held in self._held()):
            self.recent = [*self.recent[-(RECENT - 1) :], Snapshot(self.position, self.values)]

    def mark(self, count: int) -> None:
        """Keep the state after `count` tokens, if it is at hand: a boundary that texts will come back to."""
        if self.position == count:
            self.remember()
        found = next((held for held in self.recent if held.position == count), None)
        if found is not None:
            self.recent.remove(found)
            self.marked = [*self.marked[-(MARKED - 1) :], found]

    def snapshots(self, count: int) -> tuple[Snapshot, ...]:
        """What is known of the first `count` tokens, the present state among them."""
        here = (Snapshot(self.position, self.values),) if 0 < self.position <= count else ()
        return (*(held for held in self._held() if held.position <= count), *here)

    def take(self, snapshots: tuple[Snapshot, ...]) -> None:
        """Another text's snapshots, of the same tokens as this one's now."""
        known = {held.position for held in self._held()}
        fresh = sorted((s for s in snapshots if s.position not in known), key=lambda held: held.position)
        self.marked = sorted([*self.marked, *fresh], key=lambda held: held.position)[-MARKED:]

    def forget(self) -> None:
        """As before the first token."""
        self.recent, self.marked, self.position = [], [], 0
        self.values = self.nothing()

    def _held(self) -> list[Snapshot]:
        return [*self.marked, *self.recent]
