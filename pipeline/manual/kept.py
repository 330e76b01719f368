"""The manual that a profile names, with the vectors of its sections: made once, kept beside it or in the cache."""

from __future__ import annotations

import hashlib
import logging
from concurrent.futures import Future
from pathlib import Path

from models.engines.sentence_encoder import SentenceEncoder
from models.errors import InputError
from models.store.registry import Registry
from pipeline.manual.file import read_manual
from pipeline.manual.index import ManualIndex
from pipeline.manual.manual import SHIPPED, SHIPPED_INDEX, Manual, shipped_manual

log = logging.getLogger("cockpit.manual")


def open_manual(
    own: Path | None, cache: Path, registry: Registry, name: str | None, encoder: Future[SentenceEncoder] | None
) -> Manual:
    """The manual of a profile. own: None for the one that ships. cache: folder of kept vectors. name, encoder: of the
    sentence encoder, None where the profile wants none.

    Raises InputError for a file that is no manual, and for a built one of another encoder.
    """
    file = own or SHIPPED
    if encoder is None or name is None:
        return (
            shipped_manual()
            if own is None
            else Manual(ManualIndex.load(file).sections if file.suffix == ".npz" else read_manual(file))
        )
    index = index_of(file, cache, encoder_key(registry, name), encoder)
    return Manual(index.sections, index, encoder)


def index_of(file: Path, cache: Path, key: str, encoder: Future[SentenceEncoder]) -> ManualIndex:
    """The index of a manual (`.md`), or the built one (`.npz`): what is kept of it, else a new one that is kept."""
    if file.suffix == ".npz":
        index = ManualIndex.load(file)
        if index.encoder != key:
            raise InputError(f"{file} was built with another sentence encoder; run: cockpit manual build FILE.md")
        return index
    source = _sha256(file)
    kept = cache / f"{source[:24]}-{hashlib.sha256(key.encode()).hexdigest()[:8]}.npz"
    for there in (file.with_suffix(".npz"), kept):
        index_there = _fitting(there, source, key)
        if index_there is not None:
            return index_there
    log.warning("%s: the vectors of its sections are made now (`cockpit manual build` makes them ahead)", file)
    index = build_index(file, key, encoder.result())
    try:
        index.save(kept)
    except OSError as error:
        log.warning("the vectors of %s are not kept (%s): every start makes them anew", file, error)
    return index


def build_index(file: Path, key: str, encoder: SentenceEncoder) -> ManualIndex:
    """Read and embed a manual: about 10 ms of one core for each heading and each question. Raises InputError."""
    source, sections = _sha256(file), read_manual(file)
    centre = None
    if file.resolve() != SHIPPED:
        shipped = ManualIndex.load(SHIPPED_INDEX)
        if shipped.encoder != key:
            raise InputError(f"{SHIPPED_INDEX} is of another encoder; run first: cockpit manual build {SHIPPED}")
        centre = shipped.centre  # from many texts, where an own manual may have few
    return ManualIndex.build(sections, encoder.embed, source=source, encoder=key, centre=centre)


def encoder_key(registry: Registry, name: str) -> str:
    """What an encoder is made of: vectors of another key cannot be compared with its own."""
    files = registry.source_entry(name).files
    return " ".join([name, *(f"{file}={files[file].sha256}" for file in sorted(files))])


def _fitting(file: Path, source: str, key: str) -> ManualIndex | None:
    """The index in `file`, if it is of this text and this encoder."""
    if not file.is_file():
        return None
    try:
        index = ManualIndex.load(file)
    except InputError as error:
        log.warning("%s; it is made anew", error)
        return None
    return index if (index.source, index.encoder) == (source, key) else None


def _sha256(file: Path) -> str:
    try:
        with file.open("rb") as stream:
            return hashlib.file_digest(stream, "sha256").hexdigest()
    except OSError as error:
        raise InputError(f"manual {file} cannot be read ({error.strerror}): see manual.file in the profile") from error
