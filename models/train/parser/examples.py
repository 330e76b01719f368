"""Lines of training data to labelled examples: what each query of the model shall choose for its call.

A line is a JSON object: text, calls (tool, args, spans: characters of the text that say the value, the place or the
query), reason (null for a command), what (characters that name what is missing) and last (the call before).
"""

from __future__ import annotations

from collections.abc import Iterable, Iterator, Mapping, Sequence
from typing import Any

import numpy as np

from models.train.parser.data import IGNORED, Example
from pipeline.frames import ToolCall
from pipeline.nlu.numbers import find_numbers
from pipeline.nlu.parser.features import FeatureReader, Features
from pipeline.nlu.parser.labels import ACT, LAST, MOST_CALLS, NONE, REASONS, TEXTS, TURNS, VALUE, Space
from pipeline.nlu.phonetics import tokens_of

_CLOSE = 0.51
"""A third is written as 33 or 33.3."""


class Unusable(ValueError):
    """A line that no program of the label space can say."""


def constants_in(lines: Iterable[Mapping[str, Any]]) -> set[float]:
    """Every value that a call has and its sentence does not say in numbers ("half" is none)."""
    found: set[float] = set()
    for line in lines:
        for call in line["calls"]:
            value, span = call["args"].get(VALUE), (call.get("spans") or {}).get(VALUE)
            words = [] if span is None else [token.text for token in tokens_of(line["text"][span[0] : span[1]])]
            if value is not None and not find_numbers(words) and not repeats(call, line.get("last")):
                found.add(float(value))
    return found


def repeats(call: Mapping[str, Any], last: Mapping[str, Any] | None) -> bool:
    """Whether the call's value is that of the same tool's last call."""
    return last is not None and last["tool"] == call["tool"] and last["args"].get(VALUE) == call["args"].get(VALUE)


def example_of(line: Mapping[str, Any], reader: FeatureReader, space: Space) -> Example:
    """The labelled example of one line. Raises Unusable naming what cannot be said."""
    text, calls = line["text"], line["calls"]
    last = line.get("last")
    features = reader.read(text, None if last is None else ToolCall(last["tool"], last["args"]))
    if features is None:
        raise Unusable("no words, or too many")
    if len(calls) > MOST_CALLS:
        raise Unusable(f"more than {MOST_CALLS} calls")
    reason = line.get("reason") or ACT
    if reason not in REASONS:
        raise Unusable(f"reason {reason}")
    heads = list(space.heads)[:-1]
    chosen = np.full((MOST_CALLS, len(heads)), IGNORED, np.int64)
    options = np.full((MOST_CALLS, len(space.options)), IGNORED, np.int64)
    points = np.full((MOST_CALLS, 3), IGNORED, np.int64)
    chosen[len(calls) :, 0] = space.tools.index(NONE)
    for row, call in enumerate(calls):
        _label(call, last, features, space, heads, chosen[row], options[row], points[row])
    what = np.full(2, IGNORED, np.int64)
    if line.get("what"):
        what[:] = _positions(features, line["what"])
    return Example(
        ids=features.ids,
        cover=features.cover,
        shares=features.shares,
        sizes=features.sizes,
        tags=features.tags,
        last=features.last,
        reason=REASONS.index(reason),
        chosen=chosen,
        options=options,
        points=points,
        what=what,
    )


def examples_of(
    lines: Iterable[Mapping[str, Any]], reader: FeatureReader, space: Space, faults: dict[str, int]
) -> Iterator[Example]:
    """The examples of all lines that can be said; `faults` counts the others by cause."""
    for line in lines:
        try:
            yield example_of(line, reader, space)
        except Unusable as error:
            faults[str(error)] = faults.get(str(error), 0) + 1


def _label(
    call: Mapping[str, Any],
    last: Mapping[str, Any] | None,
    features: Features,
    space: Space,
    heads: Sequence[str],
    chosen: Any,
    options: Any,
    points: Any,
) -> None:
    tool, arguments, spans = call["tool"], call["args"], call.get("spans") or {}
    if tool not in space.tools:
        raise Unusable(f"tool {tool}")
    chosen[0] = space.tools.index(tool)
    by_name = {choice.name: choice for choice in space.choices}
    for name, value in arguments.items():
        if name == "avoid":
            options[:] = [option in value for option in space.options]
        elif name == VALUE:
            if VALUE not in spans and repeats(call, last):
                chosen[heads.index(VALUE)] = space.values.index(LAST)
            else:
                chosen[heads.index(VALUE)], points[0] = _value(float(value), spans.get(VALUE), features, space)
        elif name in TEXTS:
            if name not in spans:
                raise Unusable(f"{tool} without a span for {name}")
            points[1:] = _positions(features, spans[name])
        elif name in by_name:
            if value not in by_name[name].values:
                raise Unusable(f"{tool}: {name} {value}")
            chosen[heads.index(name)] = by_name[name].values.index(value)


def _value(value: float, span: Sequence[int] | None, features: Features, space: Space) -> tuple[int, int]:
    """(class of the value, position of the number or IGNORED)."""
    if span is not None:
        low, high = _positions(features, span)
        said = [n for n in features.numbers if n.start <= high and low < n.end]
        for number in said:
            for index, turn in enumerate(TURNS.values()):
                if abs(turn(number.value) - value) < (_CLOSE if abs(value) > 5 else 0.01):
                    return index, number.start
        if said:
            raise Unusable("a value that its number does not give")
    if value not in space.constants:
        raise Unusable("a value that is neither said nor a constant")
    return len(TURNS) + 1 + space.constants.index(value), IGNORED


def _positions(features: Features, span: Sequence[int]) -> tuple[int, int]:
    """First and last position of the characters [start, end)."""
    start, end = span
    inside = [i for i, token in enumerate(features.tokens) if token.start < end and start < token.end]
    if not inside:
        raise Unusable("a span without a word")
    return inside[0], inside[-1]
