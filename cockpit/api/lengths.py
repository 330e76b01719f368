"""How long texts get: what memory is booked for before a text's length is known, and how many fit beside each other."""

from __future__ import annotations

import threading
from collections import deque
from math import ceil

_SEEN = 512
"""Texts that are remembered."""
_ENOUGH = 20
"""Below so many, a quantile says nothing yet."""
QUANTILE = 0.99
MARGIN = 1.25


class LengthsSeen:
    """Lengths of finished texts, in tokens. Books by the P99, never by the mean: half of all texts are longer than a
    median, and one that outgrows what was booked for it has to wait for others to end. Thread-safe.
    """

    def __init__(self) -> None:
        self._lock = threading.Lock()
        self._replies: deque[int] = deque(maxlen=_SEEN)
        self._wholes: deque[int] = deque(maxlen=_SEEN)
        self._reply: int | None = None
        self._whole: int | None = None

    def add(self, prompt_tokens: int, new_tokens: int) -> None:
        """A text has ended."""
        with self._lock:
            self._replies.append(new_tokens)
            self._wholes.append(prompt_tokens + new_tokens)
            self._reply, self._whole = _quantile(self._replies), _quantile(self._wholes)

    def booking(self, prompt_tokens: int, most_tokens: int) -> int:
        """Tokens to book for a text: its prompt, and the P99 of replies with a margin, at most what it may become."""
        reply = self._reply
        if reply is None:
            return prompt_tokens + most_tokens
        return prompt_tokens + min(most_tokens, ceil(reply * MARGIN) + 1)

    def at_once(self, room_bytes: int | None, token_bytes: int, most: int) -> int:
        """Texts of P99 length that `room_bytes` hold beside each other, 1 to `most`; `most` until enough were seen."""
        whole = self._whole
        if room_bytes is None or whole is None:
            return most
        return max(1, min(most, room_bytes // max(1, whole * token_bytes)))

    def shown(self) -> dict[str, int | None]:
        """For JSON."""
        return {"p99_reply_tokens": self._reply, "p99_text_tokens": self._whole}


def _quantile(lengths: deque[int]) -> int | None:
    if len(lengths) < _ENOUGH:
        return None
    return sorted(lengths)[ceil(QUANTILE * len(lengths)) - 1]
