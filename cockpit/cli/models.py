"""`cockpit models`: fetch, list, build and verify the weights."""

from __future__ import annotations

import sys
import time
from collections.abc import Iterator
from contextlib import contextmanager
from pathlib import Path
from typing import Annotated

import typer
from rich.console import Console
from rich.progress import BarColumn, DownloadColumn, TextColumn, TimeRemainingColumn, TransferSpeedColumn
from rich.progress import Progress as RichBars

from cockpit.cli.output import JsonFlag, print_json, print_table, size_text
from cockpit.cli.values import model_values, profile_values
from models.errors import InputError, StartupError
from models.store.fetch import NoProgress, Progress, configured_origins
from models.store.registry import ModelEntry
from models.store.store import Store

app = typer.Typer(help="Fetch, list, build and verify model weights.", no_args_is_help=True, rich_markup_mode=None)

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[NAME]...", help="Models; none: the default set.", autocompletion=model_values),
]
ForProfile = Annotated[
    str | None,
    typer.Option("--profile", help="Also every model that this profile loads.", autocompletion=profile_values),
]


@app.command()
def fetch(
    names: Names = None,
    profile: ForProfile = None,
    everything: Annotated[bool, typer.Option("--all", help="Every model whose licence allows commercial use.")] = False,
    source: Annotated[
        list[Path] | None, typer.Option("--from", help="Folder to look in first (files must match their sha256).")
    ] = None,
    accept_licence: Annotated[
        bool, typer.Option("--accept-licence", help="Fetch models whose licence forbids commercial use.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Fetch weights: resumable, checked against the pinned sha256, kept in the cache."""
    store = Store.open()
    chosen = _chosen(store, names, profile, everything=everything)
    for entry in chosen:
        if not entry.commercial_use and not accept_licence:
            raise InputError(
                f"{entry.name}: {entry.licence}: {entry.licence_note}; to fetch it all the same, add --accept-licence"
            )
    origins = configured_origins(source or ())
    report = []
    with _progress(quiet=json) as progress:
        for entry in chosen:
            came_from = store.fetch(entry.name, origins=origins, progress=progress)
            report.append(
                {"name": entry.name, "new": list(dict.fromkeys(came_from)), "folder": store.source_folder(entry.name)}
            )
            if not json:
                done = f"fetched from {'; '.join(dict.fromkeys(came_from))}" if came_from else "already here"
                sys.stderr.write(f"{entry.name}: {done}\n")
    if json:
        print_json({"models": report, "cache": store.root})


@app.command("list")
def list_models(json: JsonFlag = False) -> None:
    """Every model of the registry, and what is here of it."""
    store = Store.open()
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
    profile: ForProfile = None,
    force: Annotated[bool, typer.Option("--force", help="Build again even when the build is current.")] = False,
    json: JsonFlag = False,
) -> None:
    """Build fetched weights into what the engines load. Needs the `build` extra; the car only needs the result."""
    store = Store.open()
    report = []
    for entry in _chosen(store, names, profile):
        work = entry.build is not None and (force or not store.is_built(entry.name))
        if work and not json:
            sys.stderr.write(f"{entry.name}: building\n")
        start = time.monotonic()
        folder = store.build(entry.name, force=force, progress=None if json else _tell_step)
        seconds = round(time.monotonic() - start, 1)
        report.append({"name": entry.name, "folder": folder, "new": work, "seconds": seconds})
        if not json:
            sys.stderr.write(f"{entry.name}: " + (f"built in {seconds} s\n" if work else "already built\n"))
    if json:
        print_json({"models": report, "cache": store.root})


@app.command()
def verify(names: Names = None, profile: ForProfile = None, json: JsonFlag = False) -> None:
    """Hash every source file again and check every build's fingerprint. Exit code 3 when anything is wrong.

    Without names: the default set, and whatever else is ready or was built here.
    """
    store = Store.open()
    if names or profile:
        chosen = _chosen(store, names, profile)
    else:
        chosen = [entry for entry in store.registry.models if entry.default or _state(store, entry) in _IN_USE]
    faults = [fault for entry in chosen for fault in store.verify(entry.name)]
    if json:
        fields = ("model", "path", "problem", "remedy")
        listed = [{field: getattr(fault, field) for field in fields} for fault in faults]
        print_json({"ok": not faults, "checked": [entry.name for entry in chosen], "faults": listed})
    else:
        for fault in faults:
            print(f"{fault.model}: {fault.path}: {fault.problem}; run: {fault.remedy}")
        print(f"{len(chosen)} models checked, {len(faults)} faults")
    if faults:
        raise typer.Exit(StartupError.exit_code)


def _tell_step(step: str, share: float) -> None:
    sys.stderr.write(f"  {share:4.0%} {step}\n")


def _chosen(
    store: Store, names: list[str] | None, profile: str | None, *, everything: bool = False
) -> list[ModelEntry]:
    if everything:
        return [entry for entry in store.registry.models if entry.commercial_use]
    wanted = list(names or ())
    if profile is not None:
        from cockpit.profile.load import load_profile

        wanted += load_profile(profile).profile.models
    return [store.registry.get(name) for name in dict.fromkeys(wanted or store.registry.default_names)]


def _state(store: Store, entry: ModelEntry) -> str:
    if not store.is_fetched(entry.name):
        return "missing"
    if entry.build is None:
        return "ready"
    if store.is_built(entry.name):
        return "built"
    return "stale" if (store.root / "built" / entry.name).is_dir() else "fetched"


_IN_USE = frozenset({"ready", "built", "stale"})


def _cells(row: dict[str, object]) -> list[object]:
    return [row["name"], row["kind"], row["state"], "yes" if row["default"] else ""]


# --- progress ------------------------------------------------------------------------------------------------------
class _Bars:
    """Progress bars on stderr."""

    def __init__(self, bars: RichBars) -> None:
        self._bars = bars
        self._task: int | None = None

    def start(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        self._task = self._bars.add_task(label, total=total_bytes, completed=done_bytes)

    def advance(self, count_bytes: int) -> None:
        if self._task is not None:
            self._bars.advance(self._task, count_bytes)  # type: ignore[arg-type]

    def finish(self) -> None:
        self._task = None


class _Lines:
    """One line per file on stderr, for logs."""

    def start(self, label: str, total_bytes: int | None, done_bytes: int) -> None:
        total = size_text(total_bytes) if total_bytes is not None else "unknown size"
        since = f", going on from {size_text(done_bytes)}" if done_bytes else ""
        sys.stderr.write(f"fetching {label} ({total}{since})\n")

    def advance(self, count_bytes: int) -> None:
        pass

    def finish(self) -> None:
        pass


@contextmanager
def _progress(*, quiet: bool) -> Iterator[Progress]:
    if quiet:
        yield NoProgress()
    elif not sys.stderr.isatty():
        yield _Lines()
    else:
        columns = (TextColumn("{task.description}"), BarColumn(), DownloadColumn(), TransferSpeedColumn())
        with RichBars(*columns, TimeRemainingColumn(), console=Console(stderr=True)) as bars:
            yield _Bars(bars)
