"""Signals of a real car through a KUKSA databroker (`kuksa.val.v2` over a unix socket). Needs the `vss` extra."""

from __future__ import annotations

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
        self._signals = signals
        self._deadline_s = deadline_s
        self._settle_s = settle_s
        self._metadata = None if token is None else (("authorization", f"Bearer {token}"),)
        self._sleep = sleep
        self._channel = channel
        self._get = _method(channel, "GetValue", proto.GetValueRequest, proto.GetValueResponse)
        self._actuate = _method(channel, "Actuate", proto.ActuateRequest, proto.ActuateResponse)

    @classmethod
    def connect(
        cls, socket: Path, *, token_file: Path | None = None, deadline_s: float = 0.2, settle_s: float = 0.5
    ) -> KuksaTree:
        """socket: the databroker's unix socket. token_file: a JWT with the narrowest scope that serves; never logged.

        Raises BrokerAbsent when the socket is not there, StartupError for a token file that is not.
        """
        if not socket.exists():
            raise BrokerAbsent(f"no databroker socket at {socket}; start kuksa-databroker or use the embedded signals")
        if token_file is not None and not token_file.is_file():
            raise StartupError(f"no token file at {token_file}; create it or leave it out of the profile")
        token = None if token_file is None else token_file.read_text(encoding="utf-8").strip()
        channel = grpc.insecure_channel(f"unix:{socket}", options=[("grpc.default_authority", "localhost")])
        return cls(channel, load_signals(), deadline_s=deadline_s, settle_s=settle_s, token=token)

    def read(self, path: str) -> Value:
        """See SignalBackend. A signal without a value counts as unavailable."""
        request = proto.GetValueRequest(signal_id=proto.SignalID(path=path))
        point = self._call(self._get, request, path).data_point
        kind = point.value.WhichOneof("typed_value")
        if kind is None:
            raise SignalError("unavailable", path)
        value: Value = getattr(point.value, kind)
        return value

    def write(self, path: str, value: Value) -> None:
        """See SignalBackend."""
        signal = self._signals.get(path)
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
