"""The licence page lists every package that an installation of Cockpit brings with it."""

from __future__ import annotations

import importlib.metadata
from typing import Any

import pytest
from packaging.utils import canonicalize_name

from docs.generate import licences
from docs.generate.licences import DEVELOPMENT, RUN_TIME, base, closure, extras, installed_requirements, read_record

RECORD = read_record()
ROOTS = [*base(), *(name for extra in RUN_TIME for name in extras()[extra])]


def test_every_installed_package_that_is_needed_has_a_record() -> None:
    """Followed through what is installed here, not through the record: a package that it lacks is found."""
    known = {canonicalize_name(name) for name in RECORD}
    waiting, seen = list(ROOTS), set()
    while waiting:
        name = canonicalize_name(waiting.pop())
        if name not in seen:
            seen.add(name)
            waiting += installed_requirements(name) or []
    assert len(seen) > len(ROOTS)
    assert seen <= known, f"{sorted(seen - known)}: run python -m docs.generate.licences, then make docs"


def test_a_package_without_a_record_is_found(monkeypatch: pytest.MonkeyPatch) -> None:
    """The check above can fail."""
    needed = importlib.metadata.requires("rich") or []
    monkeypatch.setattr(importlib.metadata, "requires", lambda name: [*needed, "brand-new"] if name == "rich" else [])
    assert "brand-new" in (installed_requirements("rich") or [])
    with pytest.raises(KeyError):
        closure(["brand-new"], RECORD)


def test_extras_are_run_time_or_development() -> None:
    assert {*RUN_TIME, *DEVELOPMENT} == set(extras())


@pytest.mark.parametrize("name", sorted(RECORD))
def test_every_record_is_whole(name: str) -> None:
    row: dict[str, Any] = RECORD[name]
    assert len(row["licence"]) > 1
    assert all(
        canonicalize_name(needed) in {canonicalize_name(other) for other in RECORD} for needed in row["requires"]
    )
    named = {canonicalize_name(other) for other in (*base(), *(part for names in extras().values() for part in names))}
    assert (len(row.get("what_for", "")) > 1) == (canonicalize_name(name) in named)


def test_nothing_under_the_gpl_is_needed_at_run_time() -> None:
    """Of whatever depth; the LGPL and the MPL leave Cockpit's own licence alone."""
    for name, row in RECORD.items():
        if canonicalize_name(name) in closure(ROOTS, RECORD):
            assert "GPL" not in row["licence"].replace("LGPL", ""), name


def test_the_page_shows_every_record() -> None:
    (page,) = licences.make().values()
    missing = [name for name in RECORD if f"\n| {name} | " not in page]
    assert missing == []
