"""The tools that read what the car itself knows, offline: places, distances, charge and range, its state, the time."""

from __future__ import annotations

from collections.abc import Mapping, Sequence
from typing import Any

from models.errors import InputError
from pipeline.agent.tools import AgentTool, Arguments, Result
from pipeline.frames import Language, ToolCall, ToolResult
from pipeline.nlg.actions import spoken_name
from pipeline.nlg.answers import number, say_answer
from pipeline.vehicle.places import Place, distance_km
from pipeline.vehicle.queries import answer
from pipeline.vehicle.signals import SignalError
from pipeline.vehicle.tools import Toolbox

HERE = "here"
MOST_PLACES = 3
"""As many as one can keep in mind when they are read out."""
NEARBY_KM = 30.0
"""Beyond that a place is not near another."""
VEHICLE_ITEMS = (
    "speed",
    "outside_temperature",
    "inside_temperature",
    "tyre_pressure",
    "odometer",
    "destination",
    "time",
    "date",
)
"""Values that `vehicle` tells; battery and range are `charge`."""
CAR_TOOLS = ("find_places", "distance", "charge", "reach", "vehicle")
"""Their names."""
_TEXT = {"type": "string", "minLength": 1, "maxLength": 80}


def _object(**properties: Any) -> dict[str, Any]:
    return {"type": "object", "properties": properties, "required": list(properties), "additionalProperties": False}


def car_tools(toolbox: Toolbox) -> list[AgentTool]:
    """The tools over one car. They only read, so they may run in any thread."""
    car = _Car(toolbox)
    return [
        AgentTool(
            "find_places",
            {"en": "the place search", "zh": "地点搜索"},
            "the nearest places of a kind, near here or near another place, with their distance",
            _object(kind={"type": "string", "enum": sorted(toolbox.places.kinds)}, near=_TEXT),
            car.find_places,
            say=_say_found,
        ),
        AgentTool(
            "distance",
            {"en": "the distance", "zh": "距离计算"},
            "how far one place is from here",
            _object(place=_TEXT),
            car.distance,
            say=_say_distance,
        ),
        AgentTool(
            "charge",
            {"en": "the battery reading", "zh": "电量读取"},
            "battery level and range left",
            _object(),
            car.charge,
            say=_say_charge,
        ),
        AgentTool(
            "reach",
            {"en": "the range estimate", "zh": "续航估算"},
            "whether the range left is enough to get to a place",
            _object(place=_TEXT),
            car.reach,
            say=_say_reach,
        ),
        AgentTool(
            "vehicle",
            {"en": "the car's reading", "zh": "车辆状态读取"},
            "one value of the car",
            _object(item={"type": "string", "enum": list(VEHICLE_ITEMS)}),
            car.vehicle,
            say=_say_vehicle,
        ),
    ]


class _Car:
    """What the tools run. Each raises InputError or SignalError when there is no answer."""

    def __init__(self, toolbox: Toolbox) -> None:
        self._toolbox = toolbox

    def find_places(self, arguments: Arguments) -> Result:
        here = self._toolbox.position()
        centre, near = here, None
        if arguments["near"] != HERE:
            near = self._place(arguments["near"])
            centre = (near.latitude, near.longitude)
        found = [
            place
            for place in self._toolbox.places.nearby(arguments["kind"], *centre, MOST_PLACES + 1)
            if near is None or (place.id != near.id and distance_km(*centre, place) <= NEARBY_KM)
        ]
        places = [
            {**as_json(place), "km": _km(here, place), "km_from_there": _km(centre, place)}
            for place in found[:MOST_PLACES]
        ]
        return {"kind": arguments["kind"], "near": None if near is None else as_json(near), "places": places}

    def distance(self, arguments: Arguments) -> Result:
        place = self._place(arguments["place"])
        return {"place": as_json(place), "km": _km(self._toolbox.position(), place)}

    def charge(self, arguments: Arguments) -> Result:
        return {"battery_percent": self._read("battery"), "range_km": round(float(self._read("range")) / 1000, 1)}

    def reach(self, arguments: Arguments) -> Result:
        place = self._place(arguments["place"])
        km, range_km = _km(self._toolbox.position(), place), round(float(self._read("range")) / 1000, 1)
        return {"place": as_json(place), "km": km, "range_km": range_km, "enough": range_km > km}

    def vehicle(self, arguments: Arguments) -> Result:
        box = self._toolbox
        path, value, detail = answer(box.access, arguments["item"], "any", box.now(), box.route_answer)
        return {"item": arguments["item"], "path": path, "value": value, "detail": detail}

    def _place(self, key: str) -> Place:
        place = self._toolbox.place_of(key)
        if place is None:
            raise InputError(f"no place is called {key!r}")
        return place

    def _read(self, item: str) -> Any:
        box = self._toolbox
        value = answer(box.access, item, "any", box.now(), box.route_answer)[1]
        if not isinstance(value, int | float) or isinstance(value, bool):
            raise SignalError("unavailable", item)
        return value


