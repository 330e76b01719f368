"""Static beginnings of texts (system prompts, tools, examples) on disk: a start reads their keys and values instead of
computing them. A file that is damaged, or was made by another model or runtime, is as good as none.
"""

from __future__ import annotations

import hashlib
import json
import logging
import os
import tempfile
from collections.abc import Iterable
from pathlib import Path

import numpy as np

from models.engines.llm.session import LmSession, ParkedText
from models.store.fingerprint import onnxruntime_version
from models.store.manifest import FILE_NAME

log = logging.getLogger("cockpit.llm")

FORMAT = 1
_MOST_HEADER_BYTES = 1 << 20


def key_of(folders: Iterable[Path]) -> str:
    """What keys and values depend on beside the tokens: the built models, and what computes them."""
    made = hashlib.sha256(f"{FORMAT} {onnxruntime_version()}".encode())
    for folder in folders:
        file = folder / FILE_NAME
        made.update(file.read_bytes() if file.is_file() else str(folder).encode())
    return made.hexdigest()


class Beginnings:
    """One file per text, by the session's name. key: see `key_of`; a file of another key is not used."""

    def __init__(self, folder: Path, key: str) -> None:
        self._folder = folder
        self._key = key
        self._good: dict[str, tuple[int, ...]] = {}
        """What was read and is whole."""

    def bring(self, session: LmSession) -> int:
        """Give an empty session the beginning that was kept for it. Returns how many tokens; 0 without a good file."""
        parked = self._read(session.name)
        if parked is None or session.cached or len(parked.tokens) > session.capacity:
            return 0
        self._good[session.name] = parked.tokens
        return session.restore(parked, parked.tokens)

    def keep(self, session: LmSession) -> bool:
        """Store what the session has cached, unless `bring` has read just that. False where it cannot be written: the
        next start computes it again.
        """
        parked = session.park()
        if self._good.get(session.name) == parked.tokens:
            return True
        whole = ParkedText(parked.tokens, session.body.read_rows(len(parked.tokens)))
        try:
            self._write(session.name, whole)
        except OSError as error:
            log.warning("the beginning of %s is not kept (%s): the next start computes it again", session.name, error)
            return False
        return True

    def sweep(self) -> None:
        """Remove what a process that was killed while it wrote has left behind."""
        for part in self._folder.glob(".*.part"):
            part.unlink(missing_ok=True)

    def _path(self, name: str) -> Path:
        return self._folder / f"{name}.kv"

    def _header(self, name: str) -> dict[str, object] | None:
        try:
            with self._path(name).open("rb") as file:
                header = json.loads(file.readline(_MOST_HEADER_BYTES))
        except (OSError, ValueError):
            return None
        return header if isinstance(header, dict) and header.get("key") == self._key else None

    def _read(self, name: str) -> ParkedText | None:
        header = self._header(name)
        if header is None:
            return None
        try:
            data = self._path(name).read_bytes()
            rows = np.frombuffer(data, np.dtype(str(header["dtype"])), offset=data.index(b"\n") + 1)
            if hashlib.sha256(rows.data).hexdigest() != header["sha256"]:
                raise ValueError("its hash differs")
            tokens = tuple(int(token) for token in header["tokens"])  # type: ignore[attr-defined]
            return ParkedText(tokens, rows.reshape(header["shape"]))  # type: ignore[call-overload]
        except (OSError, ValueError, KeyError, TypeError) as error:
            log.warning("the kept beginning %s is not used: %s", self._path(name), error)
            return None

    def _write(self, name: str, parked: ParkedText) -> None:
        """Whole or not at all."""
        rows = np.ascontiguousarray(parked.rows)
        header = {
            "key": self._key,
            "dtype": rows.dtype.str,
            "shape": rows.shape,
            "sha256": hashlib.sha256(rows.data).hexdigest(),
            "tokens": parked.tokens,
        }
        self._folder.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=self._folder, prefix=f".{name}.", suffix=".part")
        try:
            with os.fdopen(handle, "wb") as file:
                file.write(json.dumps(header).encode() + b"\n")
                file.write(rows.data)
            os.replace(temporary, self._path(name))
        except BaseException:
            os.unlink(temporary)
            raise
