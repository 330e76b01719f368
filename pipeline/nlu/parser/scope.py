"""Words that may turn a sentence round: an exception, a correction, a contrast, a condition, a time, a wish taken back.

The rules read a sentence clause by clause and see none of these. So where such a word stands and the model reads
something else than they do, their reading is not acted on; and what both read alike cannot hold an exception.
"""

from __future__ import annotations

import re

_EXCEPTION = (
    r"\b(?:except|excluding|apart from|other than|besides|save for|only not|leave (?:the|my|mine)\b.*\bas)\b"
    r"|\b(?:all|every\w*|any|both)\b[^.]*\bbut (?:the|my|mine|for|not|his|hers|one|this)\b"
    r"|除了?[^，。]{1,10}(?:以外|之外|外|，|都|其)|以外|之外|别的|其他|其它|其余|不包括|剩下"
)
_CORRECTED = (
    r"\bI mean(?:t)?\b|\bno,? (?:sorry|actually)\b|\b(?:uh|er|oh),? no\b|\b(?:no|oh),? wait\b|\bscratch that\b"
    r"|\bmake that\b|\bor rather\b|错了|不对[，,呀啊]?|口误|哦不|噢不|啊不|呃不|嗯不|，不，|更正|，我是说"
)
_CONTRAST = r"\b(?:instead of|rather than)\b|[，,]不是(?!吗|吧)"
_TAKEN_BACK = (
    r"\b(?:never ?mind|forget (?:it|that)|nah|changed my mind|don't bother)\b"
    "|还是别|还是不|还是甭|算了(?!还是[^别不甭算])|不用了|当我没说"
)
_ONLY_THEN = (
    r"\b(?:unless|as soon as)\b|\bif (?!you\b|possible|that's|it's (?:ok|alright|possible|not)|I may|we can)"
    "|(?:如果|要是|假如)(?!可以|方便|能|行)|万一"
    "|(?<![零一二三四五六七八九十百两])一(?![度点档挡格个])[^，。]{1,6}就(?!行|好|可以|够|是)"
    "|(?:下雨|下雪|天黑|天亮|到家|停车|睡着|醒|堵车|起雾|上车|下车|雨[停大小])了[，, ]?就(?!行|好|可以|够|是|这|停)"
    "|(?:过了|到了|超过|高于|低于|再[^，。]{1,3}一?[点些])[^，。]{0,6}就(?!行|好|可以|够|是)"
)
_PERHAPS = (
    r"\b(?:wait|meant|make (?:that|it)|sorry|or rather|correction|oops|hang on|hold on|not|instead of|rather than"
    r"|leave it|second thoughts?|cancel that|it's (?:alright|fine|ok\w*)|if|when\w*|once|until|after|before|while|later"
    r"|tomorrow|tonight|o'clock|half past|quarter (?:past|to)|(?:in|for) (?:an?|\w+) (?:seconds?|minutes?|hours?))\b"
    r"|\b(?:er|uh|um|actually)\b,? \w+|[,.] no\b|\bno,"
    "|不对|不是|等等|改成|改为|换成|应该是|别是|不要了|甭|罢了|没事了"
    "|(?:的|这边|那边|那个|那扇|这扇)(?:先)?(?:别|不用|不要|不动|留着)"
    "|如果|要是|假如|的时候|等到|一会|分钟|小时|点钟|以后|之后|就[^，。]{0,4}(?:锁|开|关)|超过|高于|低于|再说"
)
"""Words of the same kinds that are as often said without turning anything round ("make it warmer", "if you can")."""
_SURELY = re.compile("|".join((_EXCEPTION, _CORRECTED, _CONTRAST, _TAKEN_BACK, _ONLY_THEN)), re.IGNORECASE)
_BUT_CORRECTED = re.compile("|".join((_EXCEPTION, _CONTRAST, _TAKEN_BACK, _ONLY_THEN)), re.IGNORECASE)
_CORRECTION = re.compile(_CORRECTED, re.IGNORECASE)
_PERHAPS_TOO = re.compile(_PERHAPS, re.IGNORECASE)
_TASTE = re.compile(
    r"^\W*(?:I|we|he|she|they)\s+(?:really |just |always |also |do )?(?:love|like|enjoy|hate|adore)s?\b(?! to\b)",
    re.IGNORECASE,
)
_NOT_MEANT = re.compile(
    r"\b(?:not|instead of|rather than)\b(?! (?:so|too|that|very|yet|now|enough|as)\b)([^,.;]+)"
    "|(?<!是)不是(?!吗|吧|很|太)([^，,。是]+)",
    re.IGNORECASE,
)
_LEFT_OUT = re.compile(
    r"\b(?:except(?: for)?|excluding|apart from|other than|besides|save for)\b([^,.;]+)"
    "|除了?([^，。]{1,12}?)(?:以外|之外|外|，|都|其)",
    re.IGNORECASE,
)
_STATE = re.compile("(?:[了着好上下来开关]没有?|[了着]吗|着(?:还是|没|的吗))[^，。]{0,4}[？?。]?$")
_POLITE = re.compile(
    r"^\W*(?:can|could|would|will) you\b|^[^，。]{0,3}(?:能不能|可不可以|可以|能|麻烦)(?!.*(?:怎么|如何))",
    re.IGNORECASE,
)
_BUT_CONTRASTED = re.compile("|".join((_EXCEPTION, _CORRECTED, _TAKEN_BACK, _ONLY_THEN)), re.IGNORECASE)
_TAKES_BACK = re.compile(_TAKEN_BACK, re.IGNORECASE)
_NO = re.compile(r"\bno\b", re.IGNORECASE)


