"""Runs tool calls against the car. Nothing is clamped, nothing has a default, and "done" means: read back and equal."""

from __future__ import annotations

import re
import unicodedata
from collections import OrderedDict
from collections.abc import Callable
from dataclasses import dataclass, field, replace
from datetime import datetime
from typing import Any

from pipeline.frames import ToolCall, ToolResult
from pipeline.vehicle.driver_side import as_built, drives_on_the_right
from pipeline.vehicle.places import Place, Places, distance_km
from pipeline.vehicle.queries import answer
from pipeline.vehicle.schemas import BY_ACTION, LIMITS, fault_of
from pipeline.vehicle.signals import SignalAccess, SignalError, Value
from pipeline.vehicle.writes import FURTHER, SEATS_OF

CABIN = "Vehicle.Cabin."
MEDIA = CABIN + "Infotainment.Media."
NAVIGATION = CABIN + "Infotainment.Navigation."
READ_BACK_TOLERANCE = 0.01
KEPT_SHOWN = 128
"""Places that can be named by key: more than ten turns name."""

_ROWS = SEATS_OF
"""Seats of a zone. VSS names sides by the driver: see `as_built` for a car whose driver sits on the right."""

_SEAT = re.compile(r"\.(Row[12])\.(Driver|Passenger)")
_ZONE_OF = {seats[0]: zone for zone, seats in SEATS_OF.items() if len(seats) == 1}

_LEVEL_PATHS = {
    "set_temperature": "Vehicle.Cabin.HVAC.Station.{row}.{side}.Temperature",
    "set_fan": "Vehicle.Cabin.HVAC.Station.{row}.{side}.FanSpeed",
    "set_window": "Vehicle.Cabin.Door.{row}.{side}Side.Window.Position",
    "set_seat_heating": "Vehicle.Cabin.Seat.{row}.{side}Side.HeatingCooling",
    "set_seat_ventilation": "Vehicle.Cabin.Seat.{row}.{side}Side.HeatingCooling",
    "set_door_locks": "Vehicle.Cabin.Door.{row}.{side}Side.IsLocked",
    "set_seat_massage": "Vehicle.Cabin.Seat.{row}.{side}Side.Massage.Level",
    "set_ambient_light": "Vehicle.Cabin.Light.AmbientLight.{row}.{side}Side.Intensity",
    "set_reading_light": "Vehicle.Cabin.Light.Spotlight.{row}.{side}Side.Intensity",
}
_SINGLE_PATHS = {
    "set_sunshade": CABIN + "Sunroof.Shade.Position",
    "set_steering_wheel_heating": "Vehicle.Chassis.SteeringWheel.HeatingCooling",
    "set_brightness": CABIN + "Infotainment.HMI.Brightness",
    "set_air_conditioning": CABIN + "HVAC.IsAirConditioningActive",
    "set_recirculation": CABIN + "HVAC.IsRecirculationActive",
    "set_interior_light": CABIN + "Light.IsDomeOn",
    "set_headlights": "Vehicle.Body.Lights.Beam.Low.IsOn",
    "set_trunk": "Vehicle.Body.Trunk.Rear.IsOpen",
    "set_screen": CABIN + "Infotainment.HMI.IsScreenOn",
}
_SUNROOF = {"open": "ONE_SHOT_OPEN", "closed": "ONE_SHOT_CLOSE", "tilted": "TILT_UP"}
_MEDIA_ACTIONS = {
    "play": "PLAY",
    "stop": "STOP",
    "next": "SKIP_FORWARD",
    "previous": "SKIP_BACKWARD",
    "fast_forward": "FAST_FORWARD",
    "rewind": "FAST_BACKWARD",
}
_VOLUMES = {"media": MEDIA, "navigation": NAVIGATION, "call": CABIN + "Infotainment.Phone."}
_REFUSED = ("forbidden", "forbidden_while_moving", "needs_headlights", "out_of_range", "wrong_type")
_BOOLEAN_ARGUMENT = {"set_door_locks": "locked", "set_trunk": "open"}


@dataclass(slots=True)
class Route:
    """The route guidance's own state: VSS has a destination, but neither a route nor its end."""

    place: Place | None = None
    avoid: tuple[str, ...] = ()


