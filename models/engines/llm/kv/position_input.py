"""A built decoder's graph with one more input: the true position of every token, `positions` int64 (texts, tokens).

GroupQueryAttention takes a token's position to be the number of rows before it, unless its tenth input says otherwise.
Where rows were dropped from a cache (models.engines.llm.kv.gate) the two differ. The graph is changed in memory when a
model is loaded, so that every build on disk serves with a gate and without one. A device needs no `onnx` package for
it: of the file's format (protobuf: fields with a number, and bytes) only what is changed is read.
"""

from __future__ import annotations

from collections.abc import Iterator
from pathlib import Path

from models.errors import InputError, ModelDamaged

POSITIONS = "positions"
_GRAPH = 7  # of ModelProto
_NODE, _INPUT = 1, 11  # of GraphProto
_NODE_INPUT, _OPERATOR, _ATTRIBUTE = 1, 4, 5  # of NodeProto
_ATTRIBUTE_NAME, _ATTRIBUTE_INT = 1, 3
_BYTES = 2  # wire type of strings and messages
_POSITION_PLACE = 9  # of the operator's inputs
_INT64 = 7


def with_positions(path: Path) -> bytes:
    """The graph at `path` whose attention takes `positions`; weights stay where they are.

    Raises ModelDamaged for a file without such attention, and InputError where a layer sees a window only: it counts
    rows, so a cache without some would show it tokens from before the window.
    """
    model = path.read_bytes()
    graphs = [value for number, value in _fields(model) if number == _GRAPH]
    changed = 0
    nodes = bytearray()
    for number, field in _fields(graphs[0] if len(graphs) == 1 else b""):
        node = field if number == _NODE and isinstance(field, bytes) else b""
        if _operator(node) == b"GroupQueryAttention":
            if _window(node) > 0:
                raise InputError(
                    f"{path.parent.name} has layers that see a window only, and no keys are dropped there: "
                    "leave llm.dialogue.kv_keep_ratio at 1.0, or name a model without windows"
                )
            given = sum(part == _NODE_INPUT for part, _ in _fields(node))
            node += _field(_NODE_INPUT, b"") * (_POSITION_PLACE - given) + _field(_NODE_INPUT, POSITIONS.encode())
            changed += 1
        nodes += _whole(number, node or field)
    if not changed:
        raise ModelDamaged(f"{path} has no GroupQueryAttention, which takes a token's position")
    nodes += _field(_INPUT, _described())
    rest = b"".join(_whole(number, value) for number, value in _fields(model) if number != _GRAPH)
    return rest + _field(_GRAPH, bytes(nodes))


def _described() -> bytes:
    """ValueInfoProto of the input."""
    dims = b"".join(_field(1, _field(2, name)) for name in (b"texts", b"tokens"))
    tensor = _whole(1, _INT64) + _field(2, dims)
    return _field(1, POSITIONS.encode()) + _field(2, _field(1, tensor))


def _operator(node: bytes) -> bytes:
    return next((value for number, value in _fields(node) if number == _OPERATOR and isinstance(value, bytes)), b"")


def _window(node: bytes) -> int:
    """`local_window_size`; 0 for none."""
    for number, value in _fields(node):
        if number == _ATTRIBUTE and isinstance(value, bytes):
            parts = dict(_fields(value))
            if parts.get(_ATTRIBUTE_NAME) == b"local_window_size":
                size = parts.get(_ATTRIBUTE_INT, 0)
                return size if isinstance(size, int) and size < 1 << 63 else 0  # -1 is written as 2**64 - 1
    return 0


# --- the format ----------------------------------------------------------------------------------------------------
def _fields(message: bytes | int) -> Iterator[tuple[int, bytes | int]]:
    """Number and value of every field. ONNX graphs have numbers, bytes and single floats in them; of a float its four
    bytes are given as a number, and it is written by none here."""
    assert isinstance(message, bytes)
    at = 0
    while at < len(message):
        key, at = _number(message, at)
        kind = key & 7
        if kind == _BYTES:
            size, at = _number(message, at)
            yield key >> 3, message[at : at + size]
            at += size
        elif kind == 0:
            value, at = _number(message, at)
            yield key >> 3, value
        elif kind == 5:
            yield key >> 3, int.from_bytes(message[at : at + 4], "little")
            at += 4
        else:
            raise ModelDamaged(f"a graph with a field of wire type {kind} cannot be read; build the model again")


def _number(message: bytes, at: int) -> tuple[int, int]:
    value = shift = 0
    while True:
        byte = message[at]
        at += 1
        value |= (byte & 0x7F) << shift
        shift += 7
        if byte < 0x80:
            return value, at


def _varint(value: int) -> bytes:
    out = bytearray()
    while value >= 0x80:
        out.append(value & 0x7F | 0x80)
        value >>= 7
    out.append(value)
    return bytes(out)


def _field(number: int, value: bytes) -> bytes:
    return _varint(number << 3 | _BYTES) + _varint(len(value)) + value


def _whole(number: int, value: bytes | int) -> bytes:
    return _field(number, value) if isinstance(value, bytes) else _varint(number << 3) + _varint(value)
