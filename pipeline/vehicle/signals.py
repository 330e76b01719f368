"""The car's signals: an embedded COVESA VSS 6.0 subset, who may write what, and writes that can be taken back.

`signals.json` holds exact VSS paths, types, units and ranges, `overlay.json` leaves that VSS has not. Only a leaf with
a "write" entry may ever be written: an allow-list by exact path. That entry also holds Cockpit's own, tighter limits
where VSS leaves a value open: temperature 16..30 Celsius, screen brightness from 10 %, steering-wheel heating never
cooling, low beam and position lights never off, doors unlocked and boot opened only at standstill (`stationary_unless`:
the one value allowed while moving), seats moved only at standstill (`stationary`), high beam and fog lights only beside
the lights that UN R48 has them go with (`on_needs`: one of these must be on).
"""

from __future__ import annotations

import json
import math
from collections import OrderedDict
from dataclasses import dataclass, field
from pathlib import Path
from typing import Any, Protocol

Value = bool | int | float | str

INTEGER_RANGES = {
    "int8": (-128, 127),
    "uint8": (0, 255),
    "int16": (-32768, 32767),
    "uint16": (0, 65535),
    "int32": (-(2**31), 2**31 - 1),
    "uint32": (0, 2**32 - 1),
}
SPEED_OLD_S = 1.0
"""A speed that was told longer ago says nothing: the car counts as moving."""
KEPT_TURNS = 8
"""How many turns back a write can be taken back."""


class SignalError(Exception):
    """A read or write that did not happen. `reason` is a stable code; `detail` holds what the reply may say."""

    def __init__(self, reason: str, path: str, detail: dict[str, Any] | None = None) -> None:
        super().__init__(f"{path}: {reason}")
        self.reason = reason
        self.path = path
        self.detail = detail or {}


@dataclass(frozen=True, slots=True)
class Signal:
    """One VSS leaf. `minimum`/`maximum` are the tighter of VSS's and Cockpit's own limits, in `unit`."""

    path: str
    kind: str
    datatype: str
    unit: str | None
    minimum: float | None
    maximum: float | None
    allowed: tuple[Value, ...] | None
    initial: Value
    writable: bool
    stationary_unless: Value | None
    stationary: bool = False
    on_needs: tuple[str, ...] = ()


class SignalBackend(Protocol):
    """Where signals live: the embedded tree, or a databroker. `signals`: the leaves that it may be asked for."""

    @property
    def signals(self) -> dict[str, Signal]: ...

    def read(self, path: str) -> Value:
        """The latest value. Raises SignalError("unknown_signal" | "unavailable" | "denied")."""
        ...

    def write(self, path: str, value: Value) -> None:
        """Ask for an actuation; success says nothing about the outcome: read it back. Raises SignalError."""
        ...

    def read_aged(self, path: str) -> tuple[Value, float]:
        """As `read`, and how long ago the car told it in seconds; infinite where nobody knows."""
        ...


def load_signals(file: Path | None = None) -> dict[str, Signal]:
    """Every known leaf by path: those of `file`, or VSS's and the overlay's."""
    here = Path(__file__)
    files = [file] if file else [here.with_name("signals.json"), here.with_name("overlay.json")]
    entries = [entry for each in files for entry in json.loads(each.read_text(encoding="utf-8"))["signals"]]
    return {entry["path"]: signal_of(entry) for entry in entries}


def signal_of(entry: dict[str, Any]) -> Signal:
    """One leaf as `signals.json` writes it."""
    write = entry.get("write")
    own = write or {}
    allowed = own.get("allowed", entry.get("allowed"))
    return Signal(
        path=entry["path"],
        kind=entry["kind"],
        datatype=entry["datatype"],
        unit=entry.get("unit"),
        minimum=own.get("min", entry.get("min")),
        maximum=own.get("max", entry.get("max")),
        allowed=tuple(allowed) if allowed is not None else None,
        initial=entry["initial"],
        writable=write is not None and entry["kind"] == "actuator",
        stationary_unless=own.get("stationary_unless"),
        stationary=own.get("stationary", False),
        on_needs=tuple(own.get("on_needs", ())),
    )


