"""What was installed from packs, and what of it was not finished.

<root>/packs/<name>/record.json   the pack of that name which was taken last
<root>/packs/<name>/staged/       files that are not in their place yet
"""

from __future__ import annotations

import json
import os
from collections.abc import Iterator
from pathlib import Path
from typing import Literal

from pydantic import BaseModel, ConfigDict, ValidationError

from models.errors import PackRefused
from models.store.fetch import sha256_of
from models.store.manifest import FILE_NAME as MANIFEST
from models.store.store import Store
from models.store.tracks import sync_folder

RECORD = "record.json"
STAGED = "staged"


class Taken(BaseModel):
    """models: name -> sha256 of the build's manifest, "" of a model that needs no build. signed_by: id of the key, ""
    for none.
    """

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    counter: int
    digest: str
    signed_by: str
    models: dict[str, str]


class Record(BaseModel):
    """before: what the pack of this name was before `taken`, whose builds may have become the former ones."""

    model_config = ConfigDict(frozen=True, extra="forbid", strict=True)

    format: Literal[1] = 1
    name: str
    state: Literal["installing", "installed"]
    taken: Taken
    before: Taken | None = None

    def write(self, root: Path) -> None:
        """Atomically, and on the disk before it returns."""
        folder = folder_of(root, self.name)
        folder.mkdir(parents=True, exist_ok=True)
        part = folder / f".{RECORD}.part"
        with part.open("w", encoding="utf-8") as file:
            file.write(json.dumps(self.model_dump(), indent=1))
            file.flush()
            os.fsync(file.fileno())
        part.replace(folder / RECORD)
        sync_folder(folder)
        sync_folder(folder.parent)


def folder_of(root: Path, name: str) -> Path:
    """Where a pack's record is."""
    return root / "packs" / name


def record_of(root: Path, name: str) -> Record | None:
    """None where no pack of this name was installed. Raises PackRefused for a record that cannot be read: without it an
    older pack could not be told from a newer one.
    """
    path = folder_of(root, name) / RECORD
    try:
        return Record.model_validate_json(path.read_bytes())
    except FileNotFoundError:
        return None
    except (OSError, ValidationError) as error:
        problem = "it says which pack was installed last; restore it, or remove it"
        raise PackRefused(f"{path} is damaged: {problem}") from error


def records(root: Path) -> Iterator[Record]:
    """Of every pack. Raises PackRefused."""
    folder = root / "packs"
    for path in sorted(folder.iterdir()) if folder.is_dir() else ():
        found = record_of(root, path.name)
        if found is not None:
            yield found


def manifest_sha256(folder: Path) -> str | None:
    """Of the build in `folder`; None where there is none."""
    path = folder / MANIFEST
    return sha256_of(path) if path.is_file() else None


def untrusted(store: Store, names: tuple[str, ...], trusted: set[str]) -> dict[str, str]:
    """Model -> why its present build is not trusted, of those that came by a pack. Raises PackRefused."""
    found: dict[str, str] = {}
    for record in records(store.root):
        for taken in filter(None, (record.before, record.taken)):
            for name, content in taken.models.items():
                if name in names and (content or None) == manifest_sha256(store.folder(name)):
                    found[name] = _reason(record.name, taken, trusted)
    return {name: reason for name, reason in found.items() if reason}


def _reason(pack: str, taken: Taken, trusted: set[str]) -> str:
    if not taken.signed_by:
        return f"it came by the pack {pack} {taken.counter}, which is not signed"
    if taken.signed_by not in trusted:
        return f"the key {taken.signed_by[:16]} that signed the pack {pack} {taken.counter} is not trusted"
    return ""


def unfinished(root: Path) -> list[str]:
    """Names of packs whose installation was interrupted. Raises PackRefused."""
    return [record.name for record in records(root) if record.state == "installing"]
