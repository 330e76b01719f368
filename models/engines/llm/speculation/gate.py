"""Whether guessing ahead pays: off by itself while too few guesses are right."""

from __future__ import annotations

PAYS_FROM = 0.4
"""Share of guesses that must be right. On two cores a further row of a run costs 12 ms and a further run 20 (the
default model): a run with k guesses of which a are right saves 32 a - 12 k.
"""
JUDGED = 24
"""Guesses after which their share is looked at."""
PAUSE_TOKENS = 64
"""Tokens without guesses after too few were right."""


class DraftGate:
    """One text's. pauses: how often it closed."""

    def __init__(self) -> None:
        self.pauses = 0
        self._offered = 0
        self._accepted = 0
        self._pause = 0

    @property
    def open(self) -> bool:
        """Whether to guess now."""
        return self._pause == 0

    def passed(self, tokens: int = 1) -> None:
        """So many tokens came without a guess."""
        self._pause = max(0, self._pause - tokens)

    def saw(self, offered: int, accepted: int) -> None:
        """Of so many guesses so many were right."""
        self._offered += offered
        self._accepted += accepted
        if self._offered >= JUDGED:
            if self._accepted < PAYS_FROM * self._offered:
                self._pause, self.pauses = PAUSE_TOKENS, self.pauses + 1
            self._offered = self._accepted = 0
