"""Signals and tools: what may be written, what is refused and why, and that success means read back."""

from __future__ import annotations

import random
from datetime import datetime
from typing import Any

import pytest

from pipeline.frames import ToolCall, ToolResult
from pipeline.nlg.actions import say
from pipeline.vehicle.driver_side import as_meant
from pipeline.vehicle.places import load_places
from pipeline.vehicle.schemas import BY_ACTION, SIMPLE, TOOL_NAMES, schema_of
from pipeline.vehicle.signals import EmbeddedTree, SignalAccess, SignalError, load_signals
from pipeline.vehicle.tools import Toolbox

DRIVER = "Vehicle.Cabin.HVAC.Station.Row1.Driver.Temperature"
VOLUME = "Vehicle.Cabin.Infotainment.Media.Volume"
NEVER = [
    "Vehicle.Powertrain.Transmission.SelectedGear",
    "Vehicle.Chassis.ParkingBrake.IsEngaged",
    "Vehicle.MotionManagement.Steering.SteeringWheel.AngleTarget",
    "Vehicle.ADAS.ABS.IsEnabled",
    "Vehicle.ADAS.ESC.IsEnabled",
    "Vehicle.ADAS.CruiseControl.IsActive",
    "Vehicle.Cabin.Door.Row1.DriverSide.IsOpen",
    "Vehicle.Cabin.IsWindowChildLockEngaged",
    "Vehicle.Body.Hood.IsOpen",
    "Vehicle.Body.Horn.IsActive",
    "Vehicle.Cabin.Seat.Row2.DriverSide.Position",
    "Vehicle.Speed",
]


@pytest.fixture
def tree() -> EmbeddedTree:
    return EmbeddedTree()


@pytest.fixture
def tools(tree: EmbeddedTree) -> Toolbox:
    return Toolbox(SignalAccess(tree), load_places(), lambda: datetime(2026, 11, 29, 9, 5))


def run(tools: Toolbox, name: str, turn_id: int = 1, **arguments: Any) -> ToolResult:
    return tools.execute(ToolCall(name, arguments), turn_id)


def test_every_tool_writes_only_allowed_paths_and_every_schema_is_closed() -> None:
    for name in TOOL_NAMES:
        schemas = schema_of(name)["anyOf"] if name in BY_ACTION else [schema_of(name)]
        assert all(schema["additionalProperties"] is False for schema in schemas), name
    signals = load_signals()
    assert all(not signals[path].writable for path in NEVER)
    assert set(SIMPLE).isdisjoint(BY_ACTION)


@pytest.mark.parametrize("path", [*NEVER, "Vehicle.*", "Vehicle.Cabin", "", "vehicle.speed"])
def test_no_other_path_can_be_written(tools: Toolbox, tree: EmbeddedTree, path: str) -> None:
    before = tree.snapshot()
    with pytest.raises(SignalError, match="forbidden"):
        tools.access.write(path, 1, 1)
    assert tree.snapshot() == before


@pytest.mark.parametrize("value", [90, -300, 15.9, 30.1, 1e9])
def test_out_of_range_is_refused_and_nothing_moves(tools: Toolbox, tree: EmbeddedTree, value: float) -> None:
    before = tree.snapshot()
    result = run(tools, "set_temperature", zone="all", action="set", value=value)
    assert (result.status, result.reason) == ("refused", "out_of_range")
    assert (result.detail["min"], result.detail["max"]) == (16, 30)
    assert tree.snapshot() == before


@pytest.mark.parametrize("value", [float("nan"), float("inf"), "max", "22", None, True, [22], {"value": 22}])
def test_what_is_no_number_is_refused(tools: Toolbox, tree: EmbeddedTree, value: object) -> None:
    before = tree.snapshot()
    result = run(tools, "set_temperature", zone="driver", action="set", value=value)
    assert (result.status, result.reason) == ("refused", "invalid_arguments")
    assert tree.snapshot() == before


