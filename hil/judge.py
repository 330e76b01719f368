"""Judges one command: did exactly the right thing happen to the car?

`expect` is what hil/audio/manifest.yaml says: set PATH-PART VALUE | nav PLACE | media WHAT | ask SIGNAL | refuse WHY |
multi A;B | chat. Besides: `idle` (nothing changes, something is said), `nav PLACE AVOID`, parts of `multi` as
PART=VALUE, and values `<N`, `LOW..HIGH` and `moved`. Everything else must stay as it was.
"""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass
from typing import Any

from pipeline.dialogue.manager import DialogueManager
from pipeline.dialogue.plan import Plan
from pipeline.frames import Language, ToolResult
from pipeline.vehicle.signals import EmbeddedTree, Value

PREPARED: dict[str, Value] = {
    "Vehicle.Cabin.Infotainment.Media.Action": "PLAY",
    **{
        f"Vehicle.Cabin.Door.Row{row}.{side}Side.Window.Position": 40
        for row in (1, 2)
        for side in ("Driver", "Passenger")
    },
}
"""The car before each command: music plays and the windows stand open, so that stopping and closing show."""
OFF_VERSION: dict[str, Value] = {
    "Vehicle.Cabin.HVAC.IsAirConditioningActive": True,
    "Vehicle.Cabin.HVAC.IsRecirculationActive": True,
    "Vehicle.Cabin.HVAC.IsRearDefrosterActive": True,
    "Vehicle.Cabin.HVAC.IsFrontDefrosterActive": True,
    "Vehicle.Cabin.Light.IsDomeOn": True,
    "Vehicle.Cabin.Sunroof.Position": 100,
    "Vehicle.Cabin.Infotainment.Navigation.Mute": "MUTED",
    "Vehicle.Chassis.SteeringWheel.HeatingCooling": 50,
    "Vehicle.Cabin.Sunroof.Shade.Position": 0,  # open
    **{
        f"Vehicle.Cabin.Seat.Row{row}.{side}Side.HeatingCooling": 50
        for row in (1, 2)
        for side in ("Driver", "Passenger")
    },
}
"""Also prepared where the command is to switch something off."""

BEFORE = 1_000_000
"""Added to a turn's id for what was said before it."""


@dataclass(frozen=True, slots=True)
class Verdict:
    """`right`: exactly the expected end; `wrong_action`: something changed that was not asked for."""

    right: bool
    wrong_action: bool
    plan: Plan
    results: tuple[ToolResult, ...]
    reply: str


def run_command(
    dialogue: DialogueManager,
    tree: EmbeddedTree,
    text: str,
    language: Language,
    expect: Sequence[str],
    turn_id: int,
    *,
    said_before: str = "",
    avg_logprob: float | None = None,
    talk: bool = False,
) -> Verdict:
    """Prepare the car, run the text (after `said_before`), judge the end, and take everything back."""
    before = prepare(tree, expect)
    if said_before:
        dialogue.execute(dialogue.plan(said_before, language), turn_id + BEFORE)
        before = tree.snapshot()
    plan = dialogue.plan(text, language, avg_logprob=avg_logprob)
    results = tuple(dialogue.execute(plan, turn_id))
    reply = dialogue.reply(plan, list(results), language)
    if plan.chat:
        reply = "".join(dialogue.chat(text, language, from_manual=plan.from_manual)) if talk else "(talk)"
    verdict = judge(expect, before, tree.snapshot(), plan, results, reply)
    dialogue.roll_back(turn_id)
    if said_before:
        dialogue.roll_back(turn_id + BEFORE)
    return verdict


def prepare(tree: EmbeddedTree, expect: Sequence[str]) -> dict[str, Value]:
    """Set the car up; returns the values."""
    switches_off = expect[0] == "set" and expect[2] in ("False", "0", "closed", "UNMUTED", "down", "ONE_SHOT_CLOSE")
    for path, signal in tree.signals.items():
        prepared = PREPARED.get(path, signal.initial)
        tree.simulate(path, OFF_VERSION.get(path, prepared) if switches_off else prepared)
    return tree.snapshot()


def judge(
    expect: Sequence[str],
    before: dict[str, Value],
    after: dict[str, Value],
    plan: Plan,
    results: Sequence[ToolResult],
    reply: str,
) -> Verdict:
    """Compare what was to happen with what did."""
    changed = {path for path, value in after.items() if value != before[path]}
    touched = changed | {
        path for result in results if result.status == "done" for path in result.detail.get("paths", [])
    }
    kind = expect[0]
    may_change = _may_change(expect)
    stray = {path for path in changed if not any(part in path for part in may_change)}
    met = bool(reply) and _met(kind, expect, before, after, touched, plan, results)
    return Verdict(met and not stray, bool(stray), plan, tuple(results), reply)


