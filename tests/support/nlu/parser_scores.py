"""A small tokenizer for the parser, and the scores of a model that is sure of an example's labels."""

from __future__ import annotations

import numpy as np

from models.engines.parser import ParserScores
from models.train.parser.data import IGNORED, Example
from pipeline.nlu.parser.labels import Space

PIECES = ["window", "wind", "open", "ow", "打开", "车窗", "set", "to"]


class SmallTokenizer:
    """The longest of PIECES, else one character; ids from 4 on."""

    first, last, unknown = 0, 2, 3

    def pieces(self, text: str) -> tuple[list[int], list[tuple[int, int]]]:
        ids, places, at = [], [], 0
        while at < len(text):
            found = next((piece for piece in PIECES if text.startswith(piece, at)), text[at])
            if not found.isspace():
                ids.append(4 + PIECES.index(found) if found in PIECES else self.unknown)
                places.append((at, at + len(found)))
            at += len(found)
        return ids, places


def certain(example: Example, space: Space, sure: float = 20.0) -> ParserScores:
    """Scores of a model that is sure of the labels."""
    count = len(example.chosen)
    widths = list(space.heads.values())
    offsets = np.cumsum([0, *widths])
    choices = np.zeros((count, sum(widths)), np.float32)
    points = np.zeros((count, 3, example.length), np.float32)
    for row in range(count):
        for head, label in enumerate(example.chosen[row]):
            if label != IGNORED:
                choices[row, offsets[head] + label] = sure
        for option, wanted in enumerate(example.options[row]):
            choices[row, offsets[-2] + option] = sure if wanted == 1 else -sure
        for which, position in enumerate(example.points[row]):
            if position != IGNORED:
                points[row, which, position] = sure
    reasons = np.zeros(11, np.float32)
    reasons[example.reason] = sure
    what = np.zeros((2, example.length), np.float32)
    for end, position in enumerate(example.what):
        what[end, max(position, 0)] = sure
    return ParserScores(reasons, choices, points, what)
