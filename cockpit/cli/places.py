"""`cockpit places`: index a place file before it is needed, and try what a name finds."""

from __future__ import annotations

import time
from pathlib import Path
from typing import Annotated

import typer

from cockpit.cli.output import JsonFlag, print_json, print_table
from cockpit.places import index_of, kept_index
from models.store.store import Store
from pipeline.vehicle.place_index import the_one_meant
from pipeline.vehicle.signals import EmbeddedTree, SignalAccess

app = typer.Typer(
    help="Index a place file (GeoPackage, CSV, JSON lines), and try what a name finds.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
PlaceFile = Annotated[Path, typer.Argument(metavar="FILE", help="A .gpkg, .csv or .jsonl file: see docs/places.md.")]


@app.command()
def build(file: PlaceFile, json: JsonFlag = False) -> None:
    """Check a place file and keep its index, so that the next start with it is fast (100,000 names: about 15 s)."""
    start_s = time.perf_counter()
    cache = Store.open().root / "places"
    index = index_of(file, cache)
    result = {"file": file, "names": len(index), "index": kept_index(file, cache), "s": time.perf_counter() - start_s}
    if json:
        print_json(result)
    else:
        typer.echo(f"{len(index)} names of {file} in {result['s']:.1f} s: {result['index']}")


@app.command()
def search(
    file: PlaceFile,
    name: Annotated[str, typer.Argument(help="A name, as it is said.")],
    latitude: Annotated[float | None, typer.Option("--lat", help="Of the car, degrees.", min=-90, max=90)] = None,
    longitude: Annotated[float | None, typer.Option("--lon", help="Of the car, degrees.", min=-180, max=180)] = None,
    json: JsonFlag = False,
) -> None:
    """What a name finds, the likeliest first, and whether a trip there would start without asking back."""
    here = _here(latitude, longitude)
    index = index_of(file, Store.open().root / "places")
    start_s = time.perf_counter()
    hits = index.search(name, *here)
    took_ms = (time.perf_counter() - start_s) * 1e3
    meant = the_one_meant(hits)
    rows = [
        {"id": hit.place.id, "name": hit.place.en, "kind": hit.place.kind, "likeness": round(hit.likeness, 3),
         "distance_km": hit.distance_km, "meant": hit is meant}
        for hit in hits
    ]  # fmt: skip
    if json:
        print_json({"said": name, "ms": round(took_ms, 2), "hits": rows})
        return
    marked = [["yes" if value is True else "" if value is False else value for value in row.values()] for row in rows]
    print_table(["id", "name", "kind", "likeness", "km", "meant"], marked)
    typer.echo(f"{len(hits)} of {len(index)} names in {took_ms:.1f} ms")


def _here(latitude: float | None, longitude: float | None) -> tuple[float, float]:
    """Where the car is; the embedded car's position where it is not given."""
    access = SignalAccess(EmbeddedTree())
    given = (latitude, longitude)
    paths = ("Vehicle.CurrentLocation.Latitude", "Vehicle.CurrentLocation.Longitude")
    known = [access.read(path) if value is None else value for value, path in zip(given, paths, strict=True)]
    return float(known[0]), float(known[1])
