"""The databroker backend against a fake kuksa.val.v2 server on a unix socket."""

from __future__ import annotations

from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from pathlib import Path
from typing import Any

import pytest

grpc = pytest.importorskip("grpc", reason="the vss extra is not installed")

from models.errors import StartupError  # noqa: E402
from pipeline.frames import ToolCall  # noqa: E402
from pipeline.vehicle import kuksa_proto as proto  # noqa: E402
from pipeline.vehicle.kuksa import KuksaTree  # noqa: E402
from pipeline.vehicle.places import load_places  # noqa: E402
from pipeline.vehicle.signals import SignalAccess, SignalError, load_signals  # noqa: E402
from pipeline.vehicle.tools import Toolbox  # noqa: E402

DRIVER = "Vehicle.Cabin.HVAC.Station.Row1.Driver.Temperature"
FIELDS = {"boolean": "bool", "string": "string", "float": "float", "double": "double", "int8": "int32"}


class FakeBroker:
    """Holds values by path; `fail` maps a path to the status Actuate answers; `deaf` paths accept and do nothing."""

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.fail: dict[str, Any] = {}
        self.deaf: set[str] = set()
        self.actuated: list[str] = []
        self.seen_tokens: list[str | None] = []
        for path, signal in load_signals().items():
            field = FIELDS.get(signal.datatype, "uint32")
            self.values[path] = proto.ValueMessage(**{field: signal.initial})

    def get(self, request: Any, context: Any) -> Any:
        path = request.signal_id.path
        if path not in self.values:
            context.abort(grpc.StatusCode.NOT_FOUND, "no such signal")
        value = self.values[path]
        return proto.GetValueResponse(data_point=proto.Datapoint() if value is None else proto.Datapoint(value=value))

    def actuate(self, request: Any, context: Any) -> Any:
        path = request.signal_id.path
        self.seen_tokens.append(dict(context.invocation_metadata()).get("authorization"))
        if path in self.fail:
            context.abort(self.fail[path], "refused by the fake")
        self.actuated.append(path)
        if path not in self.deaf:
            self.values[path] = request.value
        return proto.ActuateResponse()


@pytest.fixture
def broker() -> FakeBroker:
    return FakeBroker()


@pytest.fixture
def backend(broker: FakeBroker, tmp_path: Path) -> Iterator[KuksaTree]:
    socket = tmp_path / "broker.sock"
    server = grpc.server(ThreadPoolExecutor(2))
    handlers = {
        "GetValue": grpc.unary_unary_rpc_method_handler(
            broker.get, proto.GetValueRequest.FromString, proto.GetValueResponse.SerializeToString
        ),
        "Actuate": grpc.unary_unary_rpc_method_handler(
            broker.actuate, proto.ActuateRequest.FromString, proto.ActuateResponse.SerializeToString
        ),
    }
    server.add_generic_rpc_handlers((grpc.method_handlers_generic_handler(proto.SERVICE, handlers),))
    server.add_insecure_port(f"unix:{socket}")
    server.start()
    token = tmp_path / "token"
    token.write_text("narrow-scope\n", encoding="utf-8")
    client = KuksaTree.connect(socket, token_file=token, deadline_s=2.0, settle_s=0.1)
    yield client
    client.close()
    server.stop(0).wait()


def toolbox(backend: KuksaTree) -> Toolbox:
    return Toolbox(SignalAccess(backend), load_places())


def set_driver(value: float) -> ToolCall:
    return ToolCall("set_temperature", {"zone": "driver", "action": "set", "value": value})


def test_a_value_is_actuated_and_read_back(backend: KuksaTree, broker: FakeBroker) -> None:
    result = toolbox(backend).execute(set_driver(22), 1)
    assert (result.status, result.path, result.value) == ("done", DRIVER, 22.0)
    assert broker.actuated == [DRIVER]
    assert broker.seen_tokens == ["Bearer narrow-scope"]


@pytest.mark.parametrize(
    ("code", "reason"),
    [
        (grpc.StatusCode.UNAVAILABLE, "unavailable"),
        (grpc.StatusCode.INVALID_ARGUMENT, "rejected"),
        (grpc.StatusCode.PERMISSION_DENIED, "denied"),
        (grpc.StatusCode.DATA_LOSS, "unavailable"),
    ],
)
def test_what_the_broker_refuses_is_a_failure(backend: KuksaTree, broker: FakeBroker, code: Any, reason: str) -> None:
    broker.fail[DRIVER] = code
    result = toolbox(backend).execute(set_driver(22), 1)
    assert (result.status, result.reason) == ("failed", reason)
    assert broker.values[DRIVER].float == 21.0


def test_an_actuator_that_does_not_follow_is_not_confirmed(backend: KuksaTree, broker: FakeBroker) -> None:
    broker.deaf.add(DRIVER)
    result = toolbox(backend).execute(set_driver(22), 1)
    assert (result.status, result.reason, result.value) == ("failed", "not_confirmed", 21.0)


def test_half_a_call_is_undone(backend: KuksaTree, broker: FakeBroker) -> None:
    passenger = DRIVER.replace("Driver", "Passenger")
    broker.fail[passenger] = grpc.StatusCode.UNAVAILABLE
    call = ToolCall("set_temperature", {"zone": "front", "action": "set", "value": 25})
    assert toolbox(backend).execute(call, 1).status == "failed"
    assert broker.values[DRIVER].float == 21.0


def test_roll_back_goes_through_the_broker(backend: KuksaTree, broker: FakeBroker) -> None:
    tools = toolbox(backend)
    tools.execute(set_driver(25), 7)
    assert tools.roll_back(7) == 1
    assert broker.values[DRIVER].float == 21.0


def test_forbidden_and_out_of_range_never_reach_the_broker(backend: KuksaTree, broker: FakeBroker) -> None:
    access = SignalAccess(backend)
    for path in (
        "Vehicle.Chassis.ParkingBrake.IsEngaged",
        "Vehicle.Powertrain.Transmission.SelectedGear",
        "Vehicle.No",
    ):
        with pytest.raises(SignalError, match="forbidden"):
            access.write(path, 1, 1)
    assert toolbox(backend).execute(set_driver(90), 1).reason == "out_of_range"
    assert broker.actuated == []


def test_missing_value_and_unknown_path(backend: KuksaTree, broker: FakeBroker) -> None:
    broker.values["Vehicle.Speed"] = None
    with pytest.raises(SignalError, match="unavailable"):
        backend.read("Vehicle.Speed")
    assert SignalAccess(backend).moving()
    with pytest.raises(SignalError, match="unknown_signal"):
        backend.read("Vehicle.Nothing")


def test_no_socket_is_a_start_up_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="embedded signals"):
        KuksaTree.connect(tmp_path / "none.sock")
