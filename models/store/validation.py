"""That a build was seen to work: loaded in a fresh process, run, and its answers compared with known ones.

    validation.json   beside the build's manifest: {"format": 1, ..., "sha256": of the fields before it}

It holds for one content (the build as its manifest records it) on one machine (models/store/machine.py).
"""

from __future__ import annotations

import hashlib
import json
import os
import tempfile
from collections.abc import Mapping
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any

from models.store.machine import fields_sha3, fields_that_differ

FILE_NAME = "validation.json"
FORMAT = 1


@dataclass(frozen=True, slots=True)
class Answer:
    """What one question to a model gave. expected: "" where the registry knows no answer for it."""

    ask: str
    expected: str
    got: str
    ok: bool


@dataclass(frozen=True, slots=True)
class Validation:
    """content: see `Store.content`. machine: field -> value. fault: why it failed; "" when it passed.

    load_ms: until the engine could be asked; first_result_ms: of the first question; peak_memory_mb: how far the
    process's memory rose above what it held before. cold: a process of its own, files out of the page cache. at: UTC.
    stands_in_for: the code of the builder and the runtime that a new build would be made by, where this one was made by
    others and was seen to work with them all the same (see `Store.stands_in`).
    """

    model: str
    content: str
    machine: dict[str, str]
    machine_sha3: str
    answers: tuple[Answer, ...]
    load_ms: float
    first_result_ms: float
    peak_memory_mb: float
    seed: int
    cold: bool
    at: str
    fault: str = ""
    stands_in_for: str = ""

    @property
    def passed(self) -> bool:
        return not self.fault

    def against(self, content: str, machine: Mapping[str, str]) -> str:
        """Why it does not speak for what is here now; "" when it does."""
        if self.content != content:
            return "it, or what it must answer, has changed since it was validated"
        if fields_sha3(machine) != self.machine_sha3:
            differ = "; ".join(fields_that_differ(self.machine, machine))
            return f"it was validated on another machine, firmware or software ({differ})"
        return f"its validation failed: {self.fault}" if self.fault else ""

    def write(self, folder: Path) -> None:
        """Beside the build in `folder`, atomically, and on the disk before it returns."""
        said: dict[str, Any] = {"format": FORMAT, **asdict(self)}
        descriptor, part = tempfile.mkstemp(dir=folder, prefix=f".{FILE_NAME}.")
        try:
            with open(descriptor, "w", encoding="utf-8") as out:
                json.dump(said | {"sha256": _sha256_of(said)}, out, indent=1)
                out.flush()
                os.fchmod(out.fileno(), 0o644)
                os.fsync(out.fileno())
            Path(part).replace(folder / FILE_NAME)
        except BaseException:
            Path(part).unlink(missing_ok=True)
            raise

    @classmethod
    def read(cls, folder: Path) -> Validation | None:
        """None when there is none, or it is not as it was written: then the build counts as not validated."""
        try:
            said = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))
            if said.pop("sha256") != _sha256_of(said) or said.pop("format") != FORMAT:
                return None
            return cls(**{**said, "answers": tuple(Answer(**answer) for answer in said["answers"])})
        except (OSError, ValueError, TypeError, KeyError, AttributeError):
            return None


def _sha256_of(said: dict[str, Any]) -> str:
    return hashlib.sha256(json.dumps(said, sort_keys=True).encode()).hexdigest()