@pytest.mark.parametrize(
    ("arguments", "reason"),
    [
        ({"zone": "moon", "action": "set", "value": 22}, "unknown_value"),
        ({"zone": "driver", "action": "toggle", "value": 22}, "invalid_arguments"),
        ({"zone": "driver", "action": "set"}, "invalid_arguments"),
        ({"zone": "driver", "action": "set", "value": 22, "path": NEVER[0]}, "invalid_arguments"),
    ],
)
def test_arguments_outside_the_schema(tools: Toolbox, arguments: dict[str, Any], reason: str) -> None:
    assert tools.execute(ToolCall("set_temperature", arguments), 1).reason == reason


def test_unknown_tool(tools: Toolbox) -> None:
    assert run(tools, "set_signal", path=NEVER[0], value=1).reason == "unknown_tool"


def test_repeated_plus_five_stops_at_the_limit_without_clamping(tools: Toolbox, tree: EmbeddedTree) -> None:
    results = [run(tools, "set_temperature", zone="driver", action="change", value=5) for _ in range(3)]
    assert [result.status for result in results] == ["done", "refused", "refused"]
    assert tree.read(DRIVER) == 26.0
    assert results[1].detail["asked"] == 31.0


def test_a_relative_change_of_all_zones_is_all_or_nothing(tools: Toolbox, tree: EmbeddedTree) -> None:
    tree.simulate(DRIVER.replace("Driver", "Passenger"), 29.0)
    assert run(tools, "set_temperature", zone="all", action="change", value=2).status == "refused"
    assert tree.read(DRIVER) == 21.0


def test_success_is_what_was_read_back(tools: Toolbox, tree: EmbeddedTree) -> None:
    done = run(tools, "set_volume", target="media", action="set", value=60)
    assert (done.status, done.path, done.value) == ("done", VOLUME, 60)
    tree.stick(VOLUME)
    stuck = run(tools, "set_volume", target="media", action="set", value=10)
    assert (stuck.status, stuck.reason, stuck.value) == ("failed", "not_confirmed", 60)


def test_a_failing_actuator_is_a_failure_and_half_calls_are_undone(tools: Toolbox, tree: EmbeddedTree) -> None:
    tree.break_path(DRIVER.replace("Driver", "Passenger"))
    result = run(tools, "set_temperature", zone="front", action="set", value=25)
    assert (result.status, result.reason) == ("failed", "unavailable")
    assert tree.read(DRIVER) == 21.0
    tree.mend()
    assert run(tools, "set_temperature", zone="front", action="set", value=25).status == "done"


@pytest.mark.parametrize("speed", [62.0, float("nan"), 0.0])
def test_doors_stay_locked_unless_the_car_is_known_to_stand(tools: Toolbox, tree: EmbeddedTree, speed: float) -> None:
    tree.simulate("Vehicle.Speed", speed)
    assert run(tools, "set_door_locks", locked=False, zone="all").reason == "forbidden_while_moving"
    assert run(tools, "set_trunk", open=True).reason == "forbidden_while_moving"
    assert run(tools, "set_door_locks", locked=True, zone="all").status == "done"


def test_doors_unlock_at_standstill(tools: Toolbox, tree: EmbeddedTree) -> None:
    tree.simulate("Vehicle.Speed", 0.0)
    tree.simulate("Vehicle.IsMoving", False)
    assert run(tools, "set_door_locks", locked=False, zone="all").status == "done"


SHADE = "Vehicle.Cabin.Sunroof.Shade.Position"


@pytest.mark.parametrize(
    ("said", "position", "en"),
    [
        ({"action": "set", "value": 100}, 0, "The sunshade is 100 percent open."),
        ({"action": "set", "value": 0}, 100, "The sunshade is closed."),
        ({"action": "set", "value": 30}, 70, "The sunshade is 30 percent open."),
        ({"action": "change", "value": 20}, 40, "The sunshade is 60 percent open."),
        ({"action": "change", "value": -20}, 80, "The sunshade is 20 percent open."),
    ],
)
def test_the_sunshade_counts_from_open(
    tools: Toolbox, tree: EmbeddedTree, said: dict[str, Any], position: int, en: str
) -> None:
    """VSS: 0 is the start position, which of a shade is open."""
    tree.simulate(SHADE, 60)
    result = run(tools, "set_sunshade", **said)
    assert (result.status, tree.read(SHADE), say([result], "en")) == ("done", position, en)
    tree.simulate(SHADE, 60)
    assert run(tools, "set_sunshade", action="change", value=70).reason == "out_of_range"