def _km(here: tuple[float, float], place: Place) -> float:
    return round(distance_km(*here, place), 1)


def as_json(place: Place) -> dict[str, Any]:
    """A place in a result; `place_in` reads it."""
    return {
        "id": place.id,
        "kind": place.kind,
        "en": place.en,
        "zh": place.zh,
        "latitude": place.latitude,
        "longitude": place.longitude,
    }


def places_in(result: Result) -> list[Place]:
    """The places of a result, in order: those found, else the one that was asked about."""
    listed: Sequence[Mapping[str, Any]] = result.get("places") or ([result["place"]] if "place" in result else [])
    return [
        Place(p["id"], p["kind"], p["en"], p["zh"], p["latitude"], p["longitude"], ())
        for p in listed
        if isinstance(p, Mapping) and "latitude" in p
    ]


def _named(place: Mapping[str, Any], language: Language) -> str:
    return spoken_name(str(place[language])) or ("一个没有名字的地方" if language == "zh" else "a place without a name")


def _say_found(arguments: Arguments, result: Result, language: Language) -> str:
    zh = language == "zh"
    near = "" if result["near"] is None else _named(result["near"], language)
    places = result["places"]
    if not places:
        if zh:
            return f"{near or '附近'}{'附近' if near else ''}没有找到。"
        return f"I found none near {near}." if near else "I found none nearby."
    told = [(_named(place, language), number(place["km_from_there" if near else "km"])) for place in places]
    from_here = number(places[0]["km"])
    if zh:
        first = (
            f"离{near}最近的是{told[0][0]}，{told[0][1]}公里，离这里{from_here}公里"
            if near
            else (f"最近的是{told[0][0]}，离这里{from_here}公里")
        )
        return first + "".join(f"；第{'二三'[i]}个是{name}，{km}公里" for i, (name, km) in enumerate(told[1:])) + "。"
    rest = "".join(f"; the {('second', 'third')[i]} is {name}, {km}" for i, (name, km) in enumerate(told[1:]))
    if near:
        first = f"The nearest to {near} is {told[0][0]}, {told[0][1]} kilometers from there and {from_here} from here"
    else:
        first = f"The nearest is {told[0][0]}, {from_here} kilometers from here"
    return f"{first}{rest}."


def _say_distance(arguments: Arguments, result: Result, language: Language) -> str:
    name, km = _named(result["place"], language), number(result["km"])
    return f"到{name}大约{km}公里。" if language == "zh" else f"It is about {km} kilometers to {name}."


def _say_charge(arguments: Arguments, result: Result, language: Language) -> str:
    percent, km = number(result["battery_percent"]), number(result["range_km"])
    if language == "zh":
        return f"电量还剩百分之{percent}，续航大约{km}公里。"
    return f"The battery is at {percent} percent, about {km} kilometers of range."


def _say_reach(arguments: Arguments, result: Result, language: Language) -> str:
    name, km, left = _named(result["place"], language), number(result["km"]), number(result["range_km"])
    if language == "zh":
        verdict = "够到" if result["enough"] else "不够到"
        return f"到{name}大约{km}公里，续航还有{left}公里，{verdict}那里。"
    verdict = "That is enough" if result["enough"] else "That is not enough"
    return f"It is about {km} kilometers to {name}, and the range is {left}. {verdict}."


def _say_vehicle(arguments: Arguments, result: Result, language: Language) -> str:
    call = ToolCall("ask_vehicle", {"item": result["item"], "zone": "any"})
    detail = {**result["detail"], "item": result["item"]}
    return say_answer(ToolResult(call, "done", result["path"], result["value"], None, detail), language)
