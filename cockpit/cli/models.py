"""`cockpit models`: fetch, list, build and verify the weights. What comes after is in cockpit/lifecycle/commands.py."""

from __future__ import annotations

import time
from collections.abc import Iterator
from dataclasses import asdict, dataclass, replace
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated

import typer

from cockpit.cli.output import JsonFlag, print_json, print_table, size_text
from cockpit.cli.progress import bars, steps
from cockpit.cli.values import model_values, profile_values
from cockpit.lifecycle import commands, layers_command, pack_commands, track_commands
from cockpit.lifecycle import refresh as refreshing
from cockpit.lifecycle.child import Outcome
from cockpit.lifecycle.trust import trusted_keys
from cockpit.lifecycle.validate import accept_new, validatable
from models.errors import FingerprintMismatch, InputError, ModelMissing, NotValidated, StartupError
from models.store.fetch import Origins, configured_origins
from models.store.manifest import SIGNATURE
from models.store.registry import ModelEntry
from models.store.store import Store, StoreFault

if TYPE_CHECKING:
    from cockpit.profile.sections import Profile

app = typer.Typer(help="Fetch, build, validate and verify models.", no_args_is_help=True, rich_markup_mode=None)
app.command("hash")(commands.hash_models)
app.command("validate")(commands.validate_models)
app.command("profile")(layers_command.profile_model)
app.command("sign")(pack_commands.sign)
app.command("rollback")(track_commands.rollback)
app.command("diff")(track_commands.diff)
app.command("gc")(track_commands.gc)
app.command("card")(track_commands.card)

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Models; none: the default set.", autocompletion=model_values),
]
AlsoOfProfile = Annotated[
    str | None,
    typer.Option("--profile", help="Also every model that this profile loads.", autocompletion=profile_values),
]


