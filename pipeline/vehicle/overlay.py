"""An OEM's own signal overlay (`vehicle.signals`): leaves that its car has beside those that ship, and tighter limits.

The form is that of `overlay.json` here. What drives the car can never be made writable by it.
"""

from __future__ import annotations

import json
import re
from pathlib import Path
from typing import Any, Final

from models.errors import ConfigError
from pipeline.vehicle.signals import INTEGER_RANGES, Signal, load_signals, signal_of

_PATH: Final = re.compile(r"Vehicle(\.[A-Z][A-Za-z0-9]*){1,12}")
_TYPES: Final = ("boolean", "string", "float", "double", *INTEGER_RANGES)
_KEYS: Final = {"path", "kind", "datatype", "unit", "min", "max", "allowed", "initial", "write"}
_WRITE_KEYS: Final = {"min", "max", "allowed", "stationary", "stationary_unless", "on_needs"}
_NEVER: Final = ("Powertrain", "Chassis", "MotionManagement", "ADAS", "Safety", "Body.Horn", "Body.Hood")
"""Branches in which an overlay may name leaves to be read only: steering, brakes, gears, engine, driver assistance."""
_MOST_BYTES: Final = 4 << 20


def signals_with(overlay: Path | None) -> dict[str, Signal]:
    """The leaves that ship and those of `overlay`, by path; a leaf of the same path takes the shipped one's place,
    with limits that are the same or tighter. Raises ConfigError with every fault, one a line.
    """
    known = load_signals()
    if overlay is None:
        return known
    own: dict[str, Signal] = {}
    faults = []
    for number, entry in enumerate(_entries(overlay), 1):
        fault = _fault(entry)
        if fault is None:
            signal = signal_of(entry)
            fault = "stands twice" if signal.path in own else _looser(known.get(signal.path), signal)
            own[signal.path] = signal
        if fault is not None:
            named = entry.get("path", f"entry {number}") if isinstance(entry, dict) else f"entry {number}"
            faults.append(f"{overlay}: {named}: {fault}")
    if faults:
        raise ConfigError("\n".join(faults))
    return known | own


def _entries(overlay: Path) -> list[Any]:
    try:
        if overlay.stat().st_size > _MOST_BYTES:
            raise ConfigError(f"{overlay}: an overlay has at most {_MOST_BYTES} bytes")
        data = json.loads(overlay.read_text(encoding="utf-8"))
    except OSError as error:
        raise ConfigError(f"{overlay} cannot be read ({error.strerror}): see vehicle.signals") from error
    except (ValueError, RecursionError) as error:
        raise ConfigError(f"{overlay} is no JSON text ({error}): see vehicle.signals") from error
    entries = data.get("signals") if isinstance(data, dict) else None
    if not isinstance(entries, list):
        raise ConfigError(f'{overlay}: an overlay is {{"signals": [...]}}, see pipeline/vehicle/overlay.json')
    return entries


def _fault(entry: Any) -> str | None:
    """What is wrong with one entry."""
    if not isinstance(entry, dict):
        return "is no object"
    path, kind, datatype, write = (entry.get(key) for key in ("path", "kind", "datatype", "write"))
    if unknown := set(entry) - _KEYS:
        return f"unknown key {sorted(unknown)[0]!r}; there are {', '.join(sorted(_KEYS))}"
    if not isinstance(path, str) or not _PATH.fullmatch(path):
        return "path must be that of a VSS leaf, such as Vehicle.Cabin.Light.IsDomeOn"
    if kind not in ("actuator", "sensor", "attribute"):
        return "kind is actuator, sensor or attribute"
    if datatype not in _TYPES:
        return f"datatype is one of {', '.join(_TYPES)}"
    if not _fits(entry.get("initial"), datatype):
        return f"initial must be a {datatype}"
    for holder in (entry, write or {}):
        bounds = [holder[key] for key in ("min", "max") if key in holder] if isinstance(holder, dict) else []
        if not all(isinstance(bound, int | float) and not isinstance(bound, bool) for bound in bounds):
            return "min and max are numbers"
        if bounds != sorted(bounds):
            return "min is above max"
        allowed = holder.get("allowed", []) if isinstance(holder, dict) else []
        if not isinstance(allowed, list) or not all(_fits(value, datatype) for value in allowed):
            return f"allowed is a list of {datatype}"
    if write is None:
        return None
    if not isinstance(write, dict) or set(write) - _WRITE_KEYS:
        return f"write is an object with some of {', '.join(sorted(_WRITE_KEYS))}"
    if kind != "actuator":
        return "only an actuator can be written"
    needs = write.get("on_needs", [])
    if not isinstance(needs, list) or not all(isinstance(other, str) for other in needs):
        return "on_needs is a list of paths"
    below = path.removeprefix("Vehicle.")
    if below.startswith(_NEVER) and path not in load_signals():
        return f"nothing below {below.partition('.')[0]} is written by voice: leave `write` out"
    return None


def _fits(value: Any, datatype: str) -> bool:
    if datatype == "boolean":
        return isinstance(value, bool)
    if datatype == "string":
        return isinstance(value, str)
    if isinstance(value, bool) or not isinstance(value, int | float):
        return False
    if datatype in INTEGER_RANGES:
        low, high = INTEGER_RANGES[datatype]
        return isinstance(value, int) and low <= value <= high
    return True


def _looser(shipped: Signal | None, own: Signal) -> str | None:
    """What an overlay would loosen of a leaf that ships."""
    if shipped is None or not own.writable:
        return None
    if not shipped.writable:
        return "this leaf is never written by voice: leave `write` out"
    if own.datatype != shipped.datatype:
        return f"its datatype is {shipped.datatype}"
    low = shipped.minimum is not None and (own.minimum is None or own.minimum < shipped.minimum)
    high = shipped.maximum is not None and (own.maximum is None or own.maximum > shipped.maximum)
    values = shipped.allowed is not None and (own.allowed is None or not set(own.allowed) <= set(shipped.allowed))
    moving = (shipped.stationary and not own.stationary) or own.stationary_unless != shipped.stationary_unless
    if low or high or values or moving or not set(shipped.on_needs) <= set(own.on_needs):
        return "its limits may be tighter than the shipped ones, not looser: repeat min, max, allowed, stationary"
    return None
