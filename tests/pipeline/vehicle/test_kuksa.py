"""The databroker backend against a fake kuksa.val.v2 server on a unix socket."""

from __future__ import annotations

import math
import time
from collections.abc import Iterator
from concurrent.futures import ThreadPoolExecutor
from datetime import UTC, datetime, timedelta
from pathlib import Path
from typing import Any

import pytest
from cryptography import x509
from cryptography.hazmat.primitives import hashes, serialization
from cryptography.hazmat.primitives.asymmetric import ec
from cryptography.x509.oid import NameOID

grpc = pytest.importorskip("grpc", reason="the vss extra is not installed")

from models.errors import BrokerAbsent, StartupError  # noqa: E402
from pipeline.frames import ToolCall  # noqa: E402
from pipeline.vehicle import kuksa  # noqa: E402
from pipeline.vehicle import kuksa_proto as proto  # noqa: E402
from pipeline.vehicle.kuksa import KuksaTree  # noqa: E402
from pipeline.vehicle.places import load_places  # noqa: E402
from pipeline.vehicle.signals import SignalAccess, SignalError, load_signals  # noqa: E402
from pipeline.vehicle.tools import Toolbox  # noqa: E402

DRIVER = "Vehicle.Cabin.HVAC.Station.Row1.Driver.Temperature"
FIELDS = {"boolean": "bool", "string": "string", "float": "float", "double": "double", "int8": "int32"}


class FakeBroker:
    """Holds values by path; `fail` maps a path to the status Actuate answers; `deaf` paths accept and do nothing;
    `ages_s` says how long ago a value was told (now), infinity: nobody knows.
    """

    def __init__(self) -> None:
        self.values: dict[str, Any] = {}
        self.fail: dict[str, Any] = {}
        self.deaf: set[str] = set()
        self.ages_s: dict[str, float] = {}
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
        if value is None:
            return proto.GetValueResponse(data_point=proto.Datapoint())
        told_s = time.time() - self.ages_s.get(path, 0.0)
        whole = 0 if math.isinf(told_s) else int(told_s)
        timestamp = {"seconds": whole, "nanos": int((told_s - whole) * 1e9)} if whole else None
        return proto.GetValueResponse(data_point=proto.Datapoint(timestamp=timestamp, value=value))

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


def server_of(broker: FakeBroker) -> Any:
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
    return server


@pytest.fixture
def backend(broker: FakeBroker, tmp_path: Path) -> Iterator[KuksaTree]:
    socket = tmp_path / "broker.sock"
    server = server_of(broker)
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


@pytest.mark.parametrize(("age_s", "moving"), [(0.0, False), (5.0, True), (-math.inf, True)])
def test_a_speed_counts_by_the_brokers_time_stamp(
    backend: KuksaTree, broker: FakeBroker, age_s: float, moving: bool
) -> None:
    broker.values |= {
        "Vehicle.Speed": proto.ValueMessage(float=0.0),
        "Vehicle.IsMoving": proto.ValueMessage(bool=False),
    }
    broker.ages_s["Vehicle.Speed"] = age_s
    assert SignalAccess(backend).moving() is moving


def certificate(name: str, folder: Path) -> tuple[bytes, Path]:
    """A key (PEM), and a file with a certificate of its own for `name`."""
    key = ec.generate_private_key(ec.SECP256R1())
    subject = x509.Name([x509.NameAttribute(NameOID.COMMON_NAME, name)])
    now = datetime.now(UTC)
    made = (
        x509.CertificateBuilder()
        .subject_name(subject)
        .issuer_name(subject)
        .public_key(key.public_key())
        .serial_number(x509.random_serial_number())
        .not_valid_before(now - timedelta(hours=1))
        .not_valid_after(now + timedelta(hours=1))
        .add_extension(x509.SubjectAlternativeName([x509.DNSName(name)]), critical=False)
        .sign(key, hashes.SHA256())
    )
    file = folder / f"{name}-{key.public_key().public_numbers().x % 1000}.pem"
    file.write_bytes(made.public_bytes(serialization.Encoding.PEM))
    plain = serialization.NoEncryption()
    pem = key.private_bytes(serialization.Encoding.PEM, serialization.PrivateFormat.PKCS8, plain)
    return pem, file


def test_a_broker_behind_tcp_is_asked_by_tls(
    broker: FakeBroker, tmp_path: Path, monkeypatch: pytest.MonkeyPatch
) -> None:
    key, trusted = certificate("localhost", tmp_path)
    _, another = certificate("localhost", tmp_path)
    server = server_of(broker)
    port = server.add_secure_port("localhost:0", grpc.ssl_server_credentials([(key, trusted.read_bytes())]))
    server.start()
    try:
        backend = KuksaTree.connect(f"localhost:{port}", ca_file=trusted, deadline_s=2.0, settle_s=0.1)
        assert toolbox(backend).execute(set_driver(22), 1).status == "done"
        backend.close()
        monkeypatch.setattr(kuksa, "CONNECT_S", 0.5)
        with pytest.raises(BrokerAbsent, match="ca_file"):
            KuksaTree.connect(f"localhost:{port}", ca_file=another)
        with pytest.raises(StartupError, match="TLS only"):
            KuksaTree.connect(f"localhost:{port}")
        with pytest.raises(StartupError, match="certificate"):
            KuksaTree.connect(f"localhost:{port}", ca_file=tmp_path / "none.pem")
    finally:
        server.stop(0).wait()


def test_no_socket_is_a_start_up_error(tmp_path: Path) -> None:
    with pytest.raises(StartupError, match="embedded signals"):
        KuksaTree.connect(tmp_path / "none.sock")
