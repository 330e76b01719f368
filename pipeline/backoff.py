"""How long to wait before something that failed is tried again."""

from __future__ import annotations

import random
from collections.abc import Callable


class Backoff:
    """Twice as long each time, up to `most_s`, and up to half of it shorter by chance, so that programs that wait for
    the same device do not all try at once.
    """

    def __init__(self, first_s: float = 0.5, most_s: float = 15.0, chance: Callable[[], float] = random.random) -> None:
        self._first_s = first_s
        self._most_s = most_s
        self._chance = chance
        self._next_s = first_s

    def next_s(self) -> float:
        """Seconds to wait now."""
        wait_s, self._next_s = self._next_s, min(self._most_s, self._next_s * 2)
        return wait_s * (1 - self._chance() / 2)

    def reset(self) -> None:
        """It went well: the next time begins anew."""
        self._next_s = self._first_s
