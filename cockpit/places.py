"""The head unit's place list: read once, indexed once, and kept in the cache until the file changes."""

from __future__ import annotations

import hashlib
import logging
from dataclasses import replace
from pathlib import Path

from models.errors import InputError
from pipeline.vehicle.place_file import read_places
from pipeline.vehicle.place_index import PlaceIndex
from pipeline.vehicle.places import Places, load_places

log = logging.getLogger("cockpit.places")

_FORM = 1
"""Of the kept index; another number is another file."""


def open_places(file: Path | None, cache: Path) -> Places:
    """The places that ship, and those of `file` (the profile's `navigation.places`) with their index.

    cache: folder of kept indexes. Raises InputError for a file that holds no places.
    """
    shipped = load_places()
    return shipped if file is None else replace(shipped, search=index_of(file, cache))


def index_of(file: Path, cache: Path) -> PlaceIndex:
    """The index of a place file: the kept one, else a new one that is kept. Raises InputError."""
    kept = kept_index(file, cache)
    if kept.is_file():
        try:
            return PlaceIndex.load(kept)
        except InputError as error:
            log.warning("%s; it is made anew", error)
    index = PlaceIndex.build(read_places(file))
    try:
        index.save(kept)
    except OSError as error:
        log.warning("the index of %s is not kept (%s): every start makes it anew", file, error)
    return index


def kept_index(file: Path, cache: Path) -> Path:
    """Where the index of a file with these contents is kept. Raises InputError when the file cannot be read."""
    try:
        with file.open("rb") as stream:
            digest = hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"place file {file} cannot be read ({error.strerror}): see navigation.places") from error
    return cache / f"{digest[:24]}-{_FORM}{file.suffix.lower()}.npz"
