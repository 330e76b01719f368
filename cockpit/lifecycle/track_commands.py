"""`cockpit models rollback`, `diff`, `gc` and `card`: the former build, what changed, what may go, what a model is."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cockpit.cli.output import JsonFlag, print_json, print_table, size_text
from cockpit.cli.values import model_values
from cockpit.lifecycle.commands import ForProfile, Names, OfProfile, chosen, opened
from models.errors import InputError
from models.store.identity import build_fields, identity_of
from models.store.manifest import Manifest
from models.store.store import Store
from models.store.tracks import former_folder, leftovers, removed
from models.store.validation import Validation

Name = Annotated[str, typer.Argument(metavar="MODEL", help="A model.", autocompletion=model_values)]


def rollback(name: Name, profile: OfProfile = None, json: JsonFlag = False) -> None:
    """Take the former build of a model again; the present one is kept in its place, so that twice changes nothing.

    A running `cockpit serve` keeps what it loaded until it is started anew. Exit code 3 when the former build cannot be
    used here.
    """
    store, _ = opened(profile, any_device=True)
    folder = store.rollback(name)
    reason = store.unvalidated(name)
    if json:
        print_json({"name": name, "folder": folder, "unvalidated": reason or None})
        return
    print(f"{name}: the former build is back in {folder}; the other one is kept until the next build")
    if reason:
        print(f"may not be served: {reason}; run: {store.validation_remedy(name)}")


def diff(name: Name, profile: OfProfile = None, json: JsonFlag = False) -> None:
    """What differs between a model's former build and the present one: fields, files, validations."""
    store, _ = opened(profile, any_device=True)
    former, present = former_folder(store.root, name), store.folder(name)
    old, new = Manifest.read(former), Manifest.read(present)
    if store.registry.get(name).build is None or old is None or new is None:
        raise InputError(f"{name} has not two builds to compare: a former one is kept when a validated one is replaced")
    before, after = build_fields(old.fingerprint, former, old), build_fields(new.fingerprint, present, new)
    rows = [("field", key, before[key], after[key]) for key in after if before[key] != after[key]]
    for file in sorted(old.files.keys() | new.files.keys()):
        one, other = old.files.get(file), new.files.get(file)
        if one != other:
            rows.append(("file", file, _file_text(one), _file_text(other)))
    rows += _validation_rows(Validation.read(former), Validation.read(present))
    if json:
        keys = ("of", "what", "former", "present")
        print_json({"name": name, "differences": [dict(zip(keys, row, strict=True)) for row in rows]})
    elif rows:
        print_table(("of", "what", "former", "present"), rows)
    else:
        print(f"{name}: the two builds are the same")


def _file_text(record: Any) -> str:
    return "none" if record is None else f"{record.size_bytes} bytes, sha256 {record.sha256[:12]}"


def _validation_rows(old: Validation | None, new: Validation | None) -> list[tuple[str, str, str, str]]:
    names = ("passed", "at", "load_ms", "first_result_ms", "peak_memory_mb")
    pairs = [(name, _measured(old, name), _measured(new, name)) for name in names]
    return [("validation", name, before, after) for name, before, after in pairs if before != after]


def _measured(made: Validation | None, name: str) -> str:
    return "none" if made is None else str(getattr(made, name))


def gc(
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would go.")] = False,
    profile: OfProfile = None,
    json: JsonFlag = False,
) -> None:
    """Remove what no start loads: former builds, unfinished work, and folders that the registry does not know.

    Source files stay: a build can be made again from them without a network. The former build of a model whose present
    one may not be served stays too, and so does what another process is working on. Folders that the shipped registry
    does not know may be another registry's: they go only where --profile says whose.
    """
    store, _ = opened(profile, any_device=True)
    rows = []
    for model, path, why in leftovers(store.root, set(store.registry.names)):
        reason = _kept(store, model, why, named=profile is not None)
        size = sum(file.lstat().st_size for file in [path, *path.rglob("*")] if not file.is_dir())
        if not reason and not dry_run:
            reason = "" if removed(store.root, model, path) else "another process works on it"
        rows.append({"path": path, "why": why, "size_bytes": size, "kept": reason})
    freed = sum(int(str(row["size_bytes"])) for row in rows if not row["kept"])
    if json:
        print_json({"dry_run": dry_run, "freed_bytes": freed, "leftovers": rows})
        return
    for row in rows:
        fate = f"kept: {row['kept']}" if row["kept"] else "would go" if dry_run else "removed"
        print(f"{row['path']}  {size_text(float(str(row['size_bytes'])))}  {row['why']}  {fate}")
    print(f"{size_text(freed)} {'to free' if dry_run else 'freed'}")


def _kept(store: Store, model: str, why: str, *, named: bool) -> str:
    """Why a leftover stays; "" where it may go. named: whether the registry is the one of a named profile."""
    if model not in store.registry.names:
        stays = why in ("former build", "not in the registry") and not named
        return "a profile's own registry may know it: name that profile by --profile" if stays else ""
    if why != "former build":
        return ""
    if not store.is_built(model):
        return "the present build cannot be used"
    reason = store.unvalidated(model)
    return f"the present build may not be served: {reason}" if reason else ""


def card(names: Names = None, profile: ForProfile = None, json: JsonFlag = False) -> None:
    """Print what a model is: licence, sources with their hashes, build, fingerprint, what its validation measured."""
    store, wanted = chosen(names, profile)
    cards = [_card(store, entry.name) for entry in wanted]
    if json:
        print_json({"models": cards})
        return
    for made in cards:
        print(f"# {made['name']}\n\n{made['summary']}.\n")
        print_table(("field", "value"), [(key, _cell(value)) for key, value in made.items() if key not in _TITLE])
        print()


_TITLE = ("name", "summary")


def _card(store: Store, name: str) -> dict[str, Any]:
    entry, identity = store.registry.get(name), identity_of(store, name)
    source, validation = store.registry.source_entry(name), Validation.read(store.folder(name))
    said: dict[str, Any] = {
        "name": name,
        "summary": entry.summary,
        "kind": entry.kind,
        "engine": entry.engine,
        "roles": list(entry.roles),
        "devices": list(entry.devices),
        "licence": entry.licence,
        "licence_note": entry.licence_note,
        "commercial_use": entry.commercial_use,
        "files": {file: {"size_bytes": spec.size_bytes, "sha256": spec.sha256} for file, spec in source.files.items()},
        "fingerprint": identity.sha3,
        **identity.build,
        "built_bytes": _size(store.folder(name)),
        "may_be_served": identity.unvalidated or True,
    }
    if validation is not None:
        measured = ("load_ms", "first_result_ms", "peak_memory_mb", "cold", "at")
        said |= {f"validation_{key}": getattr(validation, key) for key in measured}
        said["known_answers"] = {answer.ask: answer.got for answer in validation.answers}
    return said


def _size(folder: Path) -> int:
    return sum(path.stat().st_size for path in folder.rglob("*") if path.is_file())


def _cell(value: object) -> str:
    if isinstance(value, dict):
        return "; ".join(f"{key}: {_cell(item)}" for key, item in value.items())
    if isinstance(value, list):
        return ", ".join(map(str, value))
    return "yes" if value is True else "no" if value is False else str(value)
