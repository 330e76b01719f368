"""Lights, massage, climate modes, lists of the player and seat moves: what is written, refused and said."""

from __future__ import annotations

from typing import Any

import pytest

from pipeline.frames import ToolCall, ToolResult
from pipeline.nlg.actions import say
from pipeline.nlg.questions import wish_of
from pipeline.vehicle.places import load_places
from pipeline.vehicle.signals import EmbeddedTree, SignalAccess, load_signals
from pipeline.vehicle.tools import Toolbox
from pipeline.vehicle.writes import COLOR_CODES

LOW = "Vehicle.Body.Lights.Beam.Low.IsOn"
SEAT = "Vehicle.Cabin.Seat.Row1.DriverSide."
AMBIENT = "Vehicle.Cabin.Light.AmbientLight.Row2.PassengerSide."


@pytest.fixture
def tree() -> EmbeddedTree:
    return EmbeddedTree()


@pytest.fixture
def tools(tree: EmbeddedTree) -> Toolbox:
    return Toolbox(SignalAccess(tree), load_places())


def run(tools: Toolbox, name: str, **arguments: Any) -> ToolResult:
    return tools.execute(ToolCall(name, arguments), 1)


def stop_the_car(tree: EmbeddedTree) -> None:
    tree.simulate("Vehicle.Speed", 0.0)
    tree.simulate("Vehicle.IsMoving", False)


@pytest.mark.parametrize(
    ("name", "arguments", "path", "value", "said"),
    [
        ("set_seat_massage", {"zone": "driver", "action": "set", "value": 67.0}, SEAT + "Massage.Level", 67, "67"),
        ("set_exterior_light", {"which": "rear_fog", "on": True}, "Vehicle.Body.Lights.Fog.Rear.IsOn", True, "is on"),
        ("set_climate_mode", {"mode": "auto", "on": True}, "Vehicle.Cabin.HVAC.IsAutoActive", True, "automatic"),
        ("set_screen", {"on": False}, "Vehicle.Cabin.Infotainment.HMI.IsScreenOn", False, "off"),
        ("set_ambient_color", {"color": "blue"}, AMBIENT + "Color", "#0000FF", "blue"),
        ("set_volume", {"target": "call", "action": "set", "value": 70.0},
         "Vehicle.Cabin.Infotainment.Phone.Volume", 70, "call volume"),
        ("control_media", {"action": "shuffle"}, "Vehicle.Cabin.Infotainment.Media.PlaybackMode", "SHUFFLE", "Shuffle"),
        ("show_page", {"page": "media"}, "Vehicle.Cabin.Infotainment.HMI.Page", "MEDIA", "media page"),
        ("tune_radio", {"value": 101.5},
         "Vehicle.Cabin.Infotainment.Media.SelectedURI", "radio:fm?mhz=101.5", "101.5"),
        ("set_air_direction", {"direction": "feet", "zone": "rear"},
         "Vehicle.Cabin.HVAC.Station.Row2.Driver.AirDistribution", "DOWN", "feet"),
    ],
)  # fmt: skip
def test_it_is_written_read_back_and_said(
    tools: Toolbox, tree: EmbeddedTree, name: str, arguments: dict[str, Any], path: str, value: object, said: str
) -> None:
    done = run(tools, name, **arguments)
    assert (done.status, tree.read(path)) == ("done", value)
    assert said in say([done], "en")
    assert say([done], "zh")
    assert wish_of(done.call, "en")
    assert wish_of(done.call, "zh")
    tools.roll_back(1)
    assert tree.snapshot() == EmbeddedTree().snapshot()
    tree.stick(path)
    stuck = run(tools, name, **arguments)
    assert (stuck.status, stuck.reason) == ("failed", "not_confirmed")


def test_high_beam_and_fog_lights_go_with_the_headlights_only(tools: Toolbox, tree: EmbeddedTree) -> None:
    assert run(tools, "set_exterior_light", which="high_beam", on=True).status == "done"
    tree.simulate(LOW, False)
    for which in ("high_beam", "rear_fog"):
        refused = run(tools, "set_exterior_light", which=which, on=True)
        assert (refused.status, refused.reason) == ("refused", "needs_headlights")
        assert "headlights" in say([refused], "en")
        assert run(tools, "set_exterior_light", which=which, on=False).status == "done"


def test_low_beam_and_position_lights_stay_on(tools: Toolbox, tree: EmbeddedTree) -> None:
    before = tree.snapshot()
    assert run(tools, "set_exterior_light", which="position", on=False).reason == "forbidden"
    assert run(tools, "set_headlights", on=False).reason == "forbidden"
    assert tree.snapshot() == before


