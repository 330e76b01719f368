"""Short sounds by which a listener says "go on": over a reply they are no turn of their own.

The lists hold what drivers say and how Whisper spells it; a word that also answers a question ("yes", "no") is none,
and nothing is one while a question is being asked.
"""

from __future__ import annotations

import re

LONGEST_MS = 640
"""Speech longer than this is no backchannel. Spoken by two voices the longest, "Mm-hmm", took the VAD 544 ms."""

_WORDS = frozenset(
    [
        "ok",
        "okay",
        "o.k",
        "mm",
        "mmm",
        "mhm",
        "mm-hmm",
        "mmhmm",
        "mm-hm",
        "hm",
        "hmm",
        "uh-huh",
        "uh",
        "huh",
        "yeah",
        "yep",
        "yup",
        "right",
        "alright",
        "sure",
        "ah",
        "oh",
        "aha",
    ]
)
_PHRASES = frozenset(("i see", "got it", "all right", "very good", "sounds good"))
_MANDARIN = re.compile(r"(?:嗯|唔|哦|噢|喔|啊|对|好|好的|好吧|好啊|行|知道了|明白|明白了|是的|对的)+")
_EDGES = " .,!…。，！、~-"


def is_backchannel(text: str) -> bool:
    """True when `text` holds nothing but backchannels; False for an empty text and for a question."""
    plain = text.strip(_EDGES).lower()
    if not plain:
        return False
    if _MANDARIN.fullmatch(re.sub(r"[\s.,!…。，！、]", "", plain)):
        return True
    parts = [part.strip(_EDGES) for part in re.split(r"[.,!]\s+", plain)]
    return all(part in _PHRASES or all(word in _WORDS for word in part.split()) for part in parts)


def says_more(text: str) -> bool:
    """True when what was understood of an unfinished utterance is enough to be no backchannel: half a word is not."""
    plain = text.strip(_EDGES)
    signs = sum("\u4e00" <= sign <= "\u9fff" for sign in plain)
    return not is_backchannel(text) and (len(plain.split()) >= 2 or signs >= 3)
