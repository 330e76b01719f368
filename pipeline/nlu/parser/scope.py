"""Words that may turn a sentence round: an exception, a correction, a contrast, a condition, a time, a wish taken back.

The rules read a sentence clause by clause and see none of these. So where such a word stands and the model reads
something else than they do, their reading is not acted on; and what both read alike cannot hold an exception.
"""

from __future__ import annotations

import re

EXCEPTION = re.compile(
    r"\b(?:except|excluding|apart from|other than|besides|save for|only not|leave (?:the|my|mine)\b.*\bas)\b"
    r"|\b(?:all|every\w*|any|both)\b[^.]*\bbut (?:the|my|mine|for|not|his|hers|one|this)\b"
    r"|除了?[^，。]{1,10}(?:以外|之外|外|，|都|其)|以外|之外|别的|其他|其它|其余|不包括|剩下",
    re.IGNORECASE,
)
_AS_SOON_AS = "(?<![零一二三四五六七八九十百两])一(?![度点档挡格个])[^，。]{1,6}就(?!行|好|可以|够|是)"
_CORRECTED = (
    r"\b(?:wait|I mean\w*|meant|make (?:that|it)|sorry|scratch that|or rather|correction|oops|hang on|hold on)\b"
    r"|\b(?:er|uh|um|actually)\b,? \w+|[,.] no\b|\bno,"
    "|不对|不是|说错|等等|哦不|噢不|口误|改成|改为|换成|应该是|，不，"
)
_CONTRASTED = r"\b(?:not|instead of|rather than)\b|而不是|别是"
_TAKEN_BACK = (
    r"\b(?:never ?mind|forget (?:it|that)|nah|don't bother|changed my mind|leave it|second thoughts?|cancel that)\b"
    r"|\bit's (?:alright|fine|ok\w*)\b|算了|不用了|不要了|还是别|还是不|甭|罢了|没事了|当我没说"
)
_ONLY_THEN = (
    r"\b(?:if|when\w*|once|as soon as|until|unless|after|before|while|later|tomorrow|tonight|o'clock|half past)\b"
    r"|\bquarter (?:past|to)\b|\b(?:in|for) (?:an?|\w+) (?:seconds?|minutes?|hours?)\b"
    "|如果|要是|假如|万一|的时候|等到|一会|分钟|小时|点钟|以后|之后|就[^，。]{0,4}(?:锁|开|关)"
    f"|{_AS_SOON_AS}|超过|高于|低于|再说"
)
_TURN = re.compile("|".join((_CORRECTED, _CONTRASTED, _TAKEN_BACK, _ONLY_THEN)), re.IGNORECASE)


_TURNED = re.compile(
    r"\bI mean(?:t)?\b|\bno,? sorry\b|\b(?:no|oh),? wait\b|\bscratch that\b|\b(?:never ?mind|forget (?:it|that)|nah)\b"
    r"|\bchanged my mind\b|\bdon't bother\b|\b(?:unless|as soon as)\b"
    r"|\bif (?!you\b|possible|that's|it's (?:ok|alright|possible|not)|I may|we can)"
    "|说错|不对，|口误|哦不|噢不|，不，|还是别|还是不|还是甭|算了|不用了|当我没说"
    f"|(?:如果|要是|假如)(?!可以|方便|能|行)|万一|{_AS_SOON_AS}",
    re.IGNORECASE,
)
_NO = re.compile(r"\bno\b", re.IGNORECASE)


def may_turn(text: str) -> bool:
    """Whether the sentence may mean something else than its clauses one by one."""
    return turns(text) or _NO.search(text) is not None


def turns(text: str) -> bool:
    """Whether a word of scope is in the sentence; a bare "no" may be one ("no, the other") or not ("no more heat")."""
    return EXCEPTION.search(text) is not None or _TURN.search(text) is not None


def turned(text: str) -> bool:
    """Whether the sentence surely holds an exception, a correction, a condition, or a wish that is taken back: then
    calls that the rules read too are those of a sentence without it.
    """
    return EXCEPTION.search(text) is not None or _TURNED.search(text) is not None
