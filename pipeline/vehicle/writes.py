"""The writes of lights, climate modes, seat moves and the player's lists: call arguments to (path, value)."""

from __future__ import annotations

from collections.abc import Callable
from typing import Any, Final

from pipeline.vehicle.signals import SignalAccess, SignalError, Value

HVAC: Final = "Vehicle.Cabin.HVAC."
LIGHTS: Final = "Vehicle.Body.Lights."
AMBIENT: Final = "Vehicle.Cabin.Light.AmbientLight."
MEDIA: Final = "Vehicle.Cabin.Infotainment.Media."
FAVOURITES: Final = "media:favourites"
RADIO: Final = "radio:fm?mhz="
"""The player's URI of a frequency, which follows."""
PAGE: Final = "Vehicle.Cabin.Infotainment.HMI.Page"
Writes = list[tuple[str, Value]]

COLOR_CODES: Final = {
    "white": "#FFFFFF",
    "red": "#FF0000",
    "orange": "#FF8000",
    "yellow": "#FFD700",
    "green": "#00FF00",
    "cyan": "#00FFFF",
    "blue": "#0000FF",
    "purple": "#8000FF",
    "pink": "#FF69B4",
}
_DIRECTIONS: Final = {"windscreen": "UP", "face": "MIDDLE", "feet": "DOWN"}
_FOG: Final = {"front_fog": ("Front",), "rear_fog": ("Rear",)}
_MODES: Final = {
    "auto": "IsAutoActive",
    "eco": "IsEcoActive",
    "rapid_cooling": "IsRapidCoolingActive",
    "rapid_heating": "IsRapidHeatingActive",
    "swing": "IsSwingActive",
    "natural": "IsNaturalWindActive",
}
_OTHER_MODE: Final = {"rapid_cooling": "rapid_heating", "rapid_heating": "rapid_cooling"}
_LISTS: Final[dict[str, Writes]] = {
    "shuffle": [(MEDIA + "PlaybackMode", "SHUFFLE")],
    "repeat": [(MEDIA + "PlaybackMode", "REPEAT_ONE")],
    "in_order": [(MEDIA + "PlaybackMode", "IN_ORDER")],
    "add_favourite": [(MEDIA + "Played.IsFavourite", True)],
    "play_favourites": [(MEDIA + "SelectedURI", FAVOURITES), (MEDIA + "Action", "PLAY")],
}
_MOVES: Final = {
    "forward": ("Position", -20),
    "back": ("Position", 20),
    "up": ("Height", 10),
    "down": ("Height", -10),
    "recline": ("Backrest.Recline", 5.0),
    "upright": ("Backrest.Recline", -5.0),
}
"""One step of a seat: mm along the car or upwards, degrees of the backrest."""
_SEATS: Final = {"driver": "DriverSide", "passenger": "PassengerSide"}
_SIDES: Final = {
    "driver": (("Row1", "Driver"),),
    "passenger": (("Row1", "Passenger"),),
    "rear_left": (("Row2", "Driver"),),
    "rear_right": (("Row2", "Passenger"),),
}
_FRONT: Final = (*_SIDES["driver"], *_SIDES["passenger"])
_REAR: Final = (*_SIDES["rear_left"], *_SIDES["rear_right"])
SEATS_OF: Final = {**_SIDES, "front": _FRONT, "rear": _REAR, "all": (*_FRONT, *_REAR)}
"""Row and side of each seat of a zone."""


def _exterior_light(access: SignalAccess, arguments: dict[str, Any]) -> Writes:
    which, on = arguments["which"], arguments["on"]
    if which == "high_beam":
        return [(LIGHTS + "Beam.High.IsOn", on)]
    if which == "position":
        return [(LIGHTS + "Parking.IsOn", on)]
    ends = _FOG.get(which, ("Front",) if on else ("Front", "Rear"))
    return [(f"{LIGHTS}Fog.{end}.IsOn", on) for end in ends]


def _ambient_color(access: SignalAccess, arguments: dict[str, Any]) -> Writes:
    code = COLOR_CODES[arguments["color"]]
    places = [f"{AMBIENT}{row}.{side}Side." for row, side in SEATS_OF["all"]]
    writes: Writes = [(place + "Color", code) for place in places]
    return [*writes, *((place + "IsLightOn", True) for place in places)]


def _climate_mode(access: SignalAccess, arguments: dict[str, Any]) -> Writes:
    mode, on = arguments["mode"], arguments["on"]
    writes: Writes = [(HVAC + _MODES[mode], on)]
    if on and mode in _OTHER_MODE:
        writes.append((HVAC + _MODES[_OTHER_MODE[mode]], False))
    return writes


def _air_direction(access: SignalAccess, arguments: dict[str, Any]) -> Writes:
    direction = _DIRECTIONS[arguments["direction"]]
    return [(f"{HVAC}Station.{row}.{side}.AirDistribution", direction) for row, side in SEATS_OF[arguments["zone"]]]


def _lists(access: SignalAccess, arguments: dict[str, Any]) -> Writes:
    return _LISTS[arguments["action"]]


def _page(access: SignalAccess, arguments: dict[str, Any]) -> Writes:
    return [(PAGE, str(arguments["page"]).upper())]


def _radio(access: SignalAccess, arguments: dict[str, Any]) -> Writes:
    uri = f"{RADIO}{float(arguments['value']):.1f}"
    return [(MEDIA + "SelectedURI", uri), (MEDIA + "Played.Source", "FM"), (MEDIA + "Action", "PLAY")]


def _seat_position(access: SignalAccess, arguments: dict[str, Any]) -> Writes:
    part, step = _MOVES[arguments["move"]]
    path = f"Vehicle.Cabin.Seat.Row1.{_SEATS[arguments['zone']]}.{part}"
    now = access.read(path)
    if isinstance(now, str):
        raise SignalError("unavailable", path)
    return [(path, now + step)]


FURTHER: Final[dict[str, Callable[[SignalAccess, dict[str, Any]], Writes]]] = {
    "set_exterior_light": _exterior_light,
    "set_ambient_color": _ambient_color,
    "set_climate_mode": _climate_mode,
    "set_air_direction": _air_direction,
    "set_seat_position": _seat_position,
    "show_page": _page,
    "tune_radio": _radio,
    "control_media": _lists,
}
"""By tool; each may read what a relative wish adds to. Raises SignalError."""
