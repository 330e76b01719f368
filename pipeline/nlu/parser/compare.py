"""What the model reads beside what the rules read: in which they differ, and who knows that better."""

from __future__ import annotations

from collections.abc import Sequence

from pipeline.frames import ToolCall
from pipeline.nlu.evidence import Evidence
from pipeline.nlu.parser.guards import READS, zones_joined
from pipeline.nlu.parser.scope import may_turn
from pipeline.vehicle.schemas import fault_of


def writes(call: ToolCall) -> bool:
    return call.name != "refuse" and call.name not in READS


def targets(calls: Sequence[ToolCall]) -> list[tuple[str, list[tuple[str, str]]]]:
    """What calls act on, without amounts and names, of which the rules know more: the tool, its place, on or off."""
    trip = ("navigate_to", "set_route_options")
    return sorted(
        ("trip" if call.name in trip else call.name, sorted((key, str(call.arguments[key])) for key in keys))
        for call in calls
        for keys in [call.arguments.keys() - {"value", "action", "avoid", "place", "query"}]
    )


def not_known(call: ToolCall) -> bool:
    """Whether the rules found a word of something else, and nothing that they understood: "like an oven"."""
    refused = call.name == "refuse" and call.arguments["reason"] in ("unsupported", "not_understood", "forbidden")
    return refused and (call.arguments["reason"] != "forbidden" or call.arguments["what"] == "seat_position")


def out_of_range(call: ToolCall) -> bool:
    return fault_of(call.name, call.arguments) == "out_of_range"


def amount_of_rules(read: Sequence[ToolCall], ruled: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether the two differ in an amount that the rules know better: one in words (half, a quarter), "to" or "by"."""
    if whole.of("amount") and {call.name for call in ruled} == {call.name for call in read}:
        return True
    return len(read) == len(ruled) == 1 and by_or_to(read[0], ruled[0])


def shorter_name(read: Sequence[ToolCall], ruled: Sequence[ToolCall]) -> bool:
    """Whether a name is the model's without small words that the rules took for part of it: 蔡琴|的, 歌曲|爱如果."""
    pairs = [
        (str(mine.arguments.get("query", "")), str(theirs.arguments.get("query", "")))
        for mine, theirs in zip(read, ruled, strict=True)
    ]
    return any(theirs in (f"{mine}的", f"歌曲{mine}", f"一首{mine}", f"儿{mine}") for mine, theirs in pairs)


def part_of(read: Sequence[ToolCall], ruled: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether the rules read all that the model does, and more, and nothing in the sentence may turn it: "driver twenty
    one passenger twenty four".
    """
    fewer = len(read) < len(ruled) and all(map(writes, ruled)) and all(call in ruled for call in read)
    things = {call.name for call in ruled}
    seats = [call.arguments.get("zone") for call in ruled]
    apart = len(things) == len(ruled) or (len(set(seats)) == len(seats) and not {"all", None} & {*seats})
    return fewer and apart and not may_turn(whole.text)


def both_places(read: Sequence[ToolCall], ruled: Sequence[ToolCall], whole: Evidence) -> bool:
    """Whether the two differ in the place alone, where the sentence joins two and the rules read both: 主驾和副驾."""
    if len(read) != 1 or len(ruled) != 1 or read[0].name != ruled[0].name or may_turn(whole.text):
        return False
    mine, theirs = dict(read[0].arguments), dict(ruled[0].arguments)
    differ = mine.pop("zone", "") != theirs.pop("zone", "")
    return differ and mine == theirs and zones_joined(whole)


def by_or_to(read: ToolCall, ruled: ToolCall) -> bool:
    """Whether the two differ only in whether an amount is a value or a change."""
    mine, theirs = dict(read.arguments), dict(ruled.arguments)
    if read.name != ruled.name or not {"action", "value"} <= mine.keys() & theirs.keys() or out_of_range(ruled):
        return False
    differ = mine.pop("action") != theirs.pop("action")
    return differ and abs(mine.pop("value")) == abs(theirs.pop("value")) and mine == theirs