@dataclass(slots=True)
class Toolbox:
    """Executes calls; owned by the understanding stage's thread. `now` is wall-clock time for "what time is it"."""

    access: SignalAccess
    places: Places
    now: Callable[[], datetime] = datetime.now
    route: Route = field(default_factory=Route)
    volume_before_mute: int = 30
    shown: OrderedDict[str, Place] = field(default_factory=OrderedDict)
    """Places that were named aloud, by the key under which a call may name them. See `show`."""
    _undo: dict[int, list[tuple[Route, int]]] = field(default_factory=dict)

    def execute(self, call: ToolCall, turn_id: int) -> ToolResult:
        """Run one call. Never raises for what a person may say or a car may do: the status tells."""
        fault = fault_of(call.name, call.arguments)
        if fault is not None:
            return ToolResult(call, "refused", None, None, fault, self._limits(call))
        self._undo.setdefault(turn_id, []).append((Route(self.route.place, self.route.avoid), self.volume_before_mute))
        while len(self._undo) > 8:
            del self._undo[next(iter(self._undo))]
        try:
            return replace(self._run(as_built(call, self.access), turn_id), call=call)
        except SignalError as error:
            status = "refused" if error.reason in _REFUSED else "failed"
            detail = {**self._limits(call), **error.detail}
            return ToolResult(call, status, error.path, None, error.reason, detail)  # type: ignore[arg-type]

    def forget(self) -> None:
        """Another dialogue: no trip, nothing shown, nothing to be taken back."""
        self.route = Route()
        self.shown.clear()
        self._undo.clear()

    def roll_back(self, turn_id: int) -> int:
        """Take back everything a turn did. Returns the number of signal writes undone. Raises SignalError."""
        saved = self._undo.pop(turn_id, [])
        if saved:
            self.route, self.volume_before_mute = saved[0]
        return self.access.roll_back(turn_id)

    def show(self, place: Place) -> str:
        """A key for this very place, for a call's `place` argument: a name could mean another one."""
        known = self.places.by_id.get(place.id)
        if known is not None and (known.latitude, known.longitude) == (place.latitude, place.longitude):
            return place.id
        key = f"shown:{place.id}"[:80]
        self.shown[key] = place
        self.shown.move_to_end(key)
        while len(self.shown) > KEPT_SHOWN:
            self.shown.popitem(last=False)
        return key

    def place_of(self, key: str) -> Place | None:
        """The place that a call means by `key`; None where none is known."""
        return self.shown.get(key) or self.places.resolve(key, *self.position())

    def position(self) -> tuple[float, float]:
        """Where the car is, WGS 84 degrees."""
        latitude = self.access.read("Vehicle.CurrentLocation.Latitude")
        longitude = self.access.read("Vehicle.CurrentLocation.Longitude")
        return float(latitude), float(longitude)

    def _run(self, call: ToolCall, turn_id: int) -> ToolResult:
        name, arguments = call.name, call.arguments
        if name == "refuse":
            return ToolResult(call, "refused", None, None, arguments["reason"], {"what": arguments["what"]})
        if name in ("navigate_to", "ask_distance", "cancel_navigation", "set_route_options"):
            return self._navigation(call, turn_id)
        if name == "ask_vehicle":
            path, value, detail = answer(
                self.access, arguments["item"], arguments["zone"], self.now(), self.route_answer
            )
            return ToolResult(call, "done", path, value, None, {**detail, "item": arguments["item"]})
        return self._write(call, self._wanted(call), turn_id)

    def _wanted(self, call: ToolCall) -> list[tuple[str, Value]]:
        """The writes of a call: values of relative calls resolved against a fresh read."""
        name, arguments = call.name, call.arguments
        if name in ("set_ambient_light", "set_reading_light"):
            return [write for path in _zone_paths(name, arguments["zone"]) for write in self._dimmed(call, path)]
        if name in BY_ACTION:
            return [(path, self._level(name, arguments, path)) for path in self._level_paths(name, arguments)]
        listed = name != "control_media" or arguments["action"] not in _MEDIA_ACTIONS
        if name in FURTHER and listed:
            return FURTHER[name](self.access, arguments)
        if name == "set_door_locks":
            return [(path, arguments["locked"]) for path in _zone_paths(name, arguments["zone"])]
        if name in _SINGLE_PATHS:
            return [(_SINGLE_PATHS[name], arguments[_BOOLEAN_ARGUMENT.get(name, "on")])]
        if name == "set_defrost":
            areas = {"front": ["Front"], "rear": ["Rear"], "all": ["Front", "Rear"]}[arguments["area"]]
            return [(f"{CABIN}HVAC.Is{area}DefrosterActive", arguments["on"]) for area in areas]
        if name == "set_sunroof":
            return [(CABIN + "Sunroof.Switch", _SUNROOF[arguments["position"]])]
        if name == "set_wipers":
            return [("Vehicle.Body.Windshield.Front.Wiping.Mode", arguments["mode"].upper())]
        if name == "control_media":
            return [(MEDIA + "Action", _MEDIA_ACTIONS[arguments["action"]])]
        if name == "play_media":
            return [(MEDIA + "SelectedURI", "media:search?q=" + _plain(arguments["query"])), (MEDIA + "Action", "PLAY")]
        if name == "set_media_source":
            return [(MEDIA + "Played.Source", arguments["source"]), (MEDIA + "Action", "PLAY")]
        if name == "restore_volume":
            current = self.access.read(MEDIA + "Volume")
            return [(MEDIA + "Volume", current if current else self.volume_before_mute)]
        assert name == "set_navigation_voice", name
        return [(NAVIGATION + "Mute", arguments["state"])]

    def _level_paths(self, name: str, arguments: dict[str, Any]) -> list[str]:
        if name == "set_volume":
            return [_VOLUMES[arguments["target"]] + "Volume"]
        if name in _SINGLE_PATHS:
            return [_SINGLE_PATHS[name]]
        return _zone_paths(name, arguments["zone"])

    def _dimmed(self, call: ToolCall, path: str) -> list[tuple[str, Value]]:
        """A light of several levels: its brightness and that it is on, or that it is off."""
        switch = path.removesuffix("Intensity") + "IsLightOn"
        arguments = dict(call.arguments)
        if arguments["action"] == "change" and not self.access.read(switch):
            arguments["action"] = "set"  # what is off has no brightness to add to
        value = self._level(call.name, arguments, path)
        return [(path, value), (switch, True)] if value else [(switch, False)]

    def _level(self, name: str, arguments: dict[str, Any], path: str) -> float:
        sign = -1.0 if name == "set_seat_ventilation" else 1.0
        value = float(arguments["value"])
        if arguments["action"] == "change":
            current = self.access.read(path)
            assert isinstance(current, int | float)
            shown = max(0.0, sign * current) if name.startswith("set_seat") else float(current)
            value = (100.0 - shown if name == "set_sunshade" else shown) + value
        limit = LIMITS[
            "temperature" if name == "set_temperature" else "brightness" if name == "set_brightness" else "percent"
        ]
        if not limit[0] <= value <= limit[1]:
            raise SignalError(
                "out_of_range", path, {"min": limit[0], "max": limit[1], "unit": limit[2], "asked": value}
            )
        if name == "set_sunshade":  # VSS counts from the start position, which is open
            return 100.0 - value
        return sign * value if value else 0.0

    def _write(self, call: ToolCall, wanted: list[tuple[str, Value]], turn_id: int) -> ToolResult:
        """All checks first, then all writes, then every value read back."""
        checked = [(path, self.access.check(path, value)) for path, value in wanted]
        media_volume = self.access.read(MEDIA + "Volume")
        done = 0
        try:
            for path, value in checked:
                self.access.write(path, value, turn_id)
                done += 1
        except SignalError:
            self.access.undo_last(turn_id, done)
            raise
        if call.name == "set_volume" and isinstance(media_volume, int) and media_volume > 0:
            self.volume_before_mute = media_volume
        seen = [self.access.read(path) for path, _ in checked]
        behind = [place for place, (_, value) in enumerate(checked) if not _same(value, seen[place])]
        if behind:
            path, value = checked[behind[0]]
            missed = [checked[place][0] for place in behind]
            followed = len(behind) < len(checked)
            told = {"asked": value, "missed": missed, "missed_zones": self._zones(missed), "others_followed": followed}
            return ToolResult(call, "failed", path, seen[behind[0]], "not_confirmed", told)
        detail: dict[str, Any] = {"paths": [path for path, _ in checked], "values": seen}
        return ToolResult(call, "done", checked[0][0], seen[0], None, detail)

    def _zones(self, paths: list[str]) -> list[str]:
        """The seats that paths belong to, as a person names them; none where a path belongs to no seat."""
        found = [_SEAT.search(path) for path in paths]
        zones = [_ZONE_OF[match[1], match[2]] for match in found if match is not None]
        if drives_on_the_right(self.access):
            zones = [{"rear_left": "rear_right", "rear_right": "rear_left"}.get(zone, zone) for zone in zones]
        return list(dict.fromkeys(zones)) if len(zones) == len(paths) else []

    def _navigation(self, call: ToolCall, turn_id: int) -> ToolResult:
        if call.name == "cancel_navigation":
            had = self.route.place
            self.route = Route()
            return ToolResult(
                call, "done", None, "cancelled", None, {"was_active": had is not None, "place": _names(had)}
            )
        if call.name == "set_route_options":
            self.route = Route(self.route.place, tuple(call.arguments["avoid"]))
            return ToolResult(call, "done", None, list(self.route.avoid), None, {"avoid": list(self.route.avoid)})
        latitude, longitude = self.position()
        place = self.place_of(call.arguments["place"])
        if place is None:
            asked = _plain(call.arguments["place"])
            similar = self.places.similar(asked, latitude, longitude)
            unknown: dict[str, Any] = {
                "asked": asked,
                "similar": [_names(other) for other in similar],
                "similar_places": similar,
            }
            return ToolResult(call, "refused", None, None, "unknown_place", unknown)
        distance = round(distance_km(latitude, longitude, place), 1)
        detail = {"place": _names(place), "distance_km": distance, "kind": place.kind}
        if call.name == "ask_distance":
            return ToolResult(call, "done", None, distance, None, detail)
        target = NAVIGATION + "DestinationSet."
        result = self._write(
            call, [(target + "Latitude", place.latitude), (target + "Longitude", place.longitude)], turn_id
        )
        if result.status != "done":
            return result
        self.route = Route(place, tuple(call.arguments["avoid"]))
        return ToolResult(
            call,
            "done",
            target + "Latitude",
            place.id,
            None,
            {**result.detail, **detail, "avoid": list(self.route.avoid)},
        )

    def route_answer(self) -> tuple[Place | None, float]:
        """The destination and its distance in km; (None, 0) without one."""
        if self.route.place is None:
            return None, 0.0
        return self.route.place, round(distance_km(*self.position(), self.route.place), 1)

    def _limits(self, call: ToolCall) -> dict[str, Any]:
        if call.name not in BY_ACTION and call.name != "tune_radio":
            return {}
        kind = {"set_temperature": "temperature", "set_brightness": "brightness", "tune_radio": "radio"}.get(
            call.name, "percent"
        )
        low, high, unit = LIMITS[kind]
        return {"min": low, "max": high, "unit": unit, "asked": call.arguments.get("value")}


def _zone_paths(name: str, zone: str) -> list[str]:
    return [_LEVEL_PATHS[name].format(row=row, side=side) for row, side in _ROWS[zone]]


def _same(wanted: Value, observed: Value) -> bool:
    if isinstance(wanted, bool | str) or isinstance(observed, bool | str):
        return type(wanted) is type(observed) and wanted == observed
    return abs(wanted - observed) <= READ_BACK_TOLERANCE


def _names(place: Place | None) -> dict[str, str] | None:
    return None if place is None else {"en": place.en, "zh": place.zh}


def _plain(text: str) -> str:
    """One line without control characters: it goes into a signal and is spoken, never interpreted."""
    kept = "".join(" " if unicodedata.category(c).startswith(("C", "Z")) else c for c in text)
    return " ".join(kept.split())
