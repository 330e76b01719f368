"""Whether what was heard over a reply is a stretch of that reply: its own echo, which is nobody's wish.

In order and nearly without a change: the driver who says the same words in another order ("Open the driver window"
over "The driver window is now open") means something by them.
"""

from __future__ import annotations

import re

from rapidfuzz import fuzz

_SPACES = re.compile(r"[\W_]+")
_LEAST_SIGNS = 8
_LEAST_MANDARIN = 4
_ALIKE = 88.0


def is_own_words(heard: str, said: str) -> bool:
    """heard: a transcript; said: the text of the reply that sounds. False for a word or two: they may answer it."""
    plain, whole = (_SPACES.sub(" ", text).strip().lower() for text in (heard, said))
    mandarin = sum("\u4e00" <= sign <= "\u9fff" for sign in plain)
    if len(plain) < _LEAST_SIGNS and mandarin < _LEAST_MANDARIN:
        return False
    return len(plain) <= len(whole) * 1.2 and fuzz.partial_ratio(plain, whole) >= _ALIKE
