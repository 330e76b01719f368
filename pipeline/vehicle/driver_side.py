"""Left and right in a car whose driver sits on the right: everything else counts left as the driver's side."""

from __future__ import annotations

import re
from collections.abc import Sequence
from dataclasses import replace
from typing import Final

from pipeline.frames import ToolCall
from pipeline.vehicle.signals import SignalAccess, SignalError

DRIVER_POSITION: Final = "Vehicle.Cabin.DriverPosition"
_FRONT: Final = {"driver": "passenger", "passenger": "driver"}
_REAR: Final = {"rear_left": "rear_right", "rear_right": "rear_left"}
_SIDE: Final = re.compile(r"\b(?:left|right)\b|[左右]", re.IGNORECASE)
_PERSON: Final = re.compile(r"driver|passenger|pilot|\b(?:my|me)\b|[我驾]|司机|乘客", re.IGNORECASE)


def drives_on_the_right(access: SignalAccess) -> bool:
    """Whether the driver sits on the right; a car that does not tell counts as one whose driver sits on the left."""
    try:
        return access.read(DRIVER_POSITION) == "RIGHT"
    except SignalError:
        return False


def as_meant(calls: Sequence[ToolCall], text: str, access: SignalAccess) -> tuple[ToolCall, ...]:
    """The calls read from `text`, with the seats that it means in this car: "the left window" is the passenger's
    where the driver sits on the right, "the window behind the driver" the rear right one.
    """
    if not any("zone" in call.arguments for call in calls) or not drives_on_the_right(access):
        return tuple(calls)
    by_side, by_person = bool(_SIDE.search(text)), bool(_PERSON.search(text))
    swapped = (_FRONT if by_side and not by_person else {}) | (_REAR if by_person and not by_side else {})
    return tuple(_swapped(call, swapped) for call in calls)


def as_built(call: ToolCall, access: SignalAccess) -> ToolCall:
    """The call in VSS's words: rows and the driver's side. In a car whose driver sits on the left nothing changes."""
    if call.arguments.get("zone") in _REAR and drives_on_the_right(access):
        return _swapped(call, _REAR)
    return call


def _swapped(call: ToolCall, zones: dict[str, str]) -> ToolCall:
    zone = call.arguments.get("zone")
    return replace(call, arguments={**call.arguments, "zone": zones[zone]}) if zone in zones else call
