"""Keys and values in host memory: dialogues that lost their cache to others, and beginnings that several texts share.

Both are found by their tokens: whatever begins as one of them does need not compute that beginning again.
"""

from __future__ import annotations

import threading
from collections import OrderedDict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass

from models.engines.llm.session import ParkedText, common

_PREFIX_SHARE = 0.5
"""Of the memory, what shared beginnings may take; they go only for other beginnings."""


@dataclass(frozen=True, slots=True)
class ParkedStatus:
    """What is parked now, and what happened since the start. shared_bytes: of `bytes`, what caches may show without a
    copy. dropped: for want of memory.
    """

    bytes: int
    shared_bytes: int
    limit_bytes: int
    dialogues: int
    prefixes: int
    parked: int
    restored: int
    dropped: int


class ParkedTexts:
    """At most `limit_bytes`; what was not used for the longest time goes first. Thread-safe."""

    def __init__(self, limit_bytes: int) -> None:
        self._limit_bytes = limit_bytes
        self._lock = threading.Lock()
        self._dialogues: OrderedDict[str, ParkedText] = OrderedDict()
        self._prefixes: OrderedDict[tuple[int, ...], ParkedText] = OrderedDict()
        self._parked = self._restored = self._dropped = 0

    def takes(self, size_bytes: int, *, prefix: bool = False) -> bool:
        """Whether a text of this size may be parked at all."""
        return 0 < size_bytes <= self._limit_bytes * (_PREFIX_SHARE if prefix else 1)

    def park(self, name: str, text: ParkedText) -> None:
        """Keep a dialogue's text, in place of an older one of that name."""
        with self._lock:
            self._dialogues.pop(name, None)
            self._dialogues[name] = text
            self._parked += 1
            while self._bytes() > self._limit_bytes and self._dialogues:
                self._dialogues.popitem(last=False)
                self._dropped += 1

    def keep_prefix(self, text: ParkedText) -> None:
        """Keep a beginning that several texts share. Shorter ones that it begins with are part of it."""
        with self._lock:
            for tokens in [tokens for tokens in self._prefixes if text.tokens[: len(tokens)] == tokens]:
                del self._prefixes[tokens]
            self._prefixes[text.tokens] = text
            while sum(_sizes(self._prefixes.values())) > self._limit_bytes * _PREFIX_SHARE:
                self._prefixes.popitem(last=False)
                self._dropped += 1
            while self._bytes() > self._limit_bytes and self._dialogues:
                self._dialogues.popitem(last=False)
                self._dropped += 1

    def best(self, tokens: Sequence[int]) -> tuple[ParkedText | None, int]:
        """What shares the longest beginning with `tokens`, and its length."""
        with self._lock:
            texts = [*self._dialogues.values(), *self._prefixes.values()]
            found = max(texts, key=lambda text: text.shares(tokens), default=None)
            if found is None:
                return None, 0
            if found.tokens in self._prefixes:
                self._prefixes.move_to_end(found.tokens)
            return found, found.shares(tokens)

    def covers(self, tokens: Sequence[int]) -> bool:
        """Whether a kept prefix begins with all of `tokens`."""
        with self._lock:
            return any(common(kept, tokens) == len(tokens) for kept in self._prefixes)

    def back(self, name: str) -> None:
        """The dialogue has a cache of its own again: its parked text is not needed."""
        with self._lock:
            if self._dialogues.pop(name, None) is not None:
                self._restored += 1

    def clear(self) -> None:
        """Keep nothing."""
        with self._lock:
            self._dialogues.clear()
            self._prefixes.clear()

    def _bytes(self) -> int:
        return sum(self._sizes())

    def _sizes(self) -> tuple[int, int]:
        return _sizes((*self._dialogues.values(), *self._prefixes.values()))

    def status(self) -> ParkedStatus:
        with self._lock:
            own, shared = self._sizes()
            return ParkedStatus(
                own + shared,
                shared,
                self._limit_bytes,
                len(self._dialogues),
                len(self._prefixes),
                self._parked,
                self._restored,
                self._dropped,
            )


def _sizes(texts: Iterable[ParkedText]) -> tuple[int, int]:
    """Bytes of the texts' own rows, and of what is stored for several texts, each part once."""
    kept = list(texts)
    parts = {part for text in kept for part, _ in text.shared.parts}
    return sum(text.size_bytes for text in kept), sum(part.size_bytes for part in parts)
