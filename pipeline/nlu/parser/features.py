"""Text to what the parser's model reads: the encoder's pieces; words, Chinese characters, punctuation as positions.

A position has the pieces that lie on it, the size of a number that begins or goes on there, and the tags of the car's
lexicon that lie on it (spelt alike only: the model hears by context, not by sound). Spans and numbers are counted in
positions, so that a piece of several characters can be divided.
"""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import dataclass
from typing import Protocol

import numpy as np
from numpy.typing import NDArray

from pipeline.frames import ToolCall
from pipeline.nlu.lexicon import Lexicon, phrase_table
from pipeline.nlu.numbers import Number, find_numbers
from pipeline.nlu.phonetics import Token, is_cjk, simple_form

MOST_TOKENS = 64
"""Longer texts are not read: nobody says so much in one command."""
TAGS = 3
PUNCTUATION = ",.!?;:'\"()，。！？；：、…《》“”‘’（）-~"
_TOKEN = re.compile(r"[㐀-鿿]|\d+(?:[.,]\d+)?|[A-Za-z]+(?:['’][A-Za-z]+)*|[%°℃℉]|[^\w\s]|[^\W\d_]+")
_COLLAPSED = ("place", "kind", "music")
"""Groups of names: that a name is known is told, not which."""

NUMBER_SIZES = (0.5, 1.5, 5.5, 10.5, 15.5, 30.5, 60.5, 100.5)
"""Upper ends of the classes of a number's size; larger, negative and broken numbers have classes of their own."""
NUMBER_CLASSES = 4 + len(NUMBER_SIZES)
"""0: no number; 1: goes on; 2: below zero; 3: not whole; then by size, the last being larger than all."""

WHOLE, FIRST, INSIDE, LAST = range(4)
"""What of a piece a position is: one piece or several, or which part of one."""
SHARES = 4

IntArray = NDArray[np.int64]


class Pieces(Protocol):
    """The encoder's tokenizer. first, last: the ids of the marks at a text's ends."""

    first: int
    last: int

    def pieces(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        """Ids of `text` without those marks, and the characters [start, end) that each covers."""
        ...


@dataclass(frozen=True, slots=True)
class Features:
    """One text of T positions and S pieces. tokens: positions with their place in the text; numbers: found in it,
    counted in `tokens`.

    ids: (S,) int64, the encoder's, with the marks of its ends; cover: (T, S) float32, how much of a position each piece
    is, rows of sum 1, or 0 for no piece. All else int64. shares: (T,), see WHOLE; sizes: (T,) number classes; tags: (T,
    TAGS) lexicon tags, 0 for none; last: (2,) the last call's tool and way, 0 for none.
    """

    text: str
    tokens: tuple[Token, ...]
    numbers: tuple[Number, ...]
    ids: IntArray
    cover: NDArray[np.float32]
    shares: IntArray
    sizes: IntArray
    tags: IntArray
    last: IntArray


def tag_names() -> list[str]:
    """Every tag that a position may carry, in the order of their ids, which begin at 1."""
    names = [tag for tag in phrase_table() if tag.partition(".")[0] not in _COLLAPSED]
    return [*names, *_COLLAPSED]


class FeatureReader:
    """Reads features. tokenizer: the encoder's."""

    def __init__(self, tokenizer: Pieces, tags: Sequence[str], tools: Sequence[str], lexicon: Lexicon) -> None:
        self._tokenizer = tokenizer
        self._tags = {tag: number for number, tag in enumerate(tags, 1)}
        self._tools = {tool: number for number, tool in enumerate(tools, 1)}
        self._lexicon = lexicon

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
        ids, places = self._tokenizer.pieces(_lowered(text))
        cover, shares = _covered(tokens, places)
        return Features(
            text=text,
            tokens=tuple(tokens),
            numbers=tuple(numbers),
            ids=np.array([self._tokenizer.first, *ids, self._tokenizer.last]),
            cover=cover,
            shares=shares,
            sizes=_sizes(len(tokens), numbers),
            tags=self._tagged([tokens[i] for i in spoken], spoken, len(tokens)),
            last=np.array([0, 0] if last_call is None else [self._tools.get(last_call.name, 0), way_of(last_call)]),
        )

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


def _lowered(text: str) -> str:
    """The text in the form that the encoder is given: each character stays one."""
    return "".join(low if len(low := character.lower()) == 1 else character for character in simple_form(text))


def _covered(tokens: Sequence[Token], places: Sequence[tuple[int, int]]) -> tuple[NDArray[np.float32], IntArray]:
    """`cover` and `shares` of Features."""
    cover = np.zeros((len(tokens), len(places) + 2), np.float32)
    shares = np.full(len(tokens), WHOLE, np.int64)
    for piece, (start, end) in enumerate(places, 1):
        on = [i for i, token in enumerate(tokens) if token.start < end and start < token.end]
        cover[on, piece] = 1
        if len(on) > 1:
            shares[on] = INSIDE
            shares[on[0]], shares[on[-1]] = FIRST, LAST
    cover /= np.maximum(cover.sum(1, keepdims=True), 1)
    return cover, shares


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
