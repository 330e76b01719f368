"""Place files of a head unit: GeoPackage (`.gpkg`), CSV (`.csv`) or JSON lines (`.jsonl`), read whole and checked.

Columns, in any order: `name` (either language, by its letters) or `en` and `zh`, `lat` and `lon` (WGS 84 degrees), and,
where they are known, `id`, `kind`, `aliases` (CSV and GeoPackage: joined by `|`). A GeoPackage has its position in the
geometry column instead of `lat` and `lon`: a point, or the middle of what it holds.
"""

from __future__ import annotations

import csv
import json
import math
import re
import sqlite3
import struct
from collections.abc import Iterable, Iterator, Mapping
from contextlib import closing
from pathlib import Path
from typing import Any

from models.errors import InputError
from pipeline.vehicle.places import Place

MOST_PLACES = 2_000_000
MOST_BYTES = 1 << 30
MOST_NAME = 120
"""Characters of one name."""
_CJK = re.compile(r"[㐀-鿿]")
_SHOWN_FAULTS = 5
_ENVELOPE_DOUBLES = {0: 0, 1: 4, 2: 6, 3: 6, 4: 8}
"""Doubles of a GeoPackage geometry's envelope by its indicator (OGC 12-128, section 2.1.3)."""


def read_places(file: Path) -> list[Place]:
    """Every place of `file`.

    Raises InputError for a file that cannot be read, a format that is not known, and rows that are no places: the first
    of them are named by line, and nothing is taken from such a file.
    """
    reader = _READERS.get(file.suffix.lower())
    if reader is None:
        raise InputError(f"{file}: places are read from {', '.join(_READERS)}, not from {file.suffix or 'this'!r}")
    try:
        if file.stat().st_size > MOST_BYTES:
            raise InputError(f"{file}: larger than {MOST_BYTES >> 20} MiB; split it by region")
        return _checked(file, reader(file))
    except (OSError, UnicodeDecodeError, csv.Error, sqlite3.Error) as error:
        raise InputError(f"{file}: cannot be read as {file.suffix[1:]}: {error}") from error


def _checked(file: Path, rows: Iterable[tuple[int, Mapping[str, Any] | str]]) -> list[Place]:
    places: list[Place] = []
    faults: list[str] = []
    ids: set[str] = set()
    for line, row in rows:
        made = _place(row, f"{file.stem}:{line}")
        if isinstance(made, Place) and made.id in ids:
            made = f"id {made.id!r} stands twice"
        if isinstance(made, str):
            faults.append(f"{file}:{line}: {made}")
            continue
        ids.add(made.id)
        places.append(made)
        if len(places) > MOST_PLACES:
            raise InputError(f"{file}: more than {MOST_PLACES} places; split it by region")
    if faults:
        more = f"\n... and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise InputError("\n".join(faults[:_SHOWN_FAULTS]) + more)
    if not places:
        raise InputError(f"{file}: holds no place")
    return places


def _place(row: Mapping[str, Any] | str, fallback_id: str) -> Place | str:
    """The place, or what is wrong with the row."""
    if isinstance(row, str):
        return row
    name = _text(row.get("name"))
    en = _text(row.get("en")) or ("" if _CJK.search(name) else name)
    zh = _text(row.get("zh")) or (name if _CJK.search(name) else "")
    if not en and not zh:
        return "has no name: give name, en or zh"
    if max(len(en), len(zh)) > MOST_NAME:
        return f"name longer than {MOST_NAME} characters"
    try:
        latitude, longitude = float(row["lat"]), float(row["lon"])
    except (KeyError, TypeError, ValueError):
        return f"lat and lon are to be degrees, got {row.get('lat')!r} and {row.get('lon')!r}"
    if not (math.isfinite(latitude) and abs(latitude) <= 90 and math.isfinite(longitude) and abs(longitude) <= 180):
        return f"lat {latitude:g}, lon {longitude:g} lies outside the globe"
    aliases = row.get("aliases") or ()
    given = aliases.split("|") if isinstance(aliases, str) else aliases
    if not isinstance(given, list | tuple):
        return "aliases are to be a list, or one text joined by |"
    others = tuple(alias for alias in map(_text, given) if alias)
    return Place(
        _text(row.get("id")) or fallback_id, _text(row.get("kind")), en or zh, zh or en, latitude, longitude, others
    )


def _text(value: Any) -> str:
    return "" if value is None else " ".join(str(value).split())


def _csv(file: Path) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
    with file.open(encoding="utf-8-sig", newline="") as stream:
        rows = csv.DictReader(stream, strict=True)
        if rows.fieldnames is None or not {"name", "en", "zh"} & set(rows.fieldnames):
            raise InputError(f"{file}: the first line is to name the columns: name (or en, zh), lat, lon, ...")
        for row in rows:
            yield rows.line_num, row


def _json_lines(file: Path) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
    with file.open(encoding="utf-8") as stream:
        for number, line in enumerate(stream, 1):
            if not line.strip():
                continue
            try:
                row = json.loads(line)
            except ValueError as error:
                yield number, f"not JSON: {error}"
                continue
            yield number, row if isinstance(row, dict) else "not an object"


def _geopackage(file: Path) -> Iterator[tuple[int, Mapping[str, Any] | str]]:
    with closing(sqlite3.connect(f"{file.resolve().as_uri()}?mode=ro&immutable=1", uri=True)) as base:
        base.row_factory = sqlite3.Row
        layers = base.execute("SELECT table_name, column_name, srs_id FROM gpkg_geometry_columns").fetchall()
        for layer in layers:
            if layer["srs_id"] not in (4326, 0, -1):
                raise InputError(
                    f"{file}: layer {layer['table_name']} is in SRS {layer['srs_id']}; save it as EPSG:4326"
                )
            table = '"' + layer["table_name"].replace('"', '""') + '"'
            for number, row in enumerate(base.execute(f"SELECT * FROM {table}"), 1):
                values = dict(row)
                position = _position(values.pop(layer["column_name"], None))
                if isinstance(position, str):
                    yield number, position
                    continue
                yield number, values | {"lat": position[0], "lon": position[1]}


def _position(blob: Any) -> tuple[float, float] | str:
    """Latitude and longitude of a GeoPackage geometry: of its point, else of the middle of its envelope."""
    if not isinstance(blob, bytes) or len(blob) < 8 or blob[:2] != b"GP":
        return "has no geometry"
    flags = blob[3]
    order = "<" if flags & 1 else ">"
    doubles = _ENVELOPE_DOUBLES.get(flags >> 1 & 7)
    if doubles is None:
        return "geometry is damaged"
    try:
        if doubles:
            west, east, south, north = struct.unpack_from(f"{order}4d", blob, 8)
            return (south + north) / 2, (west + east) / 2
        order = "<" if blob[8] & 1 else ">"
        (shape,) = struct.unpack_from(f"{order}I", blob, 9)
        if shape % 1000 != 1:
            return "geometry is no point and has no envelope; save envelopes with the layer"
        longitude, latitude = struct.unpack_from(f"{order}2d", blob, 13)
    except (struct.error, IndexError):
        return "geometry is damaged"
    return latitude, longitude


_READERS = {".csv": _csv, ".jsonl": _json_lines, ".gpkg": _geopackage}
