"""Text to what the parser's model reads: words, Chinese characters and punctuation as positions, each with its pieces.

A position has up to PIECES vocabulary entries (an English word that the vocabulary lacks is cut into the longest pieces
it has), the longest Chinese word of the vocabulary that covers it, what number begins or goes on there, and the tags of
the car's lexicon that lie on it (spelt alike only: the model hears by context, not by sound).
"""

from __future__ import annotations

import re
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import lru_cache

import numpy as np
from numpy.typing import NDArray

from pipeline.frames import ToolCall
from pipeline.nlu.lexicon import Lexicon, phrase_table
from pipeline.nlu.numbers import Number, find_numbers
from pipeline.nlu.phonetics import Token, is_cjk, simple_form

MOST_TOKENS = 64
"""Longer texts are not read: nobody says so much in one command."""
PIECES = 4
TAGS = 3
LONGEST_WORD = 5
"""Characters of the longest Chinese word looked up."""
UNKNOWN = "<unk>"
DIGITS = "<digits>"
"""A written number; its size is told by the number feature."""
PUNCTUATION = ",.!?;:'\"()，。！？；：、…《》“”‘’（）-~"
_TOKEN = re.compile(r"[㐀-鿿]|\d+(?:[.,]\d+)?|[A-Za-z]+(?:['’][A-Za-z]+)*|[%°℃℉]|[^\w\s]|[^\W\d_]+")
_COLLAPSED = ("place", "kind", "music")
"""Groups of names: that a name is known is told, not which."""

NUMBER_SIZES = (0.5, 1.5, 5.5, 10.5, 15.5, 30.5, 60.5, 100.5)
"""Upper ends of the classes of a number's size; larger, negative and broken numbers have classes of their own."""
NUMBER_CLASSES = 4 + len(NUMBER_SIZES)
"""0: no number; 1: goes on; 2: below zero; 3: not whole; then by size, the last being larger than all."""

IntArray = NDArray[np.int64]


@dataclass(frozen=True, slots=True)
class Features:
    """One text. tokens: positions with their place in the text; numbers: found in it, counted in `tokens`.

    pieces: (T, PIECES) vocabulary ids, 0 for none; words: (T,) the covering Chinese word's id, 0 for none; sizes: (T,)
    number classes; tags: (T, TAGS) lexicon tags, 0 for none; last: (2,) the last call's tool and way, 0 for
    none. All int64.
    """

    text: str
    tokens: tuple[Token, ...]
    numbers: tuple[Number, ...]
    pieces: IntArray
    words: IntArray
    sizes: IntArray
    tags: IntArray
    last: IntArray


def tag_names() -> list[str]:
    """Every tag that a position may carry, in the order of their ids, which begin at 1."""
    names = [tag for tag in phrase_table() if tag.partition(".")[0] not in _COLLAPSED]
    return [*names, *_COLLAPSED]


