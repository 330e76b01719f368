"""Place files: every format holds the same places, and a bad row is named and nothing is taken."""

from __future__ import annotations

import json
import sqlite3
import struct
from contextlib import closing
from pathlib import Path

import pytest

from models.errors import InputError
from pipeline.vehicle.place_file import read_places

ROWS = (
    {"id": "a", "name": "Union Square", "kind": "park", "lat": 48.1, "lon": 11.5, "aliases": "the square|US"},
    {"id": "b", "name": "人民医院", "kind": "hospital", "lat": 48.2, "lon": -11.6, "aliases": ""},
)


def csv_file(folder: Path, text: str) -> Path:
    file = folder / "places.csv"
    file.write_text(text, encoding="utf-8")
    return file


def csv_of(folder: Path) -> Path:
    lines = ["id,name,kind,lat,lon,aliases", *(",".join(str(value) for value in row.values()) for row in ROWS)]
    return csv_file(folder, "\n".join(lines))


def json_lines_of(folder: Path) -> Path:
    file = folder / "places.jsonl"
    file.write_text("\n".join(json.dumps(row, ensure_ascii=False) for row in ROWS), encoding="utf-8")
    return file


def geopackage_of(folder: Path) -> Path:
    """One layer of points, the second with an envelope instead."""
    file = folder / "places.gpkg"
    with closing(sqlite3.connect(file)) as base:
        base.execute("CREATE TABLE gpkg_geometry_columns (table_name TEXT, column_name TEXT, srs_id INTEGER)")
        base.execute("INSERT INTO gpkg_geometry_columns VALUES ('poi', 'geom', 4326)")
        base.execute("CREATE TABLE poi (id TEXT, name TEXT, kind TEXT, aliases TEXT, geom BLOB)")
        for number, row in enumerate(ROWS):
            x, y = float(str(row["lon"])), float(str(row["lat"]))
            point = struct.pack("<bI2d", 1, 1, x, y)
            header = b"GP\0" + (
                b"\x03" + struct.pack("<i4d", 4326, x, x, y, y) if number else b"\x01" + struct.pack("<i", 4326)
            )
            base.execute(
                "INSERT INTO poi VALUES (?,?,?,?,?)",
                (row["id"], row["name"], row["kind"], row["aliases"], header + point),
            )
        base.commit()
    return file


@pytest.mark.parametrize("made", [csv_of, json_lines_of, geopackage_of])
def test_every_format_holds_the_same(made: object, tmp_path: Path) -> None:
    square, hospital = read_places(made(tmp_path))  # type: ignore[operator]
    assert (square.id, square.en, square.kind, square.aliases) == ("a", "Union Square", "park", ("the square", "US"))
    assert (square.latitude, square.longitude) == (48.1, 11.5)
    assert hospital.name("zh") == "人民医院"
    assert (hospital.latitude, hospital.longitude) == (48.2, -11.6)


@pytest.mark.parametrize(
    ("row", "fault"),
    [
        ("x,,park,1,2,", ":3: has no name"),
        ("x,A,park,91,2,", "outside the globe"),
        ("x,A,park,nan,2,", "outside the globe"),
        ("x,A,park,one,2,", "lat and lon are to be degrees"),
        ("a,A,park,1,2,", "id 'a' stands twice"),
        (f"x,{'A' * 121},park,1,2,", "longer than 120"),
    ],
)
def test_a_bad_row_is_named(row: str, fault: str, tmp_path: Path) -> None:
    file = csv_file(tmp_path, f"id,name,kind,lat,lon,aliases\na,Fine,park,1,2,\n{row}\n")
    with pytest.raises(InputError, match=fault):
        read_places(file)


def test_files_that_are_none(tmp_path: Path) -> None:
    for name, data in (
        ("a.txt", b"x"),
        ("b.csv", b""),
        ("c.csv", b"id,name,lat,lon\n"),
        ("d.csv", b"\xff\xfe\x00"),
        ("e.jsonl", b"[1]\n"),
        ("f.jsonl", b"{"),
        ("g.gpkg", b"no database"),
    ):
        file = tmp_path / name
        file.write_bytes(data)
        with pytest.raises(InputError, match=name):
            read_places(file)
    with pytest.raises(InputError, match=r"missing\.csv"):
        read_places(tmp_path / "missing.csv")
