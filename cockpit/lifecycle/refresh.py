"""After an update of firmware, driver or software: what is there is seen to work again, or what was there before, so
that the car has a voice while new builds are made."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import dataclass

from cockpit.lifecycle.child import Outcome
from cockpit.lifecycle.validate import Run, stand_in, validatable, validate
from models.errors import CockpitError, FingerprintMismatch, InputError, ModelUnusable
from models.store.store import Store

REBUILD_WANTED = "rebuild-wanted"
"""In the cache while a model is only standing in."""


@dataclass(frozen=True, slots=True)
class Refreshed:
    """events: what was done, a line each. standing_in: models whose build is by another version and serves until it is
    built anew. undone: models that need fetching or building before they can be served.
    """

    events: tuple[str, ...]
    standing_in: tuple[str, ...]
    undone: tuple[str, ...]


def refresh(store: Store, names: Sequence[str], *, run: Run | None = None) -> Refreshed:
    """Compare, and do what takes seconds: a stale build gives way to its former one where that fits, else it is
    validated with the new software to stand in; what was validated under another firmware is validated again, and where
    it fails, its former build is tried. Nothing is fetched or built. run: see `validate`.
    """
    events: list[str] = []
    if (store.root / "packs").is_dir():
        from models.pack.install import finish

        events += [f"pack {name}: its interrupted installation is finished" for name in finish(store)]
    for name in names:
        if isinstance(store.fault(name), FingerprintMismatch):
            events += _stale(store, name, run)
    for outcome in validate(store, [name for name in validatable(store, names) if store.unvalidated(name)], run=run):
        events += _validated(store, outcome, run)
    standing_in = tuple(name for name in names if store.stands_in(name))
    undone = [name for name in names if name not in standing_in and _not_served(store, name)]
    return Refreshed(tuple(events), standing_in, tuple(undone))


def mark(store: Store, wanted: bool) -> None:
    """Leave word for `cockpit-rebuild@.service`, which runs once the voice does, or take it away."""
    path = store.root / REBUILD_WANTED
    if wanted:
        path.touch()
    else:
        path.unlink(missing_ok=True)


def _not_served(store: Store, name: str) -> bool:
    return store.fault(name) is not None or bool(store.unvalidated(name))


def _stale(store: Store, name: str, run: Run | None) -> list[str]:
    if store.stands_in(name):
        return []
    try:
        store.rollback(name)
        return [f"{name}: built by another version; its former build fits this one and is taken again"]
    except (InputError, ModelUnusable):
        pass
    outcome = stand_in(store, name, run=run)
    if outcome.cannot or outcome.fault:
        return [f"{name}: built by another version, and cannot stand in: {outcome.cannot or outcome.fault}"]
    return [f"{name}: built by another version; validated with this one, it serves until it is built anew"]


def _validated(store: Store, outcome: Outcome, run: Run | None) -> list[str]:
    name = outcome.model
    if outcome.cannot:
        return [f"{name}: cannot be validated here: {outcome.cannot}"]
    if not outcome.fault:
        return [f"{name}: validated on this machine as it is now"]
    failed = f"{name}: failed its validation: {outcome.fault}"
    try:
        store.rollback(name)
    except CockpitError:
        return [failed]
    again = next(iter(validate(store, [name], run=run)))
    if again.fault or again.cannot:
        store.rollback(name)
        return [failed, f"{name}: its former build does not work either: {again.fault or again.cannot}"]
    return [failed, f"{name}: its former build works and is taken again"]