def test_fog_lights_off_are_all_of_them(tools: Toolbox, tree: EmbeddedTree) -> None:
    run(tools, "set_exterior_light", which="rear_fog", on=True)
    run(tools, "set_exterior_light", which="fog", on=True)
    assert run(tools, "set_exterior_light", which="fog", on=False).status == "done"
    assert not any(tree.read(f"Vehicle.Body.Lights.Fog.{end}.IsOn") for end in ("Front", "Rear"))


@pytest.mark.parametrize("move", ["forward", "back", "up", "down", "recline", "upright"])
def test_a_seat_moves_at_standstill_only(tools: Toolbox, tree: EmbeddedTree, move: str) -> None:
    before = tree.snapshot()
    moving = run(tools, "set_seat_position", move=move, zone="driver")
    assert (moving.status, moving.reason, tree.snapshot()) == ("refused", "forbidden_while_moving", before)
    stop_the_car(tree)
    assert run(tools, "set_seat_position", move=move, zone="driver").status == "done"
    changed = [path for path, value in tree.snapshot().items() if before[path] != value]
    assert [path for path in changed if path.startswith(SEAT)] == [path for path in changed if "Seat" in path] != []


def test_a_seat_stops_at_its_end(tools: Toolbox, tree: EmbeddedTree) -> None:
    stop_the_car(tree)
    tree.simulate(SEAT + "Position", 300)
    end = run(tools, "set_seat_position", move="back", zone="driver")
    assert (end.status, end.reason, tree.read(SEAT + "Position")) == ("refused", "out_of_range", 300)
    assert "毫米" in say([end], "zh")


def test_a_light_that_is_off_has_no_brightness_to_add_to(tools: Toolbox, tree: EmbeddedTree) -> None:
    assert run(tools, "set_ambient_light", zone="all", action="change", value=25.0).status == "done"
    assert (tree.read(AMBIENT + "IsLightOn"), tree.read(AMBIENT + "Intensity")) == (True, 25)
    run(tools, "set_ambient_light", zone="all", action="change", value=25.0)
    assert tree.read(AMBIENT + "Intensity") == 50
    assert run(tools, "set_ambient_light", zone="all", action="set", value=0.0).status == "done"
    assert tree.read(AMBIENT + "IsLightOn") is False


def test_rapid_cooling_ends_rapid_heating(tools: Toolbox, tree: EmbeddedTree) -> None:
    run(tools, "set_climate_mode", mode="rapid_heating", on=True)
    run(tools, "set_climate_mode", mode="rapid_cooling", on=True)
    assert tree.read("Vehicle.Cabin.HVAC.IsRapidHeatingActive") is False


def test_a_question_about_lights_names_those_that_are_on(tools: Toolbox) -> None:
    run(tools, "set_exterior_light", which="front_fog", on=True)
    answer = say([run(tools, "ask_vehicle", item="exterior_lights", zone="any")], "en")
    assert answer == "The low beam and front fog lights are on, the other lights outside are off."


def test_every_color_may_be_written() -> None:
    allowed = load_signals()[AMBIENT + "Color"].allowed
    assert allowed is not None
    assert set(allowed) == set(COLOR_CODES.values())


def test_a_frequency_outside_the_band_is_refused_with_the_band(tools: Toolbox, tree: EmbeddedTree) -> None:
    before = tree.snapshot()
    refused = run(tools, "tune_radio", value=120.0)
    assert (refused.status, refused.reason, tree.snapshot()) == ("refused", "out_of_range", before)
    assert "87.5 to 108 megahertz" in say([refused], "en")


def test_what_is_playing_is_the_frequency(tools: Toolbox) -> None:
    run(tools, "tune_radio", value=99.3)
    assert say([run(tools, "ask_vehicle", item="media", zone="any")], "en") == "This is F M 99.3."


def test_a_car_without_the_leaf_says_so(tree: EmbeddedTree) -> None:
    """A databroker without the overlay: nothing is written, and the reply names why."""
    path = "Vehicle.Cabin.HVAC.IsEcoActive"
    signals = {known: signal for known, signal in load_signals().items() if known != path}
    tools = Toolbox(SignalAccess(EmbeddedTree(signals)), load_places())
    result = run(tools, "set_climate_mode", mode="eco", on=True)
    assert (result.status, result.reason) == ("failed", "unknown_signal")
    assert say([result], "en") == "That did not work: this car has no such function."
