"""The model's scores to a program of calls: the grammar by construction, and how sure the model is of it.

A program holds values of the closed schemas, numbers that `pipeline.nlu.numbers` read in the sentence, and substrings
of the sentence: there is nothing else to choose from. Its confidence is the product of its decisions' probabilities,
tempered on held-out sentences.
"""

from __future__ import annotations

from collections import OrderedDict
from dataclasses import dataclass
from typing import Any

import numpy as np
from numpy.typing import NDArray

from models.engines.parser import ParserEngine, ParserScores
from pipeline.frames import ToolCall
from pipeline.nlu.lexicon import Lexicon
from pipeline.nlu.numbers import Number
from pipeline.nlu.parser.features import FeatureReader, Features, is_word
from pipeline.nlu.parser.labels import ACT, NONE, REASONS, TEXTS, TURNS, VALUE, Space, arguments_of
from pipeline.vehicle.schemas import SIMPLE, TOOL_NAMES, fault_of

KEPT_PROGRAMS = 8
FEWEST_OPTIONS = {"set_route_options": 1}


@dataclass(frozen=True, slots=True)
class ProgramCall:
    """One call that the model read. confidence: of all its decisions. number: what its value rests on, None for a
    constant. words: characters [start, end) of its text argument. fault: see `fault_of`; None for a valid call.
    """

    call: ToolCall
    confidence: float
    number: Number | None = None
    words: tuple[int, int] | None = None
    fault: str | None = None


@dataclass(frozen=True, slots=True)
class Program:
    """What the model read in a sentence.

    reason: `act` for a command now, else why it is none, with the probability of that; `acting`: the probability that
    it is a command now. calls: what it would do, in order, also where the reason is another. what: the words that name
    what is missing or forbidden, empty for none. confidence: of the reason and, for a command, of all its calls.
    """

    reason: str
    reason_confidence: float
    acting: float
    calls: tuple[ProgramCall, ...]
    what: str
    confidence: float

    @property
    def valid(self) -> bool:
        """Whether every call keeps its schema; a value out of range is one that the car refuses by itself."""
        return all(call.fault in (None, "out_of_range") for call in self.calls)


class ParserReader:
    """Reads transcripts with the model. Owned by one thread; the same words are read once."""

    def __init__(self, engine: ParserEngine, lexicon: Lexicon) -> None:
        """lexicon: of spellings alone, whose tags are hints to the model. Raises ValueError for a model with other
        reasons than this version knows.
        """
        config = engine.config
        self.space = Space.from_config(config["labels"])
        self._engine = engine
        self._lexicon = lexicon
        self._features = FeatureReader(engine.tokenizer, config["tags"], self.space.tools[1:], lexicon)
        self._temperature = config["temperatures"]
        self._programs: OrderedDict[tuple[str, str], Program | None] = OrderedDict()
        self._spans = _spans(self.space)

    def read(self, text: str, last_call: ToolCall | None = None) -> Program | None:
        """The program of `text`; None where the model reads nothing: no words, or more than it takes."""
        key = (text, repr(last_call))
        if key not in self._programs:
            features = self._features.read(text, last_call)
            self._programs[key] = None if features is None else self._program(features, last_call)
            while len(self._programs) > KEPT_PROGRAMS:
                self._programs.popitem(last=False)
        return self._programs[key]

    def _program(self, features: Features, last_call: ToolCall | None) -> Program:
        scores = self._engine.run(
            features.ids, features.cover, features.shares, features.sizes, features.tags, features.last
        )
        place = self._same_place(features, last_call)
        return program_of(scores, features, self.space, self._temperature, last_call, self._spans, place)

    def _same_place(self, features: Features, last_call: ToolCall | None) -> str | None:
        """The last call's place where the sentence names neither a thing nor a place ("a bit more"): the model is told
        which tool came before, not where it acted.
        """
        if last_call is None or "zone" not in last_call.arguments:
            return None
        said = self._lexicon.find([token for token in features.tokens if is_word(token.text)])
        named = any(match.has("device") or match.has("zone") for match in said)
        return None if named else str(last_call.arguments["zone"])


def program_of(
    scores: ParserScores,
    features: Features,
    space: Space,
    temperature: dict[str, float],
    last_call: ToolCall | None = None,
    spans: dict[str, slice] | None = None,
    place: str | None = None,
) -> Program:
    """The likeliest program under the grammar. place: where a call of the last call's tool acts, whatever is scored."""
    where = _spans(space) if spans is None else spans
    reasons = _softmax(scores.reasons / temperature["reason"])
    best = int(reasons.argmax())
    reason, sure = REASONS[best], 1.0
    calls: list[ProgramCall] = []
    tempered = ParserScores(
        scores.reasons,
        scores.choices / temperature["calls"],
        scores.points / temperature["calls"],
        scores.what,
    )
    for row in range(len(scores.choices)):
        tools = _softmax(_known_tools(tempered.choices[row, where["tool"]], space))
        chosen = int(tools.argmax())
        if space.tools[chosen] == NONE:
            sure *= float(tools[chosen])
            break
        call = _call(tempered, row, space.tools[chosen], float(tools[chosen]), features, space, where, last_call, place)
        sure *= call.confidence
        if all(call.call != other.call for other in calls):  # said twice, done once
            calls.append(call)
    what = _substring(features, *_pointed(scores.what[0], scores.what[1])[:2]) if reason != ACT else ""
    confidence = float(reasons[best]) * (sure if reason == ACT else 1.0)
    return Program(reason, float(reasons[best]), float(reasons[0]), tuple(calls), what, confidence)