class FeatureReader:
    """Reads features. vocabulary: piece -> id from 1 on; a piece that begins a word is written with a space."""

    def __init__(self, vocabulary: Sequence[str], tags: Sequence[str], tools: Sequence[str], lexicon: Lexicon) -> None:
        self._ids: Mapping[str, int] = {piece: number for number, piece in enumerate(vocabulary, 1)}
        self._tags = {tag: number for number, tag in enumerate(tags, 1)}
        self._tools = {tool: number for number, tool in enumerate(tools, 1)}
        self._lexicon = lexicon
        self._pieces_of = lru_cache(maxsize=8192)(self._cut)

    def read(self, text: str, last_call: ToolCall | None = None) -> Features | None:
        """The features of `text`; None for one without a word, and for one of more than MOST_TOKENS positions."""
        tokens = split(text)
        if not tokens or len(tokens) > MOST_TOKENS:
            return None
        texts = [token.text for token in tokens]
        spoken = [i for i, word in enumerate(texts) if is_word(word)]
        if not spoken:
            return None
        words = [texts[i] for i in spoken]
        numbers = [Number(n.value, spoken[n.start], spoken[n.end - 1] + 1, n.open_ended) for n in find_numbers(words)]
        pieces = np.zeros((len(tokens), PIECES), np.int64)
        for i, word in enumerate(texts):
            cut = self._pieces_of(word)
            pieces[i, : len(cut)] = cut
        return Features(
            text=text,
            tokens=tuple(tokens),
            numbers=tuple(numbers),
            pieces=pieces,
            words=self._covering(texts),
            sizes=_sizes(len(tokens), numbers),
            tags=self._tagged([tokens[i] for i in spoken], spoken, len(tokens)),
            last=np.array([0, 0] if last_call is None else [self._tools.get(last_call.name, 0), way_of(last_call)]),
        )

    def _cut(self, word: str) -> list[int]:
        """Vocabulary ids of one position."""
        ids, unknown = self._ids, self._ids.get(UNKNOWN, 0)
        if word[0].isdigit():
            return [ids.get(DIGITS, unknown)]
        whole = ids.get(" " + word) if word[0].isascii() and word[0].isalpha() else ids.get(word)
        if whole is not None:
            return [whole]
        if not word[0].isalpha() or is_cjk(word):
            return [unknown]
        found: list[int] = []
        at, lead = 0, " "
        while at < len(word) and len(found) < PIECES:
            for end in range(len(word), at, -1):
                number = ids.get(lead + word[at:end])
                if number is not None:
                    found.append(number)
                    at, lead = end, ""
                    break
            else:
                at, lead = at + 1, ""
        return found or [unknown]

    def _covering(self, texts: Sequence[str]) -> IntArray:
        """For each Chinese character the longest word of the vocabulary that holds it, cut from left to right."""
        covering = np.zeros(len(texts), np.int64)
        i = 0
        while i < len(texts):
            width = 1
            for size in range(min(LONGEST_WORD, len(texts) - i), 1, -1):
                number = self._ids.get("".join(texts[i : i + size]))
                if number is not None and all(map(is_cjk, texts[i : i + size])):
                    covering[i : i + size] = number
                    width = size
                    break
            i += width
        return covering

    def _tagged(self, words: Sequence[Token], spoken: Sequence[int], count: int) -> IntArray:
        tags = np.zeros((count, TAGS), np.int64)
        for match in self._lexicon.find(words):
            names = sorted({_collapsed(tag) for tag in match.tags})
            ids = [self._tags[name] for name in names if name in self._tags][:TAGS]
            for word in range(match.start, match.end):
                tags[spoken[word], : len(ids)] = ids
        return tags


WAYS = 8


def way_of(call: ToolCall) -> int:
    """How a call went: 1 other, 2 on or open, 3 off or closed, 4 set to nothing, 5 set to a value, 6 up, 7 down."""
    arguments = call.arguments
    for name in ("on", "open", "locked"):
        if name in arguments:
            return 2 if arguments[name] else 3
    if "value" not in arguments:
        return {"open": 2, "closed": 3}.get(str(arguments.get("position")), 1)
    value = float(arguments["value"])
    if arguments.get("action") == "change":
        return 6 if value > 0 else 7
    return 5 if value else 4


def split(text: str) -> list[Token]:
    """Lower-case words, numbers, Chinese characters in their simple form, and punctuation, each with its place."""
    plain = simple_form(text).replace("’", "'")
    return [Token(hit.group().lower(), hit.start(), hit.end()) for hit in _TOKEN.finditer(plain)]


def is_word(token: str) -> bool:
    """Whether a position is one of those that `pipeline.nlu.phonetics.tokens_of` has too."""
    return is_cjk(token) or token in "%°℃℉" or (token[0].isascii() and token[0].isalnum())


def _collapsed(tag: str) -> str:
    group = tag.partition(".")[0]
    return group if group in _COLLAPSED else tag


def _sizes(count: int, numbers: Sequence[Number]) -> IntArray:
    sizes = np.zeros(count, np.int64)
    for number in numbers:
        sizes[number.start : number.end] = 1
        if number.value < 0:
            sizes[number.start] = 2
        elif not float(number.value).is_integer():
            sizes[number.start] = 3
        else:
            sizes[number.start] = 3 + sum(number.value > end for end in NUMBER_SIZES)
    return np.minimum(sizes, NUMBER_CLASSES - 1)
