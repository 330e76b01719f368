"""Install a pack: check, stage, validate, and then put every model in its place; an interruption leaves the old models,
or is finished by the next boot."""

from __future__ import annotations

import fcntl
import shutil
from collections.abc import Callable, Iterator
from contextlib import contextmanager
from pathlib import Path

from cryptography.hazmat.primitives.asymmetric.ed25519 import Ed25519PublicKey

from models.errors import PackRefused
from models.pack.reading import Source, take
from models.pack.record import STAGED, Record, Taken, folder_of, manifest_sha256, record_of, records
from models.pack.signing import Signed, Statement, opened
from models.store.manifest import FILE_NAME as MANIFEST
from models.store.manifest import Manifest
from models.store.store import Store
from models.store.tracks import former_folder

Accept = Callable[[str, Path], object]
"""(model, folder): sees a new build work, or raises."""


def verify(source: Source, trusted: dict[str, Ed25519PublicKey], *, unsigned: bool, into: Path | None = None) -> Signed:
    """Check the signature and every byte. into: also write the files there. Raises PackRefused."""
    signed = opened(source.envelope(), trusted, unsigned=unsigned)
    _check_layout(signed.statement)
    take(source, signed.statement.files, into)
    return signed


def _check_layout(statement: Statement) -> None:
    """Each file belongs to one of the models, and each model has files. Raises PackRefused."""
    models = set(statement.predicate.models)
    seen = set()
    for name in statement.files:
        part, _, rest = name.partition("/")
        model, _, file = rest.partition("/")
        if part not in ("models", "sources") or model not in models or not file:
            raise PackRefused(f"{name!r} belongs to none of its models")
        seen.add(model)
    if models - seen:
        raise PackRefused(f"it has no files of {', '.join(sorted(models - seen))}")


def install(
    store: Store, source: Source, trusted: dict[str, Ed25519PublicKey], *, unsigned: bool, accept: Accept
) -> tuple[Signed, bool]:
    """Returns what was signed, and whether anything was done: False where this pack is installed already.

    Raises PackRefused (also for a pack older than the installed one, and for builds that do not fit this version of
    Cockpit or the registry), what `accept` raises, and OSError; then every model is as it was.
    """
    first = opened(source.envelope(), trusted, unsigned=unsigned)
    name = first.statement.predicate.name
    with _locked(store, name):
        finish(store)
        before = record_of(store.root, name)
        _check_counter(first, before)
        if before is not None and before.taken.digest == first.digest and _in_place(store, before.taken):
            return first, False
        staged = folder_of(store.root, name) / STAGED
        shutil.rmtree(staged, ignore_errors=True)
        try:
            staged.mkdir(parents=True)
            signed = verify(source, trusted, unsigned=unsigned, into=staged)
            if signed.digest != first.digest:
                raise PackRefused("the pack changed while it was read")
            taken = _taken(store, signed, staged)
            for model in taken.models:
                accept(model, _staged(store, staged, model))
        except BaseException:
            shutil.rmtree(staged, ignore_errors=True)
            raise
        last = None if before is None else before.taken
        Record(name=name, state="installing", taken=taken, before=last).write(store.root)
        finish(store)
        return signed, True


def _check_counter(signed: Signed, before: Record | None) -> None:
    said = signed.statement.predicate
    if before is None:
        return
    if said.counter < before.taken.counter:
        raise PackRefused(f"{said.name} {said.counter} is older than the installed {before.taken.counter}")
    if said.counter == before.taken.counter and signed.digest != before.taken.digest:
        raise PackRefused(
            f"{said.name} {said.counter} is installed with other contents: a changed pack has a higher counter"
        )


def _taken(store: Store, signed: Signed, staged: Path) -> Taken:
    """What will have been installed, once each model in `staged` was seen to be what the registry wants."""
    models = {}
    for name in signed.statement.predicate.models:
        entry = store.registry.get(name)
        if entry.build is None and entry.sources_of is not None:
            raise PackRefused(f"{name} has no files of its own")
        folder = _staged(store, staged, name)
        if not folder.is_dir():
            raise PackRefused(f"it has {name} in another form than this version of Cockpit loads")
        if fault := store.fault_in(name, folder):
            raise PackRefused(f"it does not fit this version of Cockpit and its registry: {fault}")
        known = {MANIFEST, *_expected_files(store, name, folder)}
        for path in folder.rglob("*"):
            if path.is_file() and path.relative_to(folder).as_posix() not in known:
                raise PackRefused(f"{path.relative_to(staged)} is no part of {name}")
        models[name] = manifest_sha256(folder) or ""
    return Taken(
        counter=signed.statement.predicate.counter, digest=signed.digest, signed_by=signed.signed_by, models=models
    )


def _expected_files(store: Store, name: str, folder: Path) -> list[str]:
    if store.registry.get(name).build is None:
        return list(store.registry.get(name).needed_files)
    manifest = Manifest.read(folder)
    return [] if manifest is None else list(manifest.files)


def _staged(store: Store, staged: Path, name: str) -> Path:
    return staged / ("sources" if store.registry.get(name).build is None else "models") / name


def _in_place(store: Store, taken: Taken) -> bool:
    return all(_is_in_place(store, name, content) for name, content in taken.models.items())


def _is_in_place(store: Store, name: str, content: str) -> bool:
    if not content:
        return store.fault(name) is None
    return manifest_sha256(store.folder(name)) == content


def finish(store: Store) -> list[str]:
    """Put what an interrupted installation left in its place; returns the packs. Packs of models that the store's
    registry does not know are left to the profile that knows them. Raises PackRefused.
    """
    done = []
    for record in list(records(store.root)):
        if record.state != "installing" or not set(record.taken.models) <= set(store.registry.names):
            continue
        staged = folder_of(store.root, record.name) / STAGED
        for name, content in record.taken.models.items():
            _put(store, record.name, name, content, _staged(store, staged, name))
        record.model_copy(update={"state": "installed"}).write(store.root)
        shutil.rmtree(staged, ignore_errors=True)
        done.append(record.name)
    return done


def _put(store: Store, pack: str, name: str, content: str, new: Path) -> None:
    if _is_in_place(store, name, content):
        return
    if new.is_dir() and (not content or manifest_sha256(new) == content):
        store.place(name, new)
    elif content and manifest_sha256(former_folder(store.root, name)) == content:
        store.rollback(name)  # it came as far as the former one's place
    else:
        raise PackRefused(f"the installation of {pack} was interrupted, and its {name} is gone: install it again")


@contextmanager
def _locked(store: Store, name: str) -> Iterator[None]:
    locks = store.root / "locks"
    locks.mkdir(parents=True, exist_ok=True)
    with (locks / f"pack-{name}.lock").open("w") as file:
        fcntl.flock(file, fcntl.LOCK_EX)
        yield
