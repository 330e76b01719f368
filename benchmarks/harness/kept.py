"""Results of a long benchmark, kept in a file part by part, so that it can be run in several goes."""

from __future__ import annotations

import json
import os
import time
from argparse import ArgumentParser, Namespace
from collections.abc import Mapping
from pathlib import Path
from typing import Any


def kept_options(parser: ArgumentParser) -> None:
    """The options of a benchmark that can go on where it stopped."""
    parser.add_argument("--keep", type=Path, help="keep what is measured in this file, and measure only what it lacks")
    parser.add_argument("--minutes", type=float, default=0, help="begin nothing more after so long (0: no limit)")


class Kept:
    """JSON values by key. file: written whole after each `put`; None keeps nothing. minutes: 0 has no limit.

    what: how the values were made; a file with other settings is refused with ValueError.
    """

    def __init__(self, file: Path | None, what: Mapping[str, Any], minutes: float = 0) -> None:
        self._file = file
        self._what = dict(what)
        self._began_s = time.monotonic()
        self._limit_s = minutes * 60 if minutes else float("inf")
        self.values: dict[str, Any] = {}
        if file is not None and file.exists():
            saved = json.loads(file.read_text(encoding="utf-8"))
            if saved["what"] != json.loads(json.dumps(self._what)):
                raise ValueError(f"{file} holds results of other settings ({saved['what']}): name another file")
            self.values = saved["values"]

    @classmethod
    def of(cls, options: Namespace, what: Mapping[str, Any]) -> Kept:
        """From the options of `kept_options`."""
        return cls(options.keep, what, options.minutes)

    def __contains__(self, key: str) -> bool:
        return key in self.values

    def over(self, share: float = 1.0) -> bool:
        """Whether `share` of the time is spent: begin nothing more."""
        return time.monotonic() - self._began_s > self._limit_s * share

    def put(self, key: str, value: Any) -> None:
        """Keep `value`."""
        self.values[key] = value
        if self._file is not None:
            fresh = self._file.with_suffix(".new")
            fresh.write_text(json.dumps({"what": self._what, "values": self.values}) + "\n", encoding="utf-8")
            os.replace(fresh, self._file)
