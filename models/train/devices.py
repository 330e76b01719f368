"""The car's own things: which tool each belongs to, what can be asked of it, and what a relative wish comes to.

The steps are those of `pipeline/nlu/intents/devices.py`, so that data and rules agree.
"""

from __future__ import annotations

from dataclasses import dataclass, field
from typing import Any

CLIMATE = ("all", "front", "driver", "passenger", "rear", "rear_left", "rear_right")
SEATS = ("front", "driver", "passenger", "rear", "rear_left", "rear_right")
MANY = frozenset(("front", "rear", "all"))
"""Zones of more than one seat."""


@dataclass(frozen=True, slots=True)
class Device:
    """One thing. noun: its name in the phrase bank; own: the prefix of its own templates ("" for none); step: what
    "more" adds; levels: how many levels people count (0 for none); default: the zone when none is said ("" where the
    tool has none).
    """

    name: str
    tool: str
    noun: str
    own: str = ""
    args: dict[str, Any] = field(default_factory=dict)
    ops: tuple[str, ...] = ()
    default: str = ""
    zones: tuple[str, ...] = ()
    step: float = 0.0
    levels: int = 0
    on: float = 0.0
    low: float = 0.0
    high: float = 100.0
    least: float = 20.0


_LEVEL = (
    "set",
    "set",
    "set",
    "up",
    "down",
    "up_little",
    "down_little",
    "up_lot",
    "down_lot",
    "up_by",
    "down_by",
    "max",
)
_SEAT = ("on", "on", "on", "off", "off", "set", "set", "up", "down", "up_little", "down_little", "max", "min", "up_by")
_SWITCH = ("on", "off")
_LIGHT = ("on", "on", "off", "off", "set", "up", "down", "up_little", "down_little", "max", "half")


def _in_seats(name: str, tool: str, word: str, own: str) -> Device:
    """A comfort of three levels at every seat."""
    return Device(name, tool, word, own, ops=_SEAT, default="driver", zones=SEATS, step=25, levels=3, on=50)


def _switched(name: str, tool: str, own: str = "", ops: tuple[str, ...] = _SWITCH, **args: Any) -> Device:
    return Device(name, tool, name, own, args, ops)


DEVICES = {
    device.name: device
    for device in (
        Device(
            "temperature",
            "set_temperature",
            "temperature",
            "own.temp",
            ops=(*_LEVEL, "set", "set", "up_by", "down_by", "min"),
            default="all",
            zones=CLIMATE,
            step=2,
            low=16,
            high=30,
            least=16,
        ),
        Device(
            "fan",
            "set_fan",
            "fan",
            "own.fan",
            ops=(*_LEVEL, "min", "on", "off"),
            default="all",
            zones=CLIMATE,
            step=20,
            levels=5,
            on=40,
        ),
        _in_seats("seat_heating", "set_seat_heating", "seat_heating", "own.seat_heating"),
        _in_seats("seat_ventilation", "set_seat_ventilation", "seat_ventilation", "own.seat_ventilation"),
        Device("wheel", "set_steering_wheel_heating", "wheel", "own.wheel", ops=_SEAT, step=25, levels=3, on=50),
        Device(
            "volume",
            "set_volume",
            "volume",
            "own.volume",
            {"target": "media"},
            (*_LEVEL, "half", "min"),
            step=10,
            least=0,
        ),
        Device(
            "nav_volume",
            "set_volume",
            "nav_volume",
            "own.nav_volume",
            {"target": "navigation"},
            (*_LEVEL, "half"),
            step=10,
            least=0,
        ),
        Device(
            "brightness",
            "set_brightness",
            "brightness",
            "own.brightness",
            ops=(*_LEVEL, "half", "min"),
            step=20,
            low=10,
            least=10,
        ),
        Device("ac", "set_air_conditioning", "ac", ops=_SWITCH),
        Device("recirculation", "set_recirculation", "recirculation", "own.recirc", ops=_SWITCH),
        Device("dome", "set_interior_light", "dome", "own.dome", ops=_SWITCH),
        Device("headlights", "set_headlights", "headlights", "own.headlights", ops=("on",)),
        Device("front_defrost", "set_defrost", "front_defrost", "own.defrost.front", {"area": "front"}, _SWITCH),
        Device("rear_defrost", "set_defrost", "rear_defrost", "own.defrost.rear", {"area": "rear"}, _SWITCH),
        Device("all_defrost", "set_defrost", "all_defrost", "own.defrost.all", {"area": "all"}, _SWITCH),
        Device("defrost", "set_defrost", "defrost", args={"area": "front"}, ops=_SWITCH),
        Device("sunroof", "set_sunroof", "sunroof", "own.sunroof", ops=("open", "close", "tilt")),
        Device("sunshade", "set_sunshade", "sunshade", "own.shade", ops=("open", "close", "open_part", "open_to")),
        Device(
            "window",
            "set_window",
            "window",
            "own.window",
            ops=(
                "open",
                "open",
                "close",
                "close",
                "open_part",
                "open_to",
                "open_by",
                "open_little",
                "open_more",
                "close_little",
            ),
            default="driver",
            zones=SEATS,
        ),
        Device("trunk", "set_trunk", "trunk", "own.trunk", ops=("open", "close")),
        Device("wipers", "set_wipers", "wipers", "own.wipers", ops=("on", "off", "fast", "slow", "medium", "interval")),
        _in_seats("massage", "set_seat_massage", "seat_massage", "own.massage"),
        Device(
            "ambient",
            "set_ambient_light",
            "ambient_light",
            "own.ambient",
            ops=_LIGHT,
            default="all",
            zones=("front", "driver", "passenger", "rear"),
            step=25,
            on=50,
        ),
        Device(
            "reading",
            "set_reading_light",
            "reading_light",
            "own.reading",
            ops=_LIGHT,
            default="driver",
            zones=SEATS,
            step=25,
            on=50,
        ),
        Device(
            "call_volume",
            "set_volume",
            "call_volume",
            "own.call_volume",
            {"target": "call"},
            (*_LEVEL, "half"),
            step=10,
            least=0,
        ),
        _switched("high_beam", "set_exterior_light", "own.high_beam", which="high_beam"),
        _switched("fog", "set_exterior_light", which="fog"),
        _switched("front_fog", "set_exterior_light", which="front_fog"),
        _switched("rear_fog", "set_exterior_light", which="rear_fog"),
        _switched("position", "set_exterior_light", ops=("on",), which="position"),
        _switched("climate_auto", "set_climate_mode", "own.auto", mode="auto"),
        _switched("climate_eco", "set_climate_mode", "own.eco", mode="eco"),
        _switched("rapid_cooling", "set_climate_mode", "own.rapid_cooling", mode="rapid_cooling"),
        _switched("rapid_heating", "set_climate_mode", "own.rapid_heating", mode="rapid_heating"),
        _switched("swing", "set_climate_mode", "own.swing", mode="swing"),
        _switched("natural_wind", "set_climate_mode", "own.natural", mode="natural"),
        _switched("screen_power", "set_screen", "own.screen"),
        Device("doors", "set_door_locks", "doors", "own", ops=("lock", "unlock"), default="all", zones=SEATS),
    )
}

