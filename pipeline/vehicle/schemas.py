"""The closed set of tools: one JSON Schema each, and RapidJSON's Validator in front of every call.

Ranges stand in the schemas, so a value out of range is refused before anything is read. Where a range is Cockpit's
own and not VSS's, it is one of LIMITS.
"""

from __future__ import annotations

from collections.abc import Callable
from functools import cache
from typing import Any

from pipeline.frames import ToolCall
from pipeline.json_codec import SchemaMismatch, validator
from pipeline.vehicle.places import Places

LIMITS: dict[str, tuple[float, float, str]] = {
    "temperature": (16, 30, "Celsius"),
    "temperature_change": (-14, 14, "Celsius"),
    "percent": (0, 100, "percent"),
    "percent_change": (-100, 100, "percent"),
    "brightness": (10, 100, "percent"),
    "radio": (87.5, 108, "MHz"),
}
"""Lowest, highest and unit. Temperature, its change and the screen's lower end are Cockpit's own, the FM band is
ITU's; the others are VSS's.
"""

CLIMATE_ZONES = ["all", "front", "driver", "passenger", "rear", "rear_left", "rear_right"]
SEAT_ZONES = ["front", "driver", "passenger", "rear", "rear_left", "rear_right", "all"]
EXTERIOR_LIGHTS = ["high_beam", "fog", "front_fog", "rear_fog", "position"]
"""The low beam is a tool of its own. `fog`: the front ones to switch on, both to switch off."""
CLIMATE_MODES = ["auto", "eco", "rapid_cooling", "rapid_heating", "swing", "natural"]
COLORS = ["white", "red", "orange", "yellow", "green", "cyan", "blue", "purple", "pink"]
PAGES = ["home", "navigation", "media", "climate", "phone", "vehicle", "settings"]
SEAT_MOVES = ["forward", "back", "up", "down", "recline", "upright"]
QUESTIONS = [
    "speed",
    "battery",
    "range",
    "outside_temperature",
    "inside_temperature",
    "set_temperature",
    "tyre_pressure",
    "windows",
    "doors",
    "locks",
    "sunroof",
    "volume",
    "fan",
    "air_conditioning",
    "recirculation",
    "seat_heating",
    "defrost",
    "lights",
    "wipers",
    "trunk",
    "time",
    "date",
    "odometer",
    "destination",
    "media",
    "gear",
    "location",
    "seat_massage",
    "ambient_light",
    "exterior_lights",
]
REFUSALS = [
    "forbidden",
    "unsupported",
    "not_understood",
    "wrong_unit",
    "declined",
    "only_now",
    "no_condition",
    "nothing_done",
    "unclear",
]


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def _enum(values: list[str]) -> dict[str, Any]:
    return {"type": "string", "enum": values}


def _amount(absolute: str, change: str) -> list[dict[str, Any]]:
    """Two shapes: set to a value, or change by one; each with its own range."""
    shapes = []
    for action, limit in (("set", absolute), ("change", change)):
        low, high, _ = LIMITS[limit]
        shapes.append(
            {
                "action": {"type": "string", "enum": [action]},
                "value": {"type": "number", "minimum": low, "maximum": high},
            }
        )
    return shapes


def _either(shapes: list[dict[str, Any]], **common: Any) -> dict[str, dict[str, Any]]:
    return {shape["action"]["enum"][0]: _object(**common, **shape) for shape in shapes}


def _switch() -> dict[str, Any]:
    return {"type": "boolean"}


BY_ACTION: dict[str, dict[str, dict[str, Any]]] = {
    "set_temperature": _either(_amount("temperature", "temperature_change"), zone=_enum(CLIMATE_ZONES)),
    "set_fan": _either(_amount("percent", "percent_change"), zone=_enum(CLIMATE_ZONES)),
    "set_window": _either(_amount("percent", "percent_change"), zone=_enum(SEAT_ZONES)),
    "set_sunshade": _either(_amount("percent", "percent_change")),
    "set_seat_heating": _either(_amount("percent", "percent_change"), zone=_enum(SEAT_ZONES)),
    "set_seat_ventilation": _either(_amount("percent", "percent_change"), zone=_enum(SEAT_ZONES)),
    "set_steering_wheel_heating": _either(_amount("percent", "percent_change")),
    "set_volume": _either(_amount("percent", "percent_change"), target=_enum(["media", "navigation", "call"])),
    "set_brightness": _either(_amount("brightness", "percent_change")),
    "set_seat_massage": _either(_amount("percent", "percent_change"), zone=_enum(SEAT_ZONES)),
    "set_ambient_light": _either(_amount("percent", "percent_change"), zone=_enum(CLIMATE_ZONES)),
    "set_reading_light": _either(_amount("percent", "percent_change"), zone=_enum(SEAT_ZONES)),
}
"""Tools whose call says "set" or "change": one schema for each, so that a refusal names the right range."""