def test_low_beam_can_be_switched_on_but_not_off(tools: Toolbox) -> None:
    assert run(tools, "set_headlights", on=True).status == "done"
    assert run(tools, "set_headlights", on=False).reason == "forbidden"


def test_roll_back_restores_signals_route_and_volume(tools: Toolbox, tree: EmbeddedTree) -> None:
    run(tools, "navigate_to", 1, place="hotel", avoid=[])
    before = tree.snapshot()
    run(tools, "navigate_to", 2, place="airport", avoid=["toll"])
    run(tools, "set_temperature", 2, zone="driver", action="set", value=25)
    run(tools, "set_temperature", 2, zone="driver", action="change", value=1)
    run(tools, "set_sunroof", 2, position="open")
    assert tools.roll_back(2) > 0
    after = tree.snapshot()
    after["Vehicle.Cabin.Sunroof.Position"] = before["Vehicle.Cabin.Sunroof.Position"]
    assert after == before
    assert tools.route.place is not None
    assert tools.route.place.kind == "hotel"
    assert tools.roll_back(2) == 0


def test_navigation_takes_the_nearest_and_refuses_the_unknown(tools: Toolbox, tree: EmbeddedTree) -> None:
    assert run(tools, "navigate_to", place="airport", avoid=[]).value == "airport_hongqiao"
    tree.simulate("Vehicle.CurrentLocation.Longitude", 121.8)
    assert run(tools, "navigate_to", place="airport", avoid=[]).value == "airport_pudong"
    unknown = run(tools, "navigate_to", place="atlantis", avoid=[])
    assert (unknown.status, unknown.reason) == ("refused", "unknown_place")
    assert run(tools, "ask_distance", place="atlantis").reason == "unknown_place"
    assert run(tools, "cancel_navigation").value == "cancelled"
    assert tools.route.place is None


def test_mute_and_restore_the_volume(tools: Toolbox, tree: EmbeddedTree) -> None:
    run(tools, "set_volume", target="media", action="set", value=0)
    assert tree.read(VOLUME) == 0
    assert run(tools, "restore_volume", target="media").value == 35


def test_a_query_is_one_harmless_line(tools: Toolbox, tree: EmbeddedTree) -> None:
    result = run(tools, "play_media", query="jazz\n\x00 <b>ignore\trules</b>")
    assert result.status == "done"
    assert tree.read("Vehicle.Cabin.Infotainment.Media.SelectedURI") == "media:search?q=jazz <b>ignore rules</b>"
    assert run(tools, "play_media", query="x" * 81).reason == "invalid_arguments"


def test_answers_come_from_the_car(tools: Toolbox, tree: EmbeddedTree) -> None:
    tree.simulate("Vehicle.Speed", 88.0)
    assert run(tools, "ask_vehicle", item="speed", zone="any").value == 88.0
    assert run(tools, "ask_vehicle", item="time", zone="any").value == "09:05"
    before = tree.snapshot()
    for item in SIMPLE["ask_vehicle"]["properties"]["item"]["enum"]:
        assert run(tools, "ask_vehicle", item=item, zone="any").status == "done", item
    assert tree.snapshot() == before


def test_random_calls_never_touch_a_forbidden_path(tools: Toolbox, tree: EmbeddedTree) -> None:
    chance = random.Random(7)
    allowed = {path for path, signal in load_signals().items() if signal.writable} | {"Vehicle.Cabin.Sunroof.Position"}
    odd: list[Any] = [
        0,
        1,
        -1,
        50,
        22,
        100,
        101,
        1e300,
        -5,
        True,
        False,
        "driver",
        "all",
        "max",
        "set",
        "change",
        None,
        [],
    ]
    before = tree.snapshot()
    for turn in range(3000):
        name = chance.choice(TOOL_NAMES)
        schema = chance.choice(list(BY_ACTION[name].values())) if name in BY_ACTION else SIMPLE[name]
        arguments = {}
        for key, rule in schema["properties"].items():
            arguments[key] = (
                chance.choice(rule["enum"]) if "enum" in rule and chance.random() < 0.7 else chance.choice(odd)
            )
        result = tools.execute(ToolCall(name, arguments), turn)
        assert result.status in ("done", "refused", "failed")
    changed = {path for path, value in tree.snapshot().items() if value != before[path]}
    assert changed <= allowed


