"""Answers to questions about the car, read fresh."""

from __future__ import annotations

from collections.abc import Callable
from datetime import datetime
from typing import Any

from pipeline.vehicle.places import Place
from pipeline.vehicle.signals import SignalAccess, Value
from pipeline.vehicle.writes import SEATS_OF

CABIN = "Vehicle.Cabin."
Answer = tuple[str | None, Any, dict[str, Any]]
"""Path of the signal (None when it is no signal), value, and what the reply needs."""

_DIRECT = {
    "speed": "Vehicle.Speed",
    "battery": "Vehicle.Powertrain.TractionBattery.StateOfCharge.Displayed",
    "range": "Vehicle.Powertrain.Range",
    "outside_temperature": "Vehicle.Exterior.AirTemperature",
    "inside_temperature": CABIN + "HVAC.AmbientAirTemperature",
    "odometer": "Vehicle.TraveledDistance",
    "volume": CABIN + "Infotainment.Media.Volume",
    "air_conditioning": CABIN + "HVAC.IsAirConditioningActive",
    "recirculation": CABIN + "HVAC.IsRecirculationActive",
    "sunroof": CABIN + "Sunroof.Position",
    "lights": CABIN + "Light.IsDomeOn",
    "wipers": "Vehicle.Body.Windshield.Front.Wiping.Mode",
    "trunk": "Vehicle.Body.Trunk.Rear.IsOpen",
    "gear": "Vehicle.Powertrain.Transmission.CurrentGear",
    "media": CABIN + "Infotainment.Media.SelectedURI",
}
_PER_SEAT = {
    "set_temperature": CABIN + "HVAC.Station.{row}.{side}.Temperature",
    "fan": CABIN + "HVAC.Station.{row}.{side}.FanSpeed",
    "windows": CABIN + "Door.{row}.{side}Side.Window.Position",
    "doors": CABIN + "Door.{row}.{side}Side.IsOpen",
    "locks": CABIN + "Door.{row}.{side}Side.IsLocked",
    "seat_heating": CABIN + "Seat.{row}.{side}Side.HeatingCooling",
    "seat_massage": CABIN + "Seat.{row}.{side}Side.Massage.Level",
    "ambient_light": CABIN + "Light.AmbientLight.{row}.{side}Side.IsLightOn",
}
EXTERIOR = ("Beam.Low", "Beam.High", "Fog.Front", "Fog.Rear")
"""Lights outside, in the order in which an answer names them."""


def answer(
    access: SignalAccess, item: str, zone: str, now: datetime, route: Callable[[], tuple[Place | None, float]]
) -> Answer:
    """The answer to `item` (one of schemas.QUESTIONS). Raises SignalError when the car does not tell."""
    if item in ("time", "date"):
        return None, now.strftime("%H:%M" if item == "time" else "%Y-%m-%d"), {"weekday": now.weekday()}
    if item == "destination":
        place, distance = route()
        names = None if place is None else {"en": place.en, "zh": place.zh}
        return None, names, {"place": names, "distance_km": distance}
    if item == "location":
        latitude = access.read("Vehicle.CurrentLocation.Latitude")
        longitude = access.read("Vehicle.CurrentLocation.Longitude")
        return "Vehicle.CurrentLocation.Latitude", latitude, {"latitude": latitude, "longitude": longitude}
    if item == "tyre_pressure":
        sides = [(row, side) for row in ("Row1", "Row2") for side in ("Left", "Right")]
        paths = [f"Vehicle.Chassis.Axle.{row}.Wheel.{side}.Tire.Pressure" for row, side in sides]
        return _several(access, paths)
    if item == "exterior_lights":
        return _several(access, [f"Vehicle.Body.Lights.{light}.IsOn" for light in EXTERIOR])
    if item == "defrost":
        return _several(access, [f"{CABIN}HVAC.Is{area}DefrosterActive" for area in ("Front", "Rear")])
    if item in _PER_SEAT:
        seats = SEATS_OF.get(zone, SEATS_OF["all"])
        return _several(access, [_PER_SEAT[item].format(row=row, side=side) for row, side in seats])
    path = _DIRECT[item]
    return path, access.read(path), {}


def _several(access: SignalAccess, paths: list[str]) -> Answer:
    values: list[Value] = [access.read(path) for path in paths]
    return paths[0], values[0], {"paths": paths, "values": values}