def may_turn(text: str) -> bool:
    """Whether the sentence may mean something else than its clauses one by one."""
    return turns(text) or _NO.search(text) is not None


def turns(text: str) -> bool:
    """Whether a word of scope is in the sentence; a bare "no" may be one ("no, the other") or not ("no more heat")."""
    return turned(text) or _PERHAPS_TOO.search(text) is not None


def turned(text: str) -> bool:
    """Whether the sentence surely holds an exception, a correction, a condition, or a wish that is taken back: then
    calls that the rules read too are those of a sentence without it.
    """
    return _SURELY.search(text) is not None


def tells_taste(text: str) -> bool:
    """Whether the sentence says what somebody likes or hates, which is no wish for now: "I love open windows"."""
    return _TASTE.search(text) is not None


def corrected_at(text: str) -> int | None:
    """Where what counts begins behind "no wait", 不对; None for a sentence without such a word."""
    return max((found.end() for found in _CORRECTION.finditer(text)), default=None)


def contrasted_at(text: str) -> tuple[int, int] | None:
    """Characters [start, end) of what is not meant, behind "not", "instead of", 不是; None where nothing is said so."""
    found = _NOT_MEANT.search(text)
    if found is None:
        return None
    return found.span(1) if found.group(1) is not None else found.span(2)


def excepted_at(text: str) -> tuple[int, int] | None:
    """Characters [start, end) of what is left out, behind "except", 除了; None where nothing is."""
    found = _LEFT_OUT.search(text)
    if found is None:
        return None
    return found.span(1) if found.group(1) is not None else found.span(2)


def asks_state(text: str) -> bool:
    """Whether the sentence asks how something is and wishes nothing: 右后窗户落下来没有."""
    return _STATE.search(text) is not None


_TO_BE_SAID = re.compile(
    r"^\W*(?:just |please |now )*(?:say|tell (?:me|us|them|him|her)|repeat(?: after me)?)\b[:,]? (?:that )?"
    r"(?:the|my|all|every|it|this|that|you)\b.*\b(?:is|are|was|were|has|have)\b"
    r"|^\W*(?:thanks|thank you|well done|good job) (?:for|on|that you)\b"
    "|^(?:多谢|谢谢|感谢)你?(?:帮[我忙]|把|给我|刚才|刚刚)|^(?:你|请|快)?(?:就|跟我|跟着我|给我)(?:说|念|讲|读)(?!明)",
    re.IGNORECASE,
)


def only_told(text: str) -> bool:
    """Whether something is to be said, or is thanked for, and nothing to be done: "say the windows are closed"."""
    return _TO_BE_SAID.search(text) is not None


def asks_politely(text: str) -> bool:
    """Whether the sentence begins as a request in the form of a question: "Can you ...?", 能不能."""
    return _POLITE.search(text) is not None


def only_contrasted(text: str) -> bool:
    """Whether a contrast ("rather than mine") is all that turns the sentence."""
    return contrasted_at(text) is not None and _BUT_CONTRASTED.search(text) is None


def taken_back(text: str) -> bool:
    """Whether a wish may be taken back: "never mind", 算了."""
    return _TAKES_BACK.search(text) is not None


def only_corrected(text: str) -> bool:
    """Whether a correction is all that turns the sentence."""
    return corrected_at(text) is not None and _BUT_CORRECTED.search(text) is None
