"""Transcript text to evidence: which clause says which of the car's words, numbers and places.

Nothing is decided here. `intents/rules.py` turns the evidence of a clause into the calls it supports.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from functools import cache
from itertools import pairwise

from pipeline.frames import Language
from pipeline.nlu.compose import compose
from pipeline.nlu.lexicon import Lexicon, Match
from pipeline.nlu.numbers import Number, find_numbers, is_doubtful, number_span
from pipeline.nlu.phonetics import Token, is_cjk, simple_form, tokens_of

SPLITTERS = (
    "and then",
    "and also",
    "and",
    "then",
    "also",
    "after that",
    "plus",
    "然后",
    "并且",
    "并",
    "再",
    "接着",
    "同时",
    "以及",
    "顺便",
    "和",
    "而且",
)
"""Words between two commands."""
_MORE_OF = frozenset("大高低小响亮暗快慢热冷暖凉多少强弱轻一两二三四五六七八九十")
"""After 再 these mean more of the same, not a second command."""
_PAUSES = ",;.!?，。；！？、:"
_PAUSE_IN_NUMBER = frozenset(",.，。、")
"""The recogniser writes one where a speaker hesitates, also inside a number: "4, 1%"."""


@dataclass(frozen=True, slots=True)
class Evidence:
    """One clause. Match and number positions count in `tokens`; `text` is the clause as heard."""

    text: str
    tokens: tuple[Token, ...]
    matches: tuple[Match, ...]
    numbers: tuple[Number, ...]
    language: Language
    question_mark: bool = False
    tags: frozenset[str] = field(default_factory=frozenset)
    doubtful_number: bool = False
    """A number may be longer than it was understood: it is not acted on."""

    @property
    def words(self) -> tuple[str, ...]:
        """The words as matched."""
        return tuple(token.text for token in self.tokens)

    def has(self, *tags: str) -> bool:
        """True when one of these exact tags was heard."""
        return any(tag in self.tags for tag in tags)

    def names(self, group: str) -> list[str]:
        """Names heard of a group, in order of the text."""
        return [name for match in self.matches for name in match_names(match, group)]

    def of(self, group: str) -> list[Match]:
        """Matches that carry a tag of the group."""
        return [match for match in self.matches if match.has(group)]

    def slice_text(self, start: int, end: int) -> str:
        """The words [start, end) as they stand in the text, in simple characters."""
        if start >= end:
            return ""
        return simple_form(self.text)[self.tokens[start].start : self.tokens[end - 1].end]


def match_names(match: Match, group: str) -> list[str]:
    """The names of `group` that a match carries, sorted."""
    return sorted(tag[len(group) + 1 :] for tag in match.tags if tag.startswith(group + "."))


def evidence_of(text: str, lexicon: Lexicon, language: Language) -> Evidence:
    """All evidence of one piece of text."""
    tokens = tuple(tokens_of(text))
    words = [token.text for token in tokens]
    found = [match for match in lexicon.find(tokens) if not (_goes_on(match, words) or _counts(match, words))]
    numbers = tuple(number for number in find_numbers(words) if not any(_swallows(match, number) for match in found))
    spans = [(token.start, token.end) for token in tokens]
    plain = simple_form(text).lower().replace("’", "'")
    alone = [match for match in found if not any(_crosses(match, number) for number in numbers)]
    matches = tuple(compose(plain, alone, numbers, spans, by_sound=lexicon.by_sound))
    tags = frozenset(tag for match in matches for tag in match.tags)
    asks = text.rstrip().endswith(("?", "？"))
    doubtful = is_doubtful(words, numbers) or any(_paused(text, tokens, number) for number in numbers)
    return Evidence(text, tokens, matches, numbers, language, asks, tags, doubtful)


_OTHER_PLACE = (
    "路",
    "街",
    "巷",
    "大道",
    "医院",
    "酒店",
    "小区",
    "street",
    "road",
    "avenue",
    "lane",
    "hospital",
    "hotel",
)
"""A known name before one of these is part of another's: 西湖路 is not the lake."""


def _goes_on(match: Match, words: Sequence[str]) -> bool:
    """Whether the place that was found is only the beginning of a name that nobody knows."""
    if not (match.has("place") or match.has("kind")):
        return False
    following = words[match.end : match.end + 2]
    return bool(following) and (following[0] in _OTHER_PLACE or "".join(following) in _OTHER_PLACE)


def _counts(match: Match, words: Sequence[str]) -> bool:
    """Whether 一个 was taken for 一格: it only counts."""
    return match.cost > 0 and list(words[match.start : match.end]) == ["一", "个"]