def _spans(space: Space) -> dict[str, slice]:
    """Where each head's logits stand in a row of choices."""
    found, at = {}, 0
    for name, width in space.heads.items():
        found[name] = slice(at, at + width)
        at += width
    return found


def _known_tools(logits: NDArray[np.float32], space: Space) -> NDArray[np.float32]:
    lost = [i for i, tool in enumerate(space.tools) if tool != NONE and tool not in TOOL_NAMES]
    logits = logits.copy()
    logits[lost] = -np.inf
    return logits


def _call(
    scores: ParserScores,
    row: int,
    tool: str,
    sure: float,
    features: Features,
    space: Space,
    where: dict[str, slice],
    last_call: ToolCall | None,
    place: str | None,
) -> ProgramCall:
    arguments: dict[str, Any] = {}
    number: Number | None = None
    words: tuple[int, int] | None = None
    choices = {choice.name: choice for choice in space.choices}
    for name in arguments_of(tool):
        if name in TEXTS:
            first, last, likely = _pointed(scores.points[row, 1], scores.points[row, 2])
            words = features.tokens[first].start, features.tokens[last].end
            arguments[name] = _substring(features, first, last)
        elif name == VALUE:
            arguments[name], number, likely = _value(scores, row, features, space, where, _last_value(tool, last_call))
        elif name == "zone" and place is not None and last_call is not None and last_call.name == tool:
            arguments[name], likely = place, 1.0
        elif name == "avoid":
            arguments[name], likely = _options(scores.choices[row, where["avoid"]], space, FEWEST_OPTIONS.get(tool, 0))
        else:
            choice = choices[name]
            allowed = list(choice.allowed[tool])
            shares = _softmax(scores.choices[row, where[name]][allowed])
            arguments[name], likely = choice.values[allowed[int(shares.argmax())]], float(shares.max())
        sure *= likely
    return ProgramCall(ToolCall(tool, arguments), sure, number, words, fault_of(tool, arguments))


def _last_value(tool: str, last_call: ToolCall | None) -> float | None:
    if last_call is None or last_call.name != tool or VALUE not in last_call.arguments:
        return None
    return float(last_call.arguments[VALUE])


def _value(
    scores: ParserScores, row: int, features: Features, space: Space, where: dict[str, slice], last: float | None
) -> tuple[float, Number | None, float]:
    """The value of a call: (value, the number it is made of, probability). Without a number only constants remain, and
    `last`, that of the last call.
    """
    logits = scores.choices[row, where[VALUE]].copy()
    if not features.numbers:
        logits[: len(TURNS)] = -np.inf
    if last is None:
        logits[len(TURNS)] = -np.inf
    shares = _softmax(logits)
    chosen = int(shares.argmax())
    if chosen == len(TURNS) and last is not None:
        return last, None, float(shares[chosen])
    if chosen > len(TURNS):
        return space.constants[chosen - len(TURNS) - 1], None, float(shares[chosen])
    starts = [number.start for number in features.numbers]
    at = _softmax(scores.points[row, 0][starts])
    best = int(at.argmax())
    number = features.numbers[best]
    value = float(list(TURNS.values())[chosen](number.value)) + 0.0  # no minus zero
    return value, number, float(shares[chosen] * at[best])


def _options(logits: NDArray[np.float32], space: Space, fewest: int) -> tuple[list[str], float]:
    chances = 1 / (1 + np.exp(-logits.astype(np.float64)))
    chosen = chances > 0.5
    if chosen.sum() < fewest:
        chosen[int(chances.argmax())] = True
    sure = float(np.prod(np.where(chosen, chances, 1 - chances)))
    return [option for option, wanted in zip(space.options, chosen, strict=True) if wanted], sure


def _pointed(first: NDArray[np.float32], last: NDArray[np.float32]) -> tuple[int, int, float]:
    """The likeliest stretch: (first position, last position, probability)."""
    starts, ends = _softmax(first), _softmax(last)
    joint = np.triu(np.outer(starts, ends))
    low, high = np.unravel_index(int(joint.argmax()), joint.shape)
    return int(low), int(high), float(joint[low, high])


def _substring(features: Features, first: int, last: int) -> str:
    longest = SIMPLE["play_media"]["properties"]["query"]["maxLength"]
    return features.text[features.tokens[first].start : features.tokens[last].end][:longest]


def _softmax(logits: NDArray[np.float32]) -> NDArray[np.float64]:
    shifted = np.exp(logits.astype(np.float64) - logits.max())
    shares: NDArray[np.float64] = shifted / shifted.sum()
    return shares
