"""A streamed reply to clauses: what must not be spoken is filtered out, and the first clause is let go early.

The first clause may end at a comma, or before a word that opens a new part of the sentence ("which", "because", 从而),
once it is long enough to cover the making of the next; later ones end with their sentence. A clause is display text:
`pipeline.tts.normalise.spoken` turns it into what the voice says.
"""

from __future__ import annotations

import re

from pipeline.frames import Language

# Between these nothing is spoken. An opened one that never closes hides the rest of the reply.
HIDDEN: tuple[tuple[str, str], ...] = (
    ("<think>", "</think>"),
    ("<thinking>", "</thinking>"),
    ("<tool_call>", "</tool_call>"),
    ("```", "```"),
    ("~~~", "~~~"),
)
_TAGS = tuple(dict.fromkeys(tag for pair in HIDDEN for tag in pair))
_CLOSER_OF = dict(HIDDEN)
_OPEN_OR_STRAY = re.compile("|".join(re.escape(tag) for tag in _TAGS), re.IGNORECASE)

FIRST_CLAUSE_UNITS = 4
"""Shortest first clause cut at a comma: a Han character counts 1, a Latin word or number 1.5 (about 0.2 s a unit)."""
FIRST_BREAK_UNITS = 7.5
"""Shortest first clause cut before a joining word, where no mark tells the voice to pause: five words."""
LONGEST_UNITS = 60
"""A clause this long is cut at its last comma, or else at its last space: it bounds the time to the next sound."""

_LETTERS_PER_UNIT = 6
_UNIT = re.compile(r"(?P<han>[\u3400-\u9fff])|[^\W_]+(?:['.:][^\W_]+)*")
_CLOSERS = "”’」』）)]】》\"'*_`~"
_OPENERS = re.compile(r"[“‘「『（(【《\"*_`]")
_CANDIDATE = re.compile(r"\n|[。！？；…]+|[.!?;:,]+|[，：—]+")
_ABBREVIATIONS = frozenset(
    [
        "dr",
        "mr",
        "mrs",
        "ms",
        "prof",
        "st",
        "mt",
        "ft",
        "no",
        "vs",
        "e.g",
        "i.e",
        "approx",
        "min",
        "max",
        "temp",
        "jr",
        "sr",
        "fig",
        "vol",
        "dept",
        "est",
        "hwy",
        "w",
        "u.s",
        "u.k",
        "jan",
        "feb",
        "mar",
        "apr",
        "jun",
        "jul",
        "aug",
        "sep",
        "sept",
        "oct",
        "nov",
        "dec",
    ]
)
_MAYBE_ABBREVIATIONS = frozenset(
    ["a.m", "p.m", "am", "pm", "etc", "inc", "ltd", "co", "ave", "rd", "blvd", "ln", "pkwy", "u.s", "u.k", "st", "dr"]
)
# A part of a sentence begins with these. More words must follow: a lone last word sounds torn off. No mark may stand
# among them, or else the cut would depend on how the text came in.
_JOINING_EN = re.compile(
    r"(?<=[a-z]) (?=(?:(?:but|because|which|while|when|where|if|unless|until|although|so that|due to|in order to"
    r"|by \w+ing|that (?:\w+s|are|can))"
    r"|(?:and|so|that)(?= (?:it|they|you|we|I|this|then|the car)\b)) (?P<next>[A-Za-z'-]+) [A-Za-z'-]+\s)"
)
_JOINING_ZH = re.compile(
    r"(?<=[\u3400-\u9fff])(?=(?:并且?|从而|以便|因为|所以|但是?|而且|同时|然后|以及|或者|如果|这样|使得|用来)"
    r"[\u3400-\u9fff]{4})"
)
_NUMBER_WORD = re.compile(
    r"(?:\d|\b(?:one|two|three|four|five|six|seven|eight|nine|ten|\w+teen|\w+ty|hundred|thousand|million|half|quarter"
    r"|point|minus|between|both|either|more|less|up|on|off|back))$",
    re.IGNORECASE,
)
_TURNING_WORDS = frozenset(
    ["a", "an", "the", "of", "to", "for", "in", "at", "by", "with", "from", "not", "very", "and", "or", "but"]
)
_WORD_BEFORE = re.compile(r"(?:^|[\s(\"'“‘\u3400-\u9fff])([A-Za-z][A-Za-z.]*)$")
_LIST_NUMBER = re.compile(r"(?:^|\n)\s*\d{1,3}$")


class ReplyFilter:
    """Takes thoughts, tool calls and code blocks out of a streamed text, also where a tag comes in pieces."""

    def __init__(self) -> None:
        self._pending = ""
        self._closer: str | None = None

    def push(self, text: str) -> str:
        """What of the text so far is certain to be shown, beyond what was returned before."""
        self._pending += text
        shown = ""
        while True:
            if self._closer is None:
                found = _OPEN_OR_STRAY.search(self._pending)
                if found is None:
                    keep = _tag_begun(self._pending, _TAGS)
                    cut = len(self._pending) - keep
                    shown, self._pending = shown + self._pending[:cut], self._pending[cut:]
                    return shown
                shown += self._pending[: found.start()]
                self._pending = self._pending[found.end() :]
                self._closer = _CLOSER_OF.get(found[0].lower())
                shown += "\n" if self._closer else ""
            else:
                end = self._pending.lower().find(self._closer)
                if end < 0:
                    keep = _tag_begun(self._pending, (self._closer,))
                    self._pending = self._pending[len(self._pending) - keep :]
                    return shown
                self._pending = self._pending[end + len(self._closer) :]
                self._closer = None

    def close(self) -> str:
        """The rest: a tag that was only begun is text after all."""
        rest = "" if self._closer else self._pending
        self._pending, self._closer = "", None
        return rest


