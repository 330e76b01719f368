"""Whether a reply of the model only says the user's own words again.

A small model answers what it cannot do by repeating it ("腿托上移": "腿托上移。"), which sounds as if it were done.
"""

from __future__ import annotations

import re

from pipeline.frames import Language

_PART = re.compile(r"[㐀-鿿]|[^\W_]+")
_EMPTY: dict[Language, re.Pattern[str]] = {
    "en": re.compile(
        r"an?|the|to|of|in|on|at|for|with|and|or|is|are|am|be|been|will|would|can|could|should|do|does|did|i|you|s?he|it|we"
        r"|they|my|your|his|her|its|our|their|me|us|this|that|these|those|t?here|now|then|so|just|please|ll|[vr]e|[stmd]"
        r"|as|by|from|up|out"
    ),
    "zh": re.compile("[的了吗呢啊吧呀把将请我你您它为是在就也会要给帮来去着过得地这那个已经正现]"),
}
"""Words that say nothing new wherever they stand."""
_STEM = 4
"""English words that begin alike count as one: "slide", "sliding"."""
_MOST_NEW = 0.1
"""Share of a reply's parts that may be new in an echo of a question."""
_MOST_NEW_OF_A_WISH = 0.4
"""And in one of a wish, where the reply is hardly longer: it is the wish in other words."""
_ANSWERS = re.compile(r"\s*(?:yes|no|yeah|nope)\b|\s*(?:是的|对的?[，,。]|不|没)", re.IGNORECASE)
_CHOICE = re.compile(r"\bor\b|还是|或者", re.IGNORECASE)
_QUESTION: dict[Language, re.Pattern[str]] = {
    "en": re.compile(
        r"\?|^\W*(?:(?:hey|ok|so|and|well|um|uh)\W+)*(?:what|who|whose|whom|when|where|why|which|how|whats|hows|is|are|was"
        r"|were|am|do|does|did|has|have|had|should|would|could|can|may|might|will|tell me|explain|describe|define)\b",
        re.IGNORECASE,
    ),
    "zh": re.compile(
        r"[?？吗呢]|什么|怎么|怎样|哪|谁|几|多少|多大|多远|多久|多高|为何|为什么|是不是|有没有|能不能|可不可以|如何|还是|介绍|解释|讲"
    ),
}


def is_question(text: str, language: Language) -> bool:
    """Whether words that the car has no tool for ask for something to be told, and not to be done."""
    return _QUESTION[language].search(text) is not None


def is_echo(reply: str, asked: str, language: Language) -> bool:
    """Whether `reply` says nothing that `asked` has not said. A yes, a no and the choice of one of two are answers."""
    if not asked or _ANSWERS.match(reply) or (_CHOICE.search(asked) and is_question(asked, language)):
        return False
    said = _parts(reply, language)
    heard = _parts(asked, language)
    new = sum(part not in heard for part in said)
    reworded = not is_question(asked, language) and len(said) <= len(heard) + 1
    return bool(said) and new <= (_MOST_NEW_OF_A_WISH if reworded else _MOST_NEW) * len(said)


def _parts(text: str, language: Language) -> list[str]:
    """Characters of Chinese, beginnings of other words, without what says nothing."""
    parts = [match[0].lower() for match in _PART.finditer(text)]
    return [part[:_STEM] for part in parts if not _EMPTY[language].fullmatch(part)]