SWITCHED = (
    "ac",
    "recirculation",
    "dome",
    "front_defrost",
    "rear_defrost",
    "seat_heating",
    "seat_ventilation",
    "wheel",
    "massage",
    "ambient",
    "fog",
    "swing",
    "rapid_cooling",
    "screen_power",
)
"""Things that "turn on A and B" may join."""
OPENED = ("window", "sunroof", "sunshade", "trunk")
COLORS = ("white", "red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink")
PAGES = ("home", "navigation", "media", "climate", "phone", "vehicle", "settings")
SEAT_MOVES = ("forward", "back", "up", "down", "recline", "upright")
FRACTIONS = {"half": 50.0, "quarter": 25.0, "third": 33.0, "two_thirds": 67.0, "three_quarters": 75.0}


def result_of(device: Device, op: str, zone: str, value: float = 0.0) -> dict[str, Any]:
    """The call's arguments: what this wish comes to. value: for set, by, part and to."""
    args = dict(device.args)
    if device.default:
        args["zone"] = zone or device.default
    if device.tool in (
        "set_air_conditioning",
        "set_recirculation",
        "set_interior_light",
        "set_headlights",
        "set_defrost",
        "set_exterior_light",
        "set_climate_mode",
        "set_screen",
    ):
        return {**args, "on": op == "on"}
    if device.name == "sunroof":
        return {"position": {"open": "open", "close": "closed", "tilt": "tilted"}[op]}
    if device.name == "trunk":
        return {"open": op == "open"}
    if device.name == "wipers":
        return {"mode": {"on": "medium"}.get(op, op)}
    if device.name == "doors":
        return {"locked": op == "lock", "zone": args["zone"]}
    if device.name in ("window", "sunshade"):
        fixed = {"open": 100.0, "close": 0.0}
        changed = {"open_little": 20.0, "open_more": 20.0, "close_little": -20.0, "open_by": value}
        if op in changed:
            return {**args, "action": "change", "value": changed[op]}
        return {**args, "action": "set", "value": fixed.get(op, value)}
    return {**args, **_level(device, op, value)}


def _level(device: Device, op: str, value: float) -> dict[str, Any]:
    step = device.step
    shares = {"up": 1.0, "down": -1.0, "up_little": 0.5, "down_little": -0.5, "up_lot": 2.0, "down_lot": -2.0}
    if op in shares:
        change = shares[op] * step
        return {"action": "change", "value": change if device.name == "temperature" else float(round(change))}
    if op in ("up_by", "down_by"):
        return {"action": "change", "value": value if op == "up_by" else -value}
    at = {"on": device.on, "off": 0.0, "max": device.high, "min": device.least}
    return {"action": "set", "value": float(at.get(op, value))}