def _tag_begun(text: str, tags: tuple[str, ...]) -> int:
    """Length of the longest end of `text` that may be the beginning of one of `tags`."""
    longest = max(len(tag) for tag in tags) - 1
    for length in range(min(longest, len(text)), 0, -1):
        if any(tag.startswith(text[-length:].lower()) for tag in tags):
            return length
    return 0


class ClauseStream:
    """Splits one reply. `push` returns the clauses that are complete, `close` the rest; then it is as new."""

    def __init__(self, language: Language) -> None:
        self.language = language
        self._filter = ReplyFilter()
        self._buffer = ""
        self._first = True

    def push(self, text: str) -> list[str]:
        """Clauses completed by `text`, each stripped and not empty."""
        self._buffer += self._filter.push(text)
        return self._take(final=False)

    def close(self) -> list[str]:
        """The clauses that are left at the end of the reply."""
        self._buffer += self._filter.close()
        clauses = self._take(final=True)
        self._buffer, self._first = "", True
        return clauses

    def _take(self, *, final: bool) -> list[str]:
        clauses = []
        while (end := _clause_end(self._buffer, first=self._first, final=final)) is not None:
            clause, self._buffer = self._buffer[:end].strip(), self._buffer[end:]
            if clause:
                clauses.append(clause)
                self._first = self._first and not _UNIT.search(clause)
        if final and self._buffer.strip():
            clauses.append(self._buffer.strip())
        return clauses


def units(text: str) -> float:
    """Rough length as speech, see FIRST_CLAUSE_UNITS."""
    return sum(_length(unit) for unit in _UNIT.finditer(text))


def _length(unit: re.Match[str]) -> float:
    return 1.0 if unit["han"] else max(1.5, len(unit[0]) / _LETTERS_PER_UNIT)


def _clause_end(text: str, *, first: bool, final: bool) -> int | None:
    """Where the first clause of `text` ends, None while that is not certain."""
    soft = 0
    early = _early_end(text) if first else None
    for mark in _CANDIDATE.finditer(text):
        end = mark.end()
        while end < len(text) and text[end] in _CLOSERS:
            end += 1
        if early is not None and early <= mark.start():
            return early
        kind = _kind(text, mark, end, final)
        if kind == "wait":
            return None
        if units(text[:end]) > LONGEST_UNITS:
            break
        if kind == "hard":
            return end
        if kind == "soft":
            if first and units(text[:end]) >= FIRST_CLAUSE_UNITS:
                return end
            soft = end
    if early is not None:
        return early
    if units(text) <= LONGEST_UNITS:
        return None
    return soft or _cut_by_length(text)


def _early_end(text: str) -> int | None:
    """Where a first clause may end before a joining word; never inside a name, a number or brackets."""
    for pattern in (_JOINING_EN, _JOINING_ZH):
        for joint in pattern.finditer(text):
            before = text[: joint.start()]
            end = before.rpartition(" ")[2]
            if units(before) < FIRST_BREAK_UNITS or _OPENERS.search(before) or _NUMBER_WORD.search(before):
                continue
            if pattern is _JOINING_EN:
                named = end[:1].isupper() or (joint["next"][:1].isupper() and joint["next"] != "I")
                if named or end.lower() in _TURNING_WORDS:
                    continue
            return joint.end()
    return None


def _cut_by_length(text: str) -> int:
    """End of the last unit within LONGEST_UNITS."""
    length, end = 0.0, 0
    for unit in _UNIT.finditer(text):
        length += _length(unit)
        if length > LONGEST_UNITS:
            break
        end = unit.end()
    return end or LONGEST_UNITS * _LETTERS_PER_UNIT


def _kind(text: str, mark: re.Match[str], end: int, final: bool) -> str:
    """ "hard": a sentence ends here; "soft": a breath; "none": part of a word or number; "wait": more text decides."""
    sign = mark[0]
    if sign == "\n":
        return "hard"
    if sign[0] in "。！？；":
        # The mark that closes a quotation or an emphasis belongs to this clause: wait for it where one is open.
        return "wait" if end == len(text) and not final and _OPENERS.search(text[: mark.start()]) else "hard"
    if sign[0] in "，：":
        return "soft"
    if sign[0] in "…—":
        return "soft"
    if end == len(text):
        # A full stop at the end of what has come so far may be a decimal point; an abbreviation needs the next word.
        return "hard" if final else "wait"
    following = text[end]
    if not following.isspace() and not "\u3400" <= following <= "\u9fff":
        return "none"
    if sign[0] in ",:":
        return "soft"
    if sign[0] in "!?;":
        return "hard"
    if len(sign) > 1:
        return "soft"
    return _full_stop(text[: mark.start()], text[end:].lstrip(" "), final)


def _full_stop(before: str, after: str, final: bool) -> str:
    if _LIST_NUMBER.search(before):
        return "none"
    word = _WORD_BEFORE.search(before)
    if word is None:
        return "hard"
    name = word[1].lower()
    if name in _MAYBE_ABBREVIATIONS and before[-1:] != " ":
        if not after:
            return "hard" if final else "wait"
        is_name = name in ("st", "dr") and not re.search(r"[a-z] $", before[: word.start(1)])
        return "hard" if after[0].isupper() and not is_name else "none"
    if name in _ABBREVIATIONS or (len(name) == 1 and name != "i"):
        return "none"
    return "hard"
