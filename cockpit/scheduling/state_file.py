"""What a process learnt and the next one starts from, on disk: small JSON objects, replaced atomically."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import orjson

log = logging.getLogger("cockpit.state")


class StateFile:
    """One object at `path`."""

    def __init__(self, path: Path) -> None:
        self.path = path

    def load(self) -> dict[str, Any] | None:
        """The saved state; None when there is none or it cannot be read (said in the log: it is learnt anew)."""
        try:
            state = orjson.loads(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, orjson.JSONDecodeError) as error:
            log.warning("%s cannot be read (%s): what it held is learnt anew", self.path, error)
            return None
        if not isinstance(state, dict):
            log.warning("%s holds no object: what it held is learnt anew", self.path)
            return None
        return state

    def save(self, state: dict[str, Any]) -> None:
        """Write beside, flush to the disk, rename over. Raises OSError; the old file then still stands."""
        self.path.parent.mkdir(parents=True, exist_ok=True)
        beside = self.path.with_suffix(".new")
        with beside.open("wb") as file:
            file.write(orjson.dumps(state))
            file.flush()
            os.fsync(file.fileno())
        beside.replace(self.path)

    def delete(self) -> None:
        self.path.unlink(missing_ok=True)


class PolicyFile(StateFile):
    """What the online policy learnt. Another machine has another fingerprint, so it never reads this one's."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        super().__init__(folder / f"policy-{fingerprint}.json")