class EmbeddedTree:
    """The signals in this process, with the simplest car behind them: what is asked for happens at once.

    `break_path(path, reason)` makes writes to a path fail, `stick(path)` makes them be accepted and ignored: the two
    ways a real actuator lets down.
    """

    def __init__(self, signals: dict[str, Signal] | None = None) -> None:
        self.signals = load_signals() if signals is None else signals
        self._values: dict[str, Value] = {path: signal.initial for path, signal in self.signals.items()}
        self._broken: dict[str, str] = {}
        self._stuck: set[str] = set()
        self._ages_s: dict[str, float] = {}

    def read(self, path: str) -> Value:
        """See SignalBackend."""
        if path not in self._values:
            raise SignalError("unknown_signal", path)
        return self._values[path]

    def write(self, path: str, value: Value) -> None:
        """See SignalBackend."""
        if path not in self._values:
            raise SignalError("unknown_signal", path)
        if path in self._broken:
            raise SignalError(self._broken[path], path)
        if path in self._stuck:
            return
        self._values[path] = value
        if path == "Vehicle.Cabin.Sunroof.Switch":
            position = {"ONE_SHOT_OPEN": 100, "ONE_SHOT_CLOSE": 0, "TILT_UP": -100, "TILT_DOWN": 0}
            if isinstance(value, str) and value in position:
                self._values["Vehicle.Cabin.Sunroof.Position"] = position[value]

    def read_aged(self, path: str) -> tuple[Value, float]:
        """See SignalBackend: new, unless `grow_old` says otherwise."""
        return self.read(path), self._ages_s.get(path, 0.0)

    def grow_old(self, path: str, age_s: float) -> None:
        """Let the value be one that was told so long ago."""
        self._ages_s[path] = age_s

    def simulate(self, path: str, value: Value) -> None:
        """Set a value as the car itself would (a sensor moving, a hand on a switch): no checks, no journal."""
        if path not in self._values:
            raise SignalError("unknown_signal", path)
        self._values[path] = value

    def snapshot(self) -> dict[str, Value]:
        """A copy of every value."""
        return dict(self._values)

    def break_path(self, path: str, reason: str = "unavailable") -> None:
        """Make writes to `path` fail with `reason`."""
        self._broken[path] = reason

    def stick(self, path: str) -> None:
        """Make writes to `path` be accepted without effect."""
        self._stuck.add(path)

    def mend(self) -> None:
        """Take back every `break_path` and `stick`."""
        self._broken.clear()
        self._stuck.clear()


@dataclass(slots=True)
class SignalAccess:
    """The only way to write: allow-list, type, range and driving state are checked here, and each write is journalled.

    Owned by one thread. `journal` maps a turn to what each written path held before that turn, in order of writing.
    """

    backend: SignalBackend
    signals: dict[str, Signal] = field(default_factory=load_signals)
    journal: OrderedDict[int, list[tuple[str, Value]]] = field(default_factory=OrderedDict)

    def read(self, path: str) -> Value:
        """A fresh value. Raises SignalError."""
        return self.backend.read(path)

    def check(self, path: str, value: object) -> Value:
        """The value in the leaf's own type. Raises SignalError("forbidden" | "wrong_type" | "out_of_range" |
        "forbidden_while_moving" | "needs_headlights").
        """
        signal = self.signals.get(path)
        if signal is None or not signal.writable:
            raise SignalError("forbidden", path)
        checked = _typed(signal, value)
        if signal.allowed is not None and checked not in signal.allowed:
            raise SignalError("forbidden" if signal.datatype == "boolean" else "out_of_range", path)
        if not isinstance(checked, str | bool):
            low, high = signal.minimum, signal.maximum
            if (low is not None and checked < low) or (high is not None and checked > high):
                raise SignalError(
                    "out_of_range", path, {"min": low, "max": high, "unit": signal.unit, "asked": checked}
                )
        held = signal.stationary or (signal.stationary_unless is not None and checked != signal.stationary_unless)
        if held and self.moving():
            raise SignalError("forbidden_while_moving", path)
        if signal.on_needs and checked and not any(self.backend.read(other) is True for other in signal.on_needs):
            raise SignalError("needs_headlights", path)
        return checked

    def moving(self) -> bool:
        """True unless the car is known to stand still: a speed that is missing, odd or old counts as moving."""
        try:
            speed, age_s = self.backend.read_aged("Vehicle.Speed")
            moving = self.backend.read("Vehicle.IsMoving")
        except SignalError:
            return True
        if not abs(age_s) <= SPEED_OLD_S:
            return True
        known = isinstance(speed, int | float) and math.isfinite(speed) and abs(speed) < 0.5
        return not (known and moving is False)

    def write(self, path: str, value: object, turn_id: int) -> Value:
        """Check, journal, write. Returns the checked value. Raises SignalError; then nothing was journalled or
        asked for.
        """
        checked = self.check(path, value)
        before = self.backend.read(path)
        self.backend.write(path, checked)
        self.journal.setdefault(turn_id, []).append((path, before))
        while len(self.journal) > KEPT_TURNS:
            self.journal.popitem(last=False)
        return checked

    def roll_back(self, turn_id: int) -> int:
        """Put back what the turn changed, newest first. Returns how many writes were undone. Raises SignalError."""
        entries = self.journal.pop(turn_id, [])
        for path, before in reversed(entries):
            if self.backend.read(path) != before:
                self.backend.write(path, before)
        return len(entries)

    def undo_last(self, turn_id: int, count: int) -> None:
        """Put back the last `count` writes of a turn: a call of several writes that failed half-way leaves
        nothing behind.
        """
        entries = self.journal.get(turn_id, [])
        for _ in range(min(count, len(entries))):
            path, before = entries.pop()
            self.backend.write(path, before)


def _typed(signal: Signal, value: object) -> Value:
    kind = signal.datatype
    if kind == "boolean":
        if isinstance(value, bool):
            return value
    elif kind == "string":
        if isinstance(value, str):
            return value
    elif isinstance(value, int | float) and not isinstance(value, bool) and math.isfinite(value):
        if kind in ("float", "double"):
            return float(value)
        if float(value).is_integer():
            low, high = INTEGER_RANGES[kind]
            if low <= value <= high:
                return int(value)
            raise SignalError(
                "out_of_range",
                signal.path,
                {"min": signal.minimum, "max": signal.maximum, "unit": signal.unit, "asked": value},
            )
    raise SignalError("wrong_type", signal.path)
