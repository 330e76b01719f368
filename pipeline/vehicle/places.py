"""The offline place list: names in both languages, kinds, and which one is nearest."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path
from typing import Protocol

from pipeline.frames import Language

EARTH_RADIUS_KM = 6371.0
ROAD_FACTOR = 1.3
"""Road distance over straight-line distance, the usual rule of thumb where no road graph is at hand."""


@dataclass(frozen=True, slots=True)
class Place:
    """One destination. `latitude`, `longitude`: WGS 84 degrees."""

    id: str
    kind: str
    en: str
    zh: str
    latitude: float
    longitude: float
    aliases: tuple[str, ...]

    def name(self, language: Language) -> str:
        """The name as spoken."""
        return self.zh if language == "zh" else self.en


class PlaceSearch(Protocol):
    """Many further places, found by their names. See pipeline.vehicle.place_index."""

    def nearest(self, kind: str, latitude: float, longitude: float) -> Place | None:
        """The nearest of a kind; None where there is none."""
        ...

    def nearby(self, kind: str, latitude: float, longitude: float, count: int) -> list[Place]:
        """The `count` nearest of a kind, nearest first; fewer where there are fewer."""
        ...

    def meant(self, said: str, latitude: float, longitude: float) -> Place | None:
        """The place that was named; None where it is not known, or where one would have to guess."""
        ...

    def similar(self, said: str, latitude: float, longitude: float) -> list[Place]:
        """At most two places whose names are like what was said, to ask about."""
        ...


@dataclass(frozen=True, slots=True)
class Places:
    """All places by id, and the words for each kind of place. search: the head unit's own list, where it has one."""

    by_id: dict[str, Place]
    kinds: dict[str, tuple[str, ...]]
    search: PlaceSearch | None = None

    def phrases(self) -> dict[str, list[str]]:
        """Names for the lexicon: "place.<id>" and "kind.<kind>"."""
        table = {f"kind.{kind}": list(words) for kind, words in self.kinds.items()}
        for place in self.by_id.values():
            table[f"place.{place.id}"] = [_bare(place.en), place.zh, *place.aliases]
        return table

    def knows(self, key: str) -> bool:
        """True for a place id or a kind."""
        return key in self.by_id or key in self.kinds

    def resolve(self, key: str, latitude: float, longitude: float) -> Place | None:
        """The place with this id, the nearest of this kind, or the one that is called so; None when nothing is."""
        if key in self.by_id:
            return self.by_id[key]
        if key in self.kinds:
            of_kind = [place for place in self.by_id.values() if place.kind == key]
            found = None if self.search is None else self.search.nearest(key, latitude, longitude)
            of_kind += [] if found is None else [found]
            return min(of_kind, key=lambda place: distance_km(latitude, longitude, place), default=None)
        return None if self.search is None else self.search.meant(key, latitude, longitude)

    def nearby(self, kind: str, latitude: float, longitude: float, count: int) -> list[Place]:
        """The `count` nearest places of a kind, nearest first; fewer where there are fewer."""
        of_kind = [place for place in self.by_id.values() if place.kind == kind]
        of_kind += [] if self.search is None else self.search.nearby(kind, latitude, longitude, count)
        return sorted(of_kind, key=lambda place: distance_km(latitude, longitude, place))[:count]

    def similar(self, said: str, latitude: float, longitude: float) -> list[Place]:
        """Places to ask about when `resolve` found none."""
        return [] if self.search is None else self.search.similar(said, latitude, longitude)


def _bare(name: str) -> str:
    return name.removeprefix("the ")


def distance_km(latitude: float, longitude: float, place: Place) -> float:
    """Estimated road distance in km from a WGS 84 position: great circle times ROAD_FACTOR."""
    phi_a, phi_b = math.radians(latitude), math.radians(place.latitude)
    half = math.sin((phi_b - phi_a) / 2) ** 2
    half += math.cos(phi_a) * math.cos(phi_b) * math.sin(math.radians(place.longitude - longitude) / 2) ** 2
    return ROAD_FACTOR * 2 * EARTH_RADIUS_KM * math.asin(math.sqrt(half))


def load_places(file: Path | None = None) -> Places:
    """The list shipped with Cockpit, or one of the same form."""
    raw = json.loads((file or Path(__file__).with_name("places.json")).read_text(encoding="utf-8"))
    places = {}
    for row in raw["places"]:
        aliases = (*row["aliases_en"], *row["aliases_zh"])
        places[row["id"]] = Place(row["id"], row["kind"], row["en"], row["zh"], row["lat"], row["lon"], aliases)
    kinds = {kind: (*words["en"], *words["zh"]) for kind, words in raw["kinds"].items()}
    return Places(places, kinds)
