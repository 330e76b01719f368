"""What the online policy learnt, on disk: one file per hardware fingerprint, replaced atomically."""

from __future__ import annotations

import logging
import os
from pathlib import Path
from typing import Any

import orjson

log = logging.getLogger("cockpit.policy")


class PolicyFile:
    """`policy-FINGERPRINT.json` in `folder`. Another machine has another fingerprint, so it never reads this one's."""

    def __init__(self, folder: Path, fingerprint: str) -> None:
        self.path = folder / f"policy-{fingerprint}.json"

    def load(self) -> dict[str, Any] | None:
        """The saved state; None when there is none or it cannot be read (said in the log: the policy learns anew)."""
        try:
            state = orjson.loads(self.path.read_bytes())
        except FileNotFoundError:
            return None
        except (OSError, orjson.JSONDecodeError) as error:
            log.warning("policy state %s cannot be read (%s): learning starts anew", self.path, error)
            return None
        if not isinstance(state, dict):
            log.warning("policy state %s holds no object: learning starts anew", self.path)
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