def _paused(text: str, tokens: Sequence[Token], number: Number) -> bool:
    """A pause in the midst of a number: "twenty, two degrees"."""
    inside = tokens[number.start : number.end]
    return any(not _PAUSE_IN_NUMBER.isdisjoint(text[a.end : b.start]) for a, b in pairwise(inside))


def _crosses(match: Match, number: Number) -> bool:
    """A match and a number on the same words: "一点" inside "二十一点五" is no little."""
    return number.start < match.end and match.start < number.end


def _swallows(match: Match, number: Number) -> bool:
    """A word that holds the number and more is that word: "一半", "三分之一", "风两" for 风量."""
    inside = match.start <= number.start and number.end <= match.end
    return inside and match.end - match.start > number.end - number.start


def pieces(text: str, lexicon: Lexicon) -> Iterator[str]:
    """The text cut at pauses and at words that join commands; each piece without the joining word, in order."""
    tokens = tokens_of(text)
    whole = _unbroken(tokens, lexicon)
    between = _between_digits(tokens)
    cut_at: list[tuple[int, int]] = []
    i = 0
    while i < len(tokens):
        width = _splitter_at(tokens, i)
        if width and not any(low < i + width and i < high for low, high in whole):
            cut_at.append((tokens[i].start, tokens[i + width - 1].end))
            i += width
        else:
            i += 1
    for position, character in enumerate(text):
        pause = character in _PAUSES or (character == " " and _between_cjk(text, position))
        if (
            pause
            and not _inside_number(text, position)
            and not (character in _PAUSE_IN_NUMBER and any(low <= position < high for low, high in between))
        ):
            cut_at.append((position, position + 1))
    cut_at.sort()
    start = 0
    for low, high in cut_at:
        if low >= start:
            yield text[start : high if text[low:high] in ("?", "？") else low]
            start = high
    yield text[start:]


def _between_digits(tokens: list[Token]) -> list[tuple[int, int]]:
    """Ranges of the text inside a number and between two numbers with nothing but a pause between them."""
    words = [token.text for token in tokens]
    spans = [number_span(words, number) for number in find_numbers(words)]
    joined = [(low, high) for low, high in spans]
    joined += [(first[0], second[1]) for first, second in pairwise(spans) if first[1] == second[0]]
    return [(tokens[low].end, tokens[high - 1].start) for low, high in joined]


def _unbroken(tokens: list[Token], lexicon: Lexicon) -> list[tuple[int, int]]:
    """Token ranges that no joining word cuts: numbers ("nineteen and a half"), names ("和平饭店", "协和医院"), words
    with it in their midst ("暖和一点") and how something shall be ("nice and warm").
    """
    praised = [
        (i, i + 3)
        for i in range(len(tokens) - 1)
        if tokens[i].text in ("nice", "good", "lovely") and tokens[i + 1].text == "and"
    ]
    numbers = [(number.start, number.end) for number in find_numbers([token.text for token in tokens])]
    named = ("place", "kind", "device", "music", "command")
    said = [match for match in lexicon.find(tokens) if match.cost == 0.0]
    names = [(match.start, match.end) for match in said if any(match.has(group) for group in named)]
    covered = {i for match in said for i in range(match.start, match.end)}
    names += [
        (match.start - 2, match.end)
        for match in said
        if (match.has("place") or match.has("kind"))
        and match.start > 1
        and tokens[match.start - 1].text == "和"
        and match.start - 2 not in covered
    ]
    return (
        praised
        + numbers
        + names
        + [(match.start + 1, match.end) for match in said if match.has("verb") or match.has("feel")]
    )


@cache
def _splitters() -> dict[str, list[tuple[str, list[str]]]]:
    """Every splitter and its words, by the first of them, in the order of SPLITTERS."""
    by_first: dict[str, list[tuple[str, list[str]]]] = defaultdict(list)
    for splitter in SPLITTERS:
        parts = list(splitter) if is_cjk(splitter[0]) else splitter.split()
        by_first[parts[0]].append((splitter, parts))
    return dict(by_first)


def _splitter_at(tokens: list[Token], i: int) -> int:
    for splitter, parts in _splitters().get(tokens[i].text, ()):
        if [token.text for token in tokens[i : i + len(parts)]] == parts:
            follows = "".join(token.text for token in tokens[i + 1 : i + 2])
            return 0 if splitter == "再" and follows in _MORE_OF else len(parts)
    return 0


def _between_cjk(text: str, position: int) -> bool:
    """A space that the recogniser wrote for a pause in Chinese."""
    return 0 < position < len(text) - 1 and is_cjk(text[position - 1]) and is_cjk(text[position + 1])


def _inside_number(text: str, position: int) -> bool:
    return 0 < position < len(text) - 1 and text[position - 1].isdigit() and text[position + 1].isdigit()