@pytest.mark.parametrize(
    ("positions", "zone", "en", "zh"),
    [
        ((40, 40, 40, 40), "any", "All windows are open at 40 percent.", "所有车窗都开到百分之40。"),
        ((100, 100, 100, 100), "any", "All windows are open.", "所有车窗都开着。"),
        ((0, 0, 0, 0), "any", "All windows are closed.", "所有车窗都关着。"),
        ((40, 0, 0, 0), "driver", "The driver window is open at 40 percent.", "主驾车窗开到百分之40。"),
        ((0, 0, 50, 50), "front", "The driver and passenger windows are closed.", "主驾、副驾车窗关着。"),
        (
            (100, 30, 0, 0),
            "any",
            "The driver window is open, the passenger window is open at 30 percent, "
            "the rear left and rear right windows are closed.",
            "主驾车窗开着，副驾车窗开到百分之30，左后、右后车窗关着。",
        ),
    ],
)
def test_the_answer_about_windows_is_their_true_state(positions: tuple[int, ...], zone: str, en: str, zh: str) -> None:
    tree = EmbeddedTree()
    toolbox = Toolbox(SignalAccess(tree), load_places())
    seats = [(row, side) for row in (1, 2) for side in ("Driver", "Passenger")]
    for (row, side), position in zip(seats, positions, strict=True):
        tree.simulate(f"Vehicle.Cabin.Door.Row{row}.{side}Side.Window.Position", position)
    result = toolbox.execute(ToolCall("ask_vehicle", {"item": "windows", "zone": zone}), 1)
    assert (say([result], "en"), say([result], "zh")) == (en, zh)


WINDOW = "Vehicle.Cabin.Door.{}Side.Window.Position"


def test_the_window_that_does_not_follow_is_named(tools: Toolbox, tree: EmbeddedTree) -> None:
    tree.stick(WINDOW.format("Row2.Driver"))
    result = run(tools, "set_window", zone="all", action="set", value=100)
    assert (result.status, result.reason) == ("failed", "not_confirmed")
    assert say([result], "en") == "The rear left window did not respond; the others are done."
    assert say([result], "zh") == "左后车窗没有响应，其他的已完成。"
    assert tree.read(WINDOW.format("Row1.Driver")) == 100
    tree.simulate("Vehicle.Cabin.DriverPosition", "RIGHT")
    assert "rear right" in say([run(tools, "set_window", zone="all", action="set", value=50)], "en")


def test_left_is_left_where_the_driver_sits_on_the_right(tools: Toolbox, tree: EmbeddedTree) -> None:
    tree.simulate("Vehicle.Cabin.DriverPosition", "RIGHT")
    result = run(tools, "set_window", zone="rear_left", action="set", value=100)
    assert result.call.arguments["zone"] == "rear_left"
    assert tree.read(WINDOW.format("Row2.Passenger")) == 100
    assert tree.read(WINDOW.format("Row2.Driver")) == 0
    meant = {
        "open the left window": ("driver", "passenger"),
        "open the driver's window": ("driver", "driver"),
        "打开右边的车窗": ("passenger", "driver"),
        "open the window behind the driver": ("rear_left", "rear_right"),
        "open the rear left window": ("rear_left", "rear_left"),
    }
    for text, (read, zone) in meant.items():
        call = ToolCall("set_window", {"zone": read, "action": "set", "value": 100})
        assert as_meant([call], text, tools.access)[0].arguments["zone"] == zone, text


@pytest.mark.parametrize("age_s", [1.5, 60.0, float("inf"), float("nan")])
def test_a_speed_that_is_old_counts_as_moving(tools: Toolbox, tree: EmbeddedTree, age_s: float) -> None:
    tree.simulate("Vehicle.Speed", 0.0)
    tree.simulate("Vehicle.IsMoving", False)
    assert not tools.access.moving()
    tree.grow_old("Vehicle.Speed", age_s)
    assert run(tools, "set_trunk", open=True).reason == "forbidden_while_moving"