@app.command()
def fetch(
    names: Names = None,
    profile: AlsoOfProfile = None,
    everything: Annotated[bool, typer.Option("--all", help="Every model whose licence allows commercial use.")] = False,
    build: Annotated[
        bool, typer.Option("--build", help="Also build them; what is built and as it should be is left alone.")
    ] = False,
    source: Annotated[
        list[Path] | None, typer.Option("--from", help="Folder to look in first (files must match their sha256).")
    ] = None,
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="Fetch models whose licence forbids commercial use.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Fetch weights: resumable, checked against the pinned sha256, kept in the cache.

    With --build this is the one command that makes models ready, or mends them.
    """
    store, chosen = commands.chosen(names, profile, everything=everything)
    for entry in chosen:
        if not entry.commercial_use and not accept_licence:
            raise InputError(
                f"{entry.name}: {entry.licence}: {entry.licence_note}; to fetch it all the same, add --accept-licence"
            )
    made = _made_ready(store, chosen, build=build, origins=configured_origins(source or ()), quiet=json)
    if json:
        print_json({**made.as_json(), "cache": store.root})
    _refuse_failed(made.validated)


@dataclass(frozen=True, slots=True)
class _Made:
    """What was fetched, built and validated, as `--json` shows it."""

    models: list[dict[str, object]]
    built: list[dict[str, object]]
    validated: list[Outcome]

    def as_json(self) -> dict[str, object]:
        return {"models": self.models, "built": self.built, "validated": [asdict(item) for item in self.validated]}


def _made_ready(store: Store, chosen: list[ModelEntry], *, build: bool, origins: Origins, quiet: bool) -> _Made:
    """Fetch, and build and validate where that is wanted."""
    unready = [entry for entry in chosen if not build or store.needs_work(entry.name)]
    report: list[dict[str, object]] = []
    with bars(quiet=quiet, total_bytes=sum(store.missing_bytes(entry.name) for entry in unready)) as progress:
        for entry in chosen:
            came_from = store.fetch(entry.name, origins=origins, progress=progress) if entry in unready else []
            new = list(dict.fromkeys(came_from))
            report.append({"name": entry.name, "new": new, "folder": store.source_folder(entry.name)})
            if not quiet:
                done = "already built" if entry not in unready else "already here"
                progress.say(f"{entry.name}: " + (f"fetched from {'; '.join(new)}" if new else done))
    built = _build(store, unready, force=False, quiet=quiet) if build else []
    return _Made(report, built, _validate(store, chosen, quiet=quiet) if build else [])


@app.command()
def refresh(
    profile: Annotated[str, typer.Option("--profile", help="Whose models.", autocompletion=profile_values)] = "cpu",
    rebuild: Annotated[
        bool, typer.Option("--rebuild", help="Build anew what is only standing in; what `cockpit-rebuild@` does.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Make a profile's models ready after an update of firmware, driver or software; what a boot runs.

    What can be served after a validation is validated; a build by another version is validated to stand in until it is
    built anew; only what cannot be served otherwise is fetched and built here. Exit code 3 when something is left.
    """
    store, entries = commands.chosen(None, profile)
    names = [entry.name for entry in entries]
    made = _Made([], [], [])
    if rebuild:
        made = _made_ready(store, entries, build=True, origins=configured_origins(()), quiet=json)
    found = refreshing.refresh(store, names)
    if not json:
        for event in found.events:
            typer.echo(event)
    if found.undone and not rebuild:
        undone = [store.registry.get(name) for name in found.undone]
        made = _made_ready(store, undone, build=True, origins=configured_origins(()), quiet=json)
        found = replace(refreshing.refresh(store, names), events=found.events)
    refreshing.mark(store, bool(found.standing_in))
    if json:
        print_json({**asdict(found), **made.as_json(), "cache": store.root})
    elif found.standing_in:
        typer.echo(f"to be built anew: {', '.join(found.standing_in)}; run: cockpit models refresh --rebuild")
    _refuse_failed(made.validated)
    store.require_validated(found.undone)


@app.command("list")
def list_models(profile: commands.OfProfile = None, json: JsonFlag = False) -> None:
    """Every model of the registry, and what is here of it."""
    store, _ = commands.opened(profile, any_device=True)
    rows = [
        {
            "name": entry.name,
            "kind": entry.kind,
            "state": _state(store, entry),
            "default": entry.default,
            "size_bytes": store.registry.source_entry(entry.name).size_bytes,
            "licence": entry.licence,
            "summary": entry.summary,
        }
        for entry in store.registry.models
    ]
    if json:
        print_json({"models": rows, "cache": store.root})
        return
    columns = ("name", "kind", "state", "default", "size", "licence")
    print_table(columns, ([*_cells(row), size_text(float(str(row["size_bytes"]))), row["licence"]] for row in rows))
    print(f"\ncache: {store.root}")


@app.command()
def build(
    names: Names = None,
    profile: AlsoOfProfile = None,
    force: Annotated[bool, typer.Option("--force", help="Build again even when the build is current.")] = False,
    json: JsonFlag = False,
) -> None:
    """Build fetched weights into what the engines load. Needs the `build` extra; the car only needs the result."""
    store, chosen = commands.chosen(names, profile)
    report = _build(store, chosen, force=force, quiet=json)
    outcomes = _validate(store, chosen, quiet=json)
    if json:
        print_json({"models": report, "validated": [asdict(outcome) for outcome in outcomes], "cache": store.root})
    _refuse_failed(outcomes)


def _validate(store: Store, entries: list[ModelEntry], *, quiet: bool) -> list[Outcome]:
    """Validate what is built and was not seen to work on this machine."""
    names = [entry.name for entry in entries]
    waiting = [name for name in validatable(store, names) if store.unvalidated(name)]
    return commands.told(store, waiting, cold=False, quiet=quiet) if waiting else []


def _refuse_failed(outcomes: list[Outcome]) -> None:
    """Raises NotValidated. What cannot be tried on this machine is no fault of a build."""
    failed = [outcome for outcome in outcomes if outcome.fault]
    if failed:
        texts = "\n".join(f"{outcome.model} failed its validation: {outcome.fault}" for outcome in failed)
        raise NotValidated(f"{texts}\nrun: cockpit models build --force {' '.join(item.model for item in failed)}")


def _build(store: Store, chosen: list[ModelEntry], *, force: bool, quiet: bool) -> list[dict[str, object]]:
    """Build what is not as it should be; says so on stderr unless `quiet`."""
    report: list[dict[str, object]] = []
    with steps(quiet=quiet, total=len(chosen)) as progress:
        for entry in chosen:
            work = entry.build is not None and (force or store.fault(entry.name, whole=True) is not None)
            start = time.monotonic()
            progress.begin(entry.name, work=work)
            # Where a build is replaced, the old one serves until the new one was seen to work.
            accept = partial(accept_new, store, entry.name) if store.folder(entry.name).is_dir() else None
            folder = store.build(entry.name, force=force, whole=True, progress=progress.step, accept=accept)
            seconds = round(time.monotonic() - start, 1)
            report.append({"name": entry.name, "folder": folder, "new": work, "seconds": seconds})
            progress.end(f"{entry.name}: " + (f"built in {seconds} s" if work else "already built"))
    return report


@app.command()
def verify(names: Names = None, profile: AlsoOfProfile = None, json: JsonFlag = False) -> None:
    """Read every byte of the source files and of what was built. Exit code 3 when anything is wrong.

    With --profile: also compare the signatures beside builds, by its models.trusted_keys. Without names: the default
    set, and whatever else is ready or was built here.
    """
    store, chosen = commands.chosen(names, profile)
    _, loaded = commands.opened(profile)
    if not (names or profile):
        chosen = [entry for entry in store.registry.models if entry.default or _state(store, entry) in _IN_USE]
    faults = [fault for entry in chosen for fault in store.verify(entry.name)]
    if loaded is not None:
        faults += _wrong_signatures(store, loaded, chosen)
    notes = {entry.name: store.notes(entry.name) for entry in chosen}
    remedy = store.remedy(*dict.fromkeys(fault.model for fault in faults)) if faults else None
    if json:
        listed = [asdict(fault) for fault in faults]
        checked = [entry.name for entry in chosen]
        print_json({"ok": not faults, "checked": checked, "faults": listed, "notes": notes, "remedy": remedy})
    else:
        for fault in faults:
            print(f"{fault.model}: {fault.path}: {fault.problem}")
        for name, lines in notes.items():
            for line in lines:
                print(f"{name}: {line} (no fault)")
        print(f"{_count(len(chosen), 'model')} checked, {_count(len(faults), 'fault')}")
        if remedy:
            print(f"run: {remedy}")
    if faults:
        raise typer.Exit(StartupError.exit_code)


def _wrong_signatures(store: Store, profile: Profile, entries: list[ModelEntry]) -> Iterator[StoreFault]:
    from models.pack.build import signature_fault

    keys = trusted_keys(profile)
    for entry in entries:
        if store.fault(entry.name) is None and (problem := signature_fault(store, entry.name, keys)):
            yield StoreFault(entry.name, store.folder(entry.name) / SIGNATURE, problem)


def _state(store: Store, entry: ModelEntry) -> str:
    """missing, fetched (not built), built (whether its source files are still here or not), ready (needs no build),
    stale (built for something else), damaged."""
    fault = store.fault(entry.name)
    if fault is None:
        return "ready" if entry.build is None else "built"
    if isinstance(fault, ModelMissing):
        return "fetched" if store.is_fetched(entry.name) else "missing"
    return "stale" if isinstance(fault, FingerprintMismatch) else "damaged"


_IN_USE = frozenset({"ready", "built", "stale", "damaged"})


def _count(number: int, noun: str) -> str:
    return f"{number} {noun}" + ("" if number == 1 else "s")


def _cells(row: dict[str, object]) -> list[object]:
    return [row["name"], row["kind"], row["state"], "yes" if row["default"] else ""]