SIMPLE: dict[str, dict[str, Any]] = {
    "set_sunroof": _object(position=_enum(["open", "closed", "tilted"])),
    "set_defrost": _object(area=_enum(["front", "rear", "all"]), on=_switch()),
    "set_air_conditioning": _object(on=_switch()),
    "set_recirculation": _object(on=_switch()),
    "set_interior_light": _object(on=_switch()),
    "set_headlights": _object(on=_switch()),
    "set_wipers": _object(mode=_enum(["off", "interval", "slow", "medium", "fast"])),
    "set_door_locks": _object(locked=_switch(), zone=_enum(SEAT_ZONES)),
    "set_trunk": _object(open=_switch()),
    "control_media": _object(
        action=_enum(
            [
                "play",
                "stop",
                "next",
                "previous",
                "fast_forward",
                "rewind",
                "shuffle",
                "repeat",
                "in_order",
                "add_favourite",
                "play_favourites",
            ]
        )
    ),
    "play_media": _object(query={"type": "string", "minLength": 1, "maxLength": 80}),
    "set_media_source": _object(source=_enum(["FM", "AM", "DAB", "USB", "BLUETOOTH", "AUX", "CD", "INTERNET"])),
    "restore_volume": _object(target=_enum(["media"])),
    "set_navigation_voice": _object(state=_enum(["MUTED", "ALERT_ONLY", "UNMUTED"])),
    "navigate_to": _object(
        place={"type": "string", "minLength": 1, "maxLength": 80},
        avoid={"type": "array", "items": _enum(["motorway", "toll", "ferry"]), "uniqueItems": True, "maxItems": 3},
    ),
    "set_route_options": _object(
        avoid={
            "type": "array",
            "items": _enum(["motorway", "toll", "ferry"]),
            "uniqueItems": True,
            "minItems": 1,
            "maxItems": 3,
        }
    ),
    "cancel_navigation": _object(),
    "ask_distance": _object(place={"type": "string", "minLength": 1, "maxLength": 80}),
    "ask_vehicle": _object(item=_enum(QUESTIONS), zone=_enum(["any", *SEAT_ZONES])),
    "set_exterior_light": _object(which=_enum(EXTERIOR_LIGHTS), on=_switch()),
    "set_ambient_color": _object(color=_enum(COLORS)),
    "set_climate_mode": _object(mode=_enum(CLIMATE_MODES), on=_switch()),
    "set_air_direction": _object(direction=_enum(["windscreen", "face", "feet"]), zone=_enum(CLIMATE_ZONES)),
    "set_screen": _object(on=_switch()),
    "show_page": _object(page=_enum(PAGES)),
    "tune_radio": _object(value={"type": "number", "minimum": LIMITS["radio"][0], "maximum": LIMITS["radio"][1]}),
    "set_seat_position": _object(move=_enum(SEAT_MOVES), zone=_enum(["driver", "passenger"])),
    "refuse": _object(reason=_enum(REFUSALS), what={"type": "string", "maxLength": 80}),
}

TOOL_NAMES: tuple[str, ...] = (*BY_ACTION, *SIMPLE)

REASON_BY_KEYWORD = {"minimum": "out_of_range", "maximum": "out_of_range", "enum": "unknown_value"}


def schema_of(name: str, places: Places | None = None) -> dict[str, Any]:
    """The tool's JSON Schema; with `places`, the place argument is the closed set of known ones. KeyError if
    unknown.
    """
    if name in BY_ACTION:
        return {"anyOf": list(BY_ACTION[name].values())}
    schema: dict[str, Any] = SIMPLE[name]
    if places is not None and "place" in schema["properties"]:
        keys = [*places.by_id, *places.kinds]
        return {**schema, "properties": {**schema["properties"], "place": _enum(keys)}}
    return schema


@cache
def _validator(name: str, action: str | None) -> Callable[[Any], None]:
    schema = SIMPLE[name] if action is None else BY_ACTION[name][action]
    return validator(schema)


def fault_of(name: str, arguments: dict[str, Any]) -> str | None:
    """None when the arguments are valid, else a stable reason: unknown_tool, invalid_arguments, out_of_range,
    unknown_value.
    """
    action = None
    if name in BY_ACTION:
        action = arguments.get("action")
        if not isinstance(action, str) or action not in BY_ACTION[name]:
            return "invalid_arguments"
    elif name not in SIMPLE:
        return "unknown_tool"
    try:
        _validator(name, action)(arguments)
    except TypeError:
        return "invalid_arguments"
    except SchemaMismatch as error:
        return REASON_BY_KEYWORD.get(error.keyword, "invalid_arguments")
    return None


def opens_the_car(call: ToolCall) -> bool:
    """Whether somebody outside could get at something by it: doors unlocked, the boot open."""
    opened = {"set_door_locks": ("locked", False), "set_trunk": ("open", True)}.get(call.name)
    return opened is not None and call.arguments.get(opened[0]) is opened[1]
