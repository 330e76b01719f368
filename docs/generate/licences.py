"""The package tables of `docs/licences.md`: what Cockpit needs, what that needs in turn, and under which licence.

`docs/packages.json` holds a record of every package: its licence, its own requirements, and what Cockpit uses it for.
`python -m docs.generate.licences` brings the record up to date with what is installed here; licences that were
written by hand stay, since metadata are often vague.
"""

from __future__ import annotations

import importlib.metadata
import json
import re
import sys
import tomllib
from collections.abc import Iterable
from functools import cache
from typing import Any

from packaging.requirements import Requirement
from packaging.utils import canonicalize_name

from docs.generate.architecture import between
from docs.generate.house import ROOT

PAGE = "docs/licences.md"
RECORD = "docs/packages.json"
RUN_TIME = ("cpu", "gpu", "build", "audio", "vss", "wake", "api", "remote")
"""Extras of a car or a bench, whose packages are followed to the end."""
DEVELOPMENT = ("bench", "test", "rig")
"""Extras of a developer, listed themselves only."""
MARKERS = {"sys_platform": "linux", "platform_system": "Linux", "os_name": "posix", "extra": ""}

Record = dict[str, dict[str, Any]]


def make() -> dict[str, str]:
    """The page with its three tables made again."""
    record = read_record()
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    page = between(page, "run time", _run_time_table(record))
    page = between(page, "extras", _extras_table(record))
    return {PAGE: between(page, "needed", _needed_table(record))}


def read_record() -> Record:
    """name as its project spells it -> {"licence", "requires", and for a package that Cockpit names "what_for"}."""
    return dict(json.loads((ROOT / RECORD).read_text(encoding="utf-8")))


def base() -> list[str]:
    """Names in `[project] dependencies`."""
    return [Requirement(text).name for text in _project()["dependencies"]]


def extras() -> dict[str, list[str]]:
    """extra -> names in it, without Cockpit itself."""
    found = _project()["optional-dependencies"]
    names = {extra: [Requirement(text).name for text in texts] for extra, texts in found.items()}
    return {extra: [name for name in listed if name != "cockpit-voice"] for extra, listed in names.items()}


@cache
def _project() -> dict[str, Any]:
    return dict(tomllib.loads((ROOT / "pyproject.toml").read_text(encoding="utf-8"))["project"])


def closure(roots: Iterable[str], record: Record) -> set[str]:
    """`roots` and everything that they need by the record, canonical names. Raises KeyError for an unknown package."""
    known = {canonicalize_name(name): row for name, row in record.items()}
    found: set[str] = set()
    waiting = [str(canonicalize_name(name)) for name in roots]
    while waiting:
        name = waiting.pop()
        if name not in found:
            found.add(name)
            waiting += [str(canonicalize_name(needed)) for needed in known[canonicalize_name(name)]["requires"]]
    return found


def installed_requirements(name: str) -> list[str] | None:
    """What an installed package needs on Linux, as its metadata spell it; None for a package that is not here."""
    try:
        texts = importlib.metadata.requires(name) or []
    except importlib.metadata.PackageNotFoundError:
        return None
    needed = [Requirement(text) for text in texts]
    return sorted({part.name for part in needed if part.marker is None or part.marker.evaluate(dict(MARKERS))})


# --- the tables ----------------------------------------------------------------------------------------------------
def _run_time_table(record: Record) -> str:
    rows = [(name, record[name]["licence"], record[name]["what_for"]) for name in base()]
    return _table(("package", "licence", "what for"), rows)


def _extras_table(record: Record) -> str:
    rows = [
        (name, extra, record[name]["licence"], record[name]["what_for"])
        for extra, names in extras().items()
        for name in names
    ]
    return _table(("package", "extra", "licence", "what for"), rows)


def _needed_table(record: Record) -> str:
    listed = extras()
    named = {canonicalize_name(name) for name in (*base(), *(name for extra in RUN_TIME for name in listed[extra]))}
    reached = closure(named, record)
    rows = []
    for name in sorted(record, key=str.lower):
        if canonicalize_name(name) in reached - named:
            by = sorted(
                (other for other in record if _needs(record[other], name) and canonicalize_name(other) in reached),
                key=str.lower,
            )
            rows.append((name, record[name]["licence"], ", ".join(by)))
    return _table(("package", "licence", "needed by"), rows)


def _needs(row: dict[str, Any], name: str) -> bool:
    return canonicalize_name(name) in {canonicalize_name(needed) for needed in row["requires"]}


def _table(head: tuple[str, ...], rows: Iterable[tuple[str, ...]]) -> str:
    rule = "|" + "---|" * len(head)
    return "\n".join([f"| {' | '.join(head)} |", rule, *(f"| {' | '.join(row)} |" for row in rows)])


# --- the record ----------------------------------------------------------------------------------------------------
def update() -> list[str]:
    """Bring the record up to date with what is installed here. Returns what could not be looked up."""
    record = read_record()
    listed = extras()
    runs = [*base(), *(name for extra in RUN_TIME for name in listed[extra])]
    for name in (name for extra in DEVELOPMENT for name in listed[extra]):
        record.setdefault(name, {"licence": _licence(name), "requires": [], "what_for": "?"})
    waiting, seen = list(runs), set()
    missing = []
    while waiting:
        name = waiting.pop()
        if canonicalize_name(name) in seen:
            continue
        seen.add(canonicalize_name(name))
        known = next((other for other in record if canonicalize_name(other) == canonicalize_name(name)), None)
        needed = installed_requirements(name)
        if needed is None and known is None:
            missing.append(name)
            continue
        row = record.setdefault(known or _spelling(name), {"licence": _licence(name), "requires": []})
        row["requires"] = row["requires"] if needed is None else needed
        if name in runs:
            row.setdefault("what_for", "?")
        waiting += row["requires"]
    kept = seen | {canonicalize_name(name) for extra in DEVELOPMENT for name in listed[extra]}
    record = {name: record[name] for name in sorted(record, key=str.lower) if canonicalize_name(name) in kept}
    (ROOT / RECORD).write_text(json.dumps(record, indent=1, ensure_ascii=False) + "\n", encoding="utf-8")
    return missing


def _spelling(name: str) -> str:
    return str(importlib.metadata.metadata(name)["Name"])


def _licence(name: str) -> str:
    """As the package's metadata state it: the expression, a short field, or the classifiers."""
    try:
        meta = importlib.metadata.metadata(name).json
    except importlib.metadata.PackageNotFoundError:
        return "?"
    stated = str(meta.get("license_expression") or "")
    field = str(meta.get("license") or "").strip()
    if not stated and 0 < len(field) < 60 and "\n" not in field:
        stated = field
    marks = [line.rpartition(" :: ")[2] for line in meta.get("classifier", []) if line.startswith("License ::")]
    return re.sub(r"\s+", " ", stated) or ", ".join(marks) or "?"


if __name__ == "__main__":
    for absent in update():
        sys.stderr.write(f"{absent} is not installed here and has no record: write its row by hand\n")
