"""An OEM's own signal overlay: leaves are added, limits tightened, and nothing is loosened."""

from __future__ import annotations

import json
from pathlib import Path
from typing import Any

import pytest

from models.errors import ConfigError
from pipeline.vehicle.overlay import signals_with
from pipeline.vehicle.signals import EmbeddedTree, SignalAccess, SignalError, load_signals

SCENT: dict[str, Any] = {
    "path": "Vehicle.Cabin.Scent.Level",
    "kind": "actuator",
    "datatype": "uint8",
    "initial": 0,
    "write": {"max": 3},
}
HEAT = "Vehicle.Cabin.HVAC.Station.Row1.Driver.Temperature"


def overlay(folder: Path, *entries: Any) -> Path:
    file = folder / "overlay.json"
    file.write_text(json.dumps({"signals": list(entries)}), encoding="utf-8")
    return file


def test_a_leaf_is_added_with_its_limits(tmp_path: Path) -> None:
    signals = signals_with(overlay(tmp_path, SCENT))
    assert set(signals) == set(load_signals()) | {SCENT["path"]}
    access = SignalAccess(EmbeddedTree(signals), signals)
    access.write(SCENT["path"], 2, 1)
    assert access.read(SCENT["path"]) == 2
    with pytest.raises(SignalError, match="out_of_range"):
        access.write(SCENT["path"], 4, 1)


def test_limits_may_be_tighter(tmp_path: Path) -> None:
    own = {"path": HEAT, "kind": "actuator", "datatype": "float", "initial": 21.0, "write": {"min": 18, "max": 26}}
    access = SignalAccess(EmbeddedTree(signals_with(overlay(tmp_path, own))), signals_with(overlay(tmp_path, own)))
    with pytest.raises(SignalError, match="out_of_range"):
        access.write(HEAT, 28.0, 1)


@pytest.mark.parametrize(
    ("change", "fault"),
    [
        ({"path": HEAT, "datatype": "float", "initial": 21.0, "write": {"min": 10, "max": 40}}, "not looser"),
        ({"path": HEAT, "datatype": "double", "initial": 21.0, "write": {"min": 18, "max": 26}}, "datatype is float"),
        ({"path": "Vehicle.Body.Trunk.Rear.IsOpen", "datatype": "boolean", "initial": False, "write": {}}, "looser"),
        ({"path": "Vehicle.Chassis.Brake.Own", "datatype": "boolean", "initial": False, "write": {}}, "by voice"),
        (
            {"path": "Vehicle.Chassis.ParkingBrake.IsEngaged", "datatype": "boolean", "initial": False, "write": {}},
            "voice",
        ),
        ({"path": "cabin.scent"}, "a VSS leaf"),
        ({"kind": "lamp"}, "kind is"),
        ({"datatype": "int"}, "datatype is one of"),
        ({"initial": "none"}, "initial must be"),
        ({"initial": 300}, "initial must be"),
        ({"write": {"min": 3, "max": 1}}, "min is above max"),
        ({"write": {"max": "high"}}, "numbers"),
        ({"write": {"allowed": ["a"]}}, "allowed is a list of uint8"),
        ({"kind": "sensor"}, "only an actuator"),
        ({"colour": "red"}, "unknown key 'colour'"),
    ],
)
def test_what_is_wrong_is_told_by_path(tmp_path: Path, change: dict[str, Any], fault: str) -> None:
    with pytest.raises(ConfigError, match=fault):
        signals_with(overlay(tmp_path, SCENT | change))


def test_every_fault_is_told(tmp_path: Path) -> None:
    with pytest.raises(ConfigError) as raised:
        signals_with(overlay(tmp_path, SCENT, SCENT, 5, SCENT | {"path": "Vehicle.Cabin.Other", "kind": "lamp"}))
    assert [line.rpartition(": ")[2] for line in str(raised.value).splitlines()] == [
        "stands twice",
        "is no object",
        "kind is actuator, sensor or attribute",
    ]


@pytest.mark.parametrize("text", ["", "[]", "{}", '{"signals": {}}', "[" * 100_000])
def test_what_is_no_overlay_is_refused(tmp_path: Path, text: str) -> None:
    file = tmp_path / "overlay.json"
    file.write_text(text, encoding="utf-8")
    with pytest.raises(ConfigError, match=r"overlay\.json"):
        signals_with(file)
    with pytest.raises(ConfigError, match="cannot be read"):
        signals_with(tmp_path / "none.json")
