"""The offline place list: names in both languages, kinds, and which one is nearest."""

from __future__ import annotations

import json
import math
from dataclasses import dataclass
from pathlib import Path

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


@dataclass(frozen=True, slots=True)
class Places:
    """All places by id, and the words for each kind of place."""

    by_id: dict[str, Place]
    kinds: dict[str, tuple[str, ...]]

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
        """The place with this id, or the nearest of this kind; None when the list holds neither."""
        if key in self.by_id:
            return self.by_id[key]
        of_kind = [place for place in self.by_id.values() if place.kind == key]
        return min(of_kind, key=lambda place: distance_km(latitude, longitude, place), default=None)


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
