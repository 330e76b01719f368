"""The part of kuksa.val.v2 that Cockpit speaks, as protobuf classes made at import: GetValue and Actuate.

Field numbers and types are those of the KUKSA databroker's proto/kuksa/val/v2/{types,val}.proto; fields Cockpit never
reads are left out, which the wire format allows.
"""

from __future__ import annotations

from typing import Any

from google.protobuf import descriptor_pb2, descriptor_pool, message_factory, timestamp_pb2

PACKAGE = "kuksa.val.v2"
SERVICE = f"{PACKAGE}.VAL"
_F = descriptor_pb2.FieldDescriptorProto
_VALUE_FIELDS = (
    ("string", 11, _F.TYPE_STRING),
    ("bool", 12, _F.TYPE_BOOL),
    ("int32", 13, _F.TYPE_SINT32),
    ("int64", 14, _F.TYPE_SINT64),
    ("uint32", 15, _F.TYPE_UINT32),
    ("uint64", 16, _F.TYPE_UINT64),
    ("float", 17, _F.TYPE_FLOAT),
    ("double", 18, _F.TYPE_DOUBLE),
)


def _build() -> dict[str, Any]:
    file = descriptor_pb2.FileDescriptorProto(
        name="cockpit/kuksa_val_v2_subset.proto",
        package=PACKAGE,
        syntax="proto3",
        dependency=[timestamp_pb2.DESCRIPTOR.name],
    )
    _choice(file, "SignalID", "signal", (("id", 1, _F.TYPE_INT32), ("path", 2, _F.TYPE_STRING)))
    _choice(file, "Value", "typed_value", _VALUE_FIELDS)
    _message(file, "Datapoint", ("timestamp", 1, ".google.protobuf.Timestamp"), ("value", 2, "Value"))
    _message(file, "GetValueRequest", ("signal_id", 1, "SignalID"))
    _message(file, "GetValueResponse", ("data_point", 1, "Datapoint"))
    _message(file, "ActuateRequest", ("signal_id", 1, "SignalID"), ("value", 2, "Value"))
    _message(file, "ActuateResponse")
    pool = descriptor_pool.DescriptorPool()
    pool.AddSerializedFile(timestamp_pb2.DESCRIPTOR.serialized_pb)
    pool.Add(file)
    names = [message.name for message in file.message_type]
    return {name: message_factory.GetMessageClass(pool.FindMessageTypeByName(f"{PACKAGE}.{name}")) for name in names}


def _choice(file: Any, name: str, oneof: str, fields: tuple[tuple[str, int, Any], ...]) -> None:
    message = file.message_type.add(name=name)
    message.oneof_decl.add(name=oneof)
    for field, number, kind in fields:
        message.field.add(name=field, number=number, type=kind, label=_F.LABEL_OPTIONAL, oneof_index=0)


def _message(file: Any, name: str, *fields: tuple[str, int, str]) -> None:
    message = file.message_type.add(name=name)
    for field, number, kind in fields:
        full = kind if kind.startswith(".") else f".{PACKAGE}.{kind}"
        message.field.add(name=field, number=number, type=_F.TYPE_MESSAGE, type_name=full, label=_F.LABEL_OPTIONAL)


_CLASSES = _build()
SignalID = _CLASSES["SignalID"]
ValueMessage = _CLASSES["Value"]
Datapoint = _CLASSES["Datapoint"]
GetValueRequest = _CLASSES["GetValueRequest"]
GetValueResponse = _CLASSES["GetValueResponse"]
ActuateRequest = _CLASSES["ActuateRequest"]
ActuateResponse = _CLASSES["ActuateResponse"]
