"""Several wishes in one breath, decided part by part: all are done, or the one that the car lacks is named."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from pipeline.frames import ToolCall
from pipeline.nlu.interpreter import Parse
from pipeline.nlu.parser.decision import Decision
from pipeline.nlu.parser.guards import READS
from pipeline.nlu.parser.parts import is_wish
from pipeline.nlu.parser.reader import Program
from pipeline.nlu.parser.scope import may_turn

_ABOUT_ALL = ("statement", "hypothetical", "delayed", "condition", "taken_back", "how_to")
"""Reasons that are said of a whole sentence."""
_SURE = 0.5
_NO_COMMAND = ("unsupported", "none_talk", "not_understood", "forbidden")
_SURE_OF_NONE = 0.7
_SURE_OF_LACKING = 0.95
_MUSIC = frozenset(("play_media", "control_media", "set_media_source", "tune_radio"))
_SEATS = {
    "all": {"driver", "passenger", "rear_left", "rear_right", "front", "rear"},
    "front": {"driver", "passenger", "front"},
    "rear": {"rear_left", "rear_right", "rear"},
}


@dataclass(frozen=True, slots=True)
class Part:
    """What one part comes to. calls: what would be done; lacking: words for what the car lacks. Neither: it is no wish
    of its own, or one that must not be granted.
    """

    calls: tuple[ToolCall, ...] = ()
    lacking: str = ""
    confidence: float = 1.0

    @property
    def clear(self) -> bool:
        return bool(self.calls or self.lacking)

    @classmethod
    def of(cls, decision: Decision, parse: Parse) -> Part:
        """The part that was decided so as a sentence of its own."""
        sure = 1.0 if decision.confidence is None else decision.confidence
        if decision.kind == "ask":
            return cls()
        if decision.kind != "nothing" and not is_wish(parse.whole):
            return cls()
        if decision.kind == "program":
            return cls(decision.calls, decision.what if decision.reason else "", confidence=sure)
        if decision.kind == "nothing":
            told = parse.whole.language == "zh" and not parse.whole.of("verb")
            lacking = (decision.what or parse.whole.text) if decision.reason == "unsupported" and not told else ""
            return cls((), lacking, sure)
        ruled = [clause.call for clause in parse.clauses]
        no = [call.arguments for call in ruled if call.name == "refuse"]
        refused = {str(arguments["reason"]): str(arguments["what"]) for arguments in no}
        is_open = any(len(clause.candidates) > 1 for clause in parse.clauses)
        things = parse.whole.of("device")
        named = things and all(match.cost == 0 for match in things) and parse.whole.of("verb")
        if is_open or not refused.keys() <= {"unsupported"} or (decision.kind == "rules" and not named):
            return cls()
        done = tuple(call for call in ruled if call.name != "refuse")
        return cls(done, refused.get("unsupported", decision.what), sure)


def may_be_several(program: Program, parse: Parse, decision: Decision) -> bool:
    """Whether a sentence is to be read part by part, too: nothing in it speaks of all of it."""
    about_all = program.reason in _ABOUT_ALL and program.reason_confidence >= _SURE
    return not may_turn(parse.whole.text) and not about_all and len(parse.whole.tokens) > 2


def of_parts(decision: Decision, parse: Parse, program: Program, parts: Sequence[Part]) -> Decision:
    """The parts' decision where each of them is clear and more comes of them than of the whole; else the whole's."""
    if not all(part.clear for part in parts):
        return decision
    sure = min(part.confidence for part in parts)
    calls = _folded([call for part in parts for call in part.calls])
    lacking = [part.lacking for part in parts if part.lacking]
    none = program.reason in _NO_COMMAND and program.reason_confidence >= _SURE_OF_NONE
    if none and not (program.reason == "unsupported" and lacking):
        return decision
    if calls is None or not calls:
        return decision
    whole_sure = program.reason == "unsupported" and program.reason_confidence >= _SURE_OF_LACKING
    if whole_sure and len(calls) > len(program.calls):
        return decision  # a part of what the car lacks is no wish of its own
    more = len(calls) + len(lacking) - _count(decision, parse)
    ruled = sum(clause.call.name != "refuse" for clause in parse.clauses)
    unsure = decision.kind == "rules" and len(calls) >= ruled  # the model does not confirm what the rules read
    if more < 0 or (more == 0 and not unsure):
        return decision
    return Decision("program", sure, calls, reason="unsupported" if lacking else "", what="、".join(lacking))


def _folded(calls: Sequence[ToolCall]) -> tuple[ToolCall, ...] | None:
    """The calls without repetition, what a route shall avoid with its trip; None where two of them set the same thing
    (then the parts were none) or one only reads.
    """
    kept: list[ToolCall] = []
    for call in calls:
        if call.name in READS:
            return None
        trip = next((i for i, other in enumerate(kept) if other.name == "navigate_to"), None)
        if call.name == "set_route_options" and trip is not None:
            avoid = sorted({*kept[trip].arguments["avoid"], *call.arguments["avoid"]})
            kept[trip] = ToolCall("navigate_to", {**kept[trip].arguments, "avoid": avoid})
        elif call not in kept:
            if any(same_thing(call, other) for other in kept):
                return None
            kept.append(call)
    return tuple(kept)


def same_thing(first: ToolCall, second: ToolCall) -> bool:
    """Whether both set one thing, at a place that is common to both."""
    if any(first.arguments.get(kind) != second.arguments.get(kind) for kind in ("which", "mode", "move")):
        return False
    if first.name != second.name:
        return {first.name, second.name} <= _MUSIC
    here, there = (str(call.arguments.get("zone", call.arguments.get("area", ""))) for call in (first, second))
    if not here or first.arguments.get("target") != second.arguments.get("target"):
        return not here and first.arguments.get("target") == second.arguments.get("target")
    return not _SEATS.get(here, {here}).isdisjoint(_SEATS.get(there, {there}))


def _count(decision: Decision, parse: Parse) -> int:
    """How many wishes the whole's decision speaks of."""
    if decision.kind in ("ask", "nothing"):
        return 1
    if decision.kind == "program":
        return len(decision.calls) + bool(decision.reason)
    return len(parse.clauses) + bool(decision.reason)
