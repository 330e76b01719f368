"""Signals of a real car through a KUKSA databroker: `kuksa.val.v2` over a unix socket, or TCP with TLS. Needs the `vss`
extra.
"""

from __future__ import annotations

import math
import time
from collections.abc import Callable
from pathlib import Path
from typing import Any

import grpc

from models.errors import BrokerAbsent, StartupError
from pipeline.vehicle import kuksa_proto as proto
from pipeline.vehicle.signals import Signal, SignalError, Value, load_signals

_FIELD = {"boolean": "bool", "string": "string", "float": "float", "double": "double"} | {
    f"{sign}{bits}": f"{sign}32" for sign in ("int", "uint") for bits in (8, 16, 32)
}
"""VSS datatype to the field of kuksa.val.v2.Value that carries it."""
_REASONS = {
    grpc.StatusCode.NOT_FOUND: "unknown_signal",
    grpc.StatusCode.PERMISSION_DENIED: "denied",
    grpc.StatusCode.UNAUTHENTICATED: "denied",
    grpc.StatusCode.INVALID_ARGUMENT: "rejected",
}
"""Whatever is not named here counts as unavailable."""
POLL_S = 0.02
CONNECT_S = 2.0
"""So long a databroker behind TCP is given to answer at start."""
_TOLERANCE = 0.01


class KuksaTree:
    """SignalBackend on a databroker. Each call has a deadline; nothing is retried, so nothing fires later.

    A car needs time to follow: `write` polls the value for up to `settle_s` before it returns; whether it got there
    is for the caller's read-back to say.
    """

    def __init__(
        self,
        channel: Any,
        signals: dict[str, Signal],
        *,
        deadline_s: float = 0.2,
        settle_s: float = 0.5,
        token: str | None = None,
        sleep: Callable[[float], None] = time.sleep,
    ) -> None:
        self.signals = signals
        self._deadline_s = deadline_s
        self._settle_s = settle_s
        self._metadata = None if token is None else (("authorization", f"Bearer {token}"),)
        self._sleep = sleep
        self._channel = channel
        self._get = _method(channel, "GetValue", proto.GetValueRequest, proto.GetValueResponse)
        self._actuate = _method(channel, "Actuate", proto.ActuateRequest, proto.ActuateResponse)

    @classmethod
    def connect(
        cls,
        where: Path | str,
        signals: dict[str, Signal] | None = None,
        *,
        ca_file: Path | None = None,
        token_file: Path | None = None,
        deadline_s: float = 0.2,
        settle_s: float = 0.5,
    ) -> KuksaTree:
        """where: the databroker's unix socket, or host:port, which takes TLS: ca_file holds the certificates (PEM) that
        its own is checked against. token_file: a JWT with the narrowest scope that serves; never logged. signals: the
        shipped ones by default.

        Raises BrokerAbsent when nobody is there, StartupError for a file that is not.
        """
        token = None if token_file is None else _content(token_file, "token").decode().strip()
        if isinstance(where, Path):
            if not where.exists():
                raise BrokerAbsent(
                    f"no databroker socket at {where}; start kuksa-databroker or use the embedded signals"
                )
            channel = grpc.insecure_channel(f"unix:{where}", options=[("grpc.default_authority", "localhost")])
        else:
            if ca_file is None:
                raise StartupError(f"the databroker at {where} is asked by TLS only: name vehicle.ca_file")
            channel = grpc.secure_channel(where, grpc.ssl_channel_credentials(_content(ca_file, "certificate")))
            try:
                grpc.channel_ready_future(channel).result(timeout=CONNECT_S)
            except grpc.FutureTimeoutError as error:
                channel.close()
                detail = "start kuksa-databroker with TLS, or look whether ca_file is that of its certificate"
                raise BrokerAbsent(f"no databroker answers at {where}; {detail}") from error
        known = load_signals() if signals is None else signals
        return cls(channel, known, deadline_s=deadline_s, settle_s=settle_s, token=token)

    def read(self, path: str) -> Value:
        """See SignalBackend. A signal without a value counts as unavailable."""
        return self.read_aged(path)[0]

    def read_aged(self, path: str) -> tuple[Value, float]:
        """See SignalBackend: by the databroker's time stamp and this machine's clock."""
        request = proto.GetValueRequest(signal_id=proto.SignalID(path=path))
        point = self._call(self._get, request, path).data_point
        kind = point.value.WhichOneof("typed_value")
        if kind is None:
            raise SignalError("unavailable", path)
        told, age_s = point.timestamp, math.inf
        if point.HasField("timestamp"):
            age_s = time.time() - float(told.seconds) - float(told.nanos) / 1e9
        return getattr(point.value, kind), age_s

    def write(self, path: str, value: Value) -> None:
        """See SignalBackend."""
        signal = self.signals.get(path)
        if signal is None:
            raise SignalError("unknown_signal", path)
        message = proto.ValueMessage(**{_FIELD[signal.datatype]: value})
        self._call(self._actuate, proto.ActuateRequest(signal_id=proto.SignalID(path=path), value=message), path)
        for _ in range(int(self._settle_s / POLL_S)):
            if _reached(self.read(path), value):
                return
            self._sleep(POLL_S)

    def close(self) -> None:
        """Close the channel."""
        self._channel.close()

    def _call(self, method: Any, request: Any, path: str) -> Any:
        try:
            return method(request, timeout=self._deadline_s, metadata=self._metadata)
        except grpc.RpcError as error:
            raise SignalError(_REASONS.get(error.code(), "unavailable"), path) from error


def _content(file: Path, what: str) -> bytes:
    try:
        return file.read_bytes()
    except OSError as error:
        raise StartupError(
            f"no readable {what} at {file} ({error.strerror}); create it or leave it out of the profile"
        ) from error


def _method(channel: Any, name: str, request: Any, response: Any) -> Any:
    return channel.unary_unary(
        f"/{proto.SERVICE}/{name}",
        request_serializer=request.SerializeToString,
        response_deserializer=response.FromString,
    )


def _reached(seen: Value, wanted: Value) -> bool:
    if isinstance(seen, bool | str) or isinstance(wanted, bool | str):
        return seen == wanted
    return abs(seen - wanted) <= _TOLERANCE