def _may_change(expect: Sequence[str]) -> list[str]:
    kind = expect[0]
    if kind == "set":
        beside = {"Sunroof.Switch": "Sunroof.Position", "Media.Played.Source": "Media.Action"}.get(expect[1])
        return [expect[1]] if beside is None else [expect[1], beside]
    if kind == "multi":
        return [part.partition("=")[0] for part in expect[1].split(";")]
    return {"nav": ["Navigation.DestinationSet"], "media": ["Infotainment.Media."]}.get(kind, [])


def _met(
    kind: str,
    expect: Sequence[str],
    before: dict[str, Value],
    after: dict[str, Value],
    touched: set[str],
    plan: Plan,
    results: Sequence[ToolResult],
) -> bool:
    statuses = [result.status for result in results]
    if kind == "set":
        paths = [path for path in touched if expect[1] in path]
        return bool(paths) and "done" in statuses and _reached(expect[2], paths, before, after)
    if kind == "multi":
        return len(plan.calls) >= 2 and all(_part_met(part, before, after, touched) for part in expect[1].split(";"))
    if kind == "nav":
        return any(_went(result, *expect[1:]) for result in results)
    if kind == "media":
        return expect[1].lower() in str(after["Vehicle.Cabin.Infotainment.Media.SelectedURI"]).lower() and bool(touched)
    if kind == "ask":
        return any(_told(result, expect[1]) for result in results)
    if kind == "refuse":
        return any(result.status == "refused" and expect[1] in str(result.reason) for result in results)
    if kind == "idle":
        return not touched
    if kind == "silence":
        return plan.empty
    answers = all(call.name in ("ask_vehicle", "ask_distance") for call in plan.calls)
    return kind == "chat" and (plan.chat or answers)


def _part_met(part: str, before: dict[str, Value], after: dict[str, Value], touched: set[str]) -> bool:
    name, _, wanted = part.partition("=")
    paths = [path for path in touched if name in path]
    return bool(paths) and (not wanted or _reached(wanted, paths, before, after))


def _reached(wanted: str, paths: list[str], before: dict[str, Value], after: dict[str, Value]) -> bool:
    def one(path: str) -> bool:
        new, old = after[path], before[path]
        if wanted in ("True", "False"):
            return new is (wanted == "True")
        if wanted == "moved":
            return new != old
        if ".." in wanted:
            low, high = wanted.split("..")
            return float(low) <= float(str(new)) <= float(high)
        if isinstance(new, str) or isinstance(old, str) or not wanted.strip("<>+-").replace(".", "").isdigit():
            return (
                new == {"closed": 0}.get(wanted, wanted) if wanted not in ("up", "down") else _moved(new, old, wanted)
            )
        if wanted.startswith(">"):
            return new > float(wanted[1:])
        if wanted.startswith("<"):
            return new < float(wanted[1:])
        if wanted[0] in "+-":
            return abs(new - old - float(wanted)) < 0.01
        return abs(new - float(wanted)) < 0.01

    return all(one(path) for path in paths)


def _moved(new: Any, old: Any, wanted: str) -> bool:
    return bool(new > old) if wanted == "up" else bool(new < old)


def _went(result: ToolResult, wanted: str, avoid: str = "") -> bool:
    if result.status != "done" or set(avoid.split(",")) - {""} - set(result.call.arguments.get("avoid", [])):
        return False
    if result.call.name == "cancel_navigation":
        return wanted == "cancel"
    if result.call.name != "navigate_to":
        return False
    said: dict[str, Any] = result.detail["place"]
    known = [said["en"], said["zh"], str(result.value), str(result.detail["kind"]).replace("_", " ")]
    known += _KIND_ZH.get(str(result.detail["kind"]), [])
    return any(wanted.lower() in name.lower() for name in known)


_KIND_ZH = {
    "charging_station": ["充电站"],
    "railway_station": ["火车站"],
    "airport": ["机场"],
    "hotel": ["酒店"],
    "petrol_station": ["加油站"],
    "hospital": ["医院"],
    "supermarket": ["超市"],
    "parking": ["停车场", "car park"],
    "restaurant": ["餐厅", "饭馆"],
    "cafe": ["咖啡"],
    "pharmacy": ["药店"],
    "shopping_centre": ["商场"],
}


def _told(result: ToolResult, wanted: str) -> bool:
    if result.status != "done" or result.call.name not in ("ask_vehicle", "ask_distance"):
        return False
    item = str(result.call.arguments.get("item", "distance"))
    return wanted.lower() in item.lower() or wanted.lower() in str(result.path).lower()
