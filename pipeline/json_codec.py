"""The one place where bytes are made of objects. Inside the process nothing is serialised; this serves its edges.

Which library does what was measured (benchmarks/chain/serialise.py): orjson encodes and decodes fastest; RapidJSON
validates against JSON Schema and reads streams. A long context is not encoded anew for every request: `ContextEncoder`
keeps the bytes of what did not change."""

from __future__ import annotations

from collections.abc import Callable, Iterable, Mapping, Sequence
from typing import Any, BinaryIO

import orjson
import rapidjson

from models.errors import InputError

Json = Any
"""None, bool, int, float, str, list or tuple of Json, dict of str to Json."""


def dumps(obj: Json, *, pretty: bool = False, default: Callable[[Any], Json] | None = None) -> bytes:
    """UTF-8 JSON of `obj`, compact unless `pretty` (two spaces).

    default: what stands for a value that JSON cannot hold; without it such a value raises TypeError.
    """
    return orjson.dumps(obj, default=default, option=orjson.OPT_INDENT_2 if pretty else None)


def dumps_text(obj: Json, *, pretty: bool = False, default: Callable[[Any], Json] | None = None) -> str:
    """`dumps` as text, for prompts and terminals."""
    return dumps(obj, pretty=pretty, default=default).decode()


def loads(data: bytes | bytearray | memoryview | str) -> Json:
    """The object that JSON `data` stands for. Raises InputError saying where it is no JSON."""
    try:
        return orjson.loads(data)
    except orjson.JSONDecodeError as error:
        raise InputError(f"not JSON: {error}; check what was sent") from error


def load_stream(stream: BinaryIO) -> Json:
    """Read one JSON value from a binary stream without holding its text. Raises InputError."""
    try:
        return rapidjson.load(stream)
    except (rapidjson.JSONDecodeError, UnicodeDecodeError) as error:
        raise InputError(f"not JSON: {error}; check the file") from error


class SchemaMismatch(ValueError):
    """JSON that breaks its schema: `path` (JSON pointer into the value) and the schema's `keyword` it breaks."""

    def __init__(self, keyword: str, path: str) -> None:
        super().__init__(f"breaks the schema's {keyword!r} at {path or '/'}")
        self.keyword = keyword
        self.path = path


def validator(schema: Mapping[str, Json]) -> Callable[[Json], None]:
    """Compile `schema` (JSON Schema draft 4) once; returns check(value), which raises SchemaMismatch.

    Raises ValueError when the schema itself is no JSON.
    """
    compiled = rapidjson.Validator(orjson.dumps(schema).decode())

    def check(value: Json) -> None:
        try:
            compiled(orjson.dumps(value).decode())
        except rapidjson.ValidationError as error:
            keyword, _, path = error.args
            raise SchemaMismatch(str(keyword), str(path).removeprefix("#")) from error

    return check


class ContextEncoder:
    """Encodes a growing conversation: every message once, when it is new. One owner, not thread-safe.

    A message counts as unchanged while the very same object stands at the same place: never alter a message in
    place, put a new one there. `encoded_messages` counts the encodings that were really made.
    """

    def __init__(self) -> None:
        self.encoded_messages = 0
        self._messages: list[Json] = []
        self._body = bytearray()
        self._ends: list[int] = []

    def encode(self, messages: Sequence[Json]) -> bytes:
        """UTF-8 JSON of the list `messages`, byte for byte what `dumps(list(messages))` gives."""
        self._take(messages)
        return b"".join((b"[", self._body, b"]"))

    def encode_in(self, envelope: Mapping[str, Json], key: str, messages: Sequence[Json]) -> bytes:
        """JSON of `envelope` with `messages` under `key` behind its other keys. Raises ValueError when it has `key`."""
        if key in envelope:
            raise ValueError(f"the envelope holds {key!r} already")
        self._take(messages)
        head = orjson.dumps(dict(envelope))[:-1]
        comma = b"," if envelope else b""
        return b"".join((head, comma, orjson.dumps(key), b":[", self._body, b"]}"))

    def _take(self, messages: Sequence[Json]) -> None:
        kept = self._unchanged(messages)
        del self._messages[kept:], self._ends[kept:]
        del self._body[self._ends[-1] if self._ends else 0 :]
        for message in messages[kept:]:
            if self._ends:
                self._body += b","
            self._body += orjson.dumps(message)
            self._ends.append(len(self._body))
            self._messages.append(message)
            self.encoded_messages += 1

    def _unchanged(self, messages: Sequence[Json]) -> int:
        kept = 0
        for old, new in zip(self._messages, messages, strict=False):
            if old is not new:
                break
            kept += 1
        return kept


class StateEncoder:
    """Encodes a table of values of which few change: each value once, when it is set. One owner, not thread-safe."""

    def __init__(self) -> None:
        self._entries: dict[str, bytes] = {}

    def set(self, key: str, value: Json) -> None:
        """Put `value` under `key`; a known key keeps its place."""
        self._entries[key] = orjson.dumps(key) + b":" + orjson.dumps(value)

    def encode(self) -> bytes:
        """UTF-8 JSON of the whole table, keys in the order they were first set."""
        return b"{" + b",".join(self._entries.values()) + b"}"


def json_lines(items: Iterable[Json]) -> bytes:
    """One compact JSON value per line, for logs and the control socket."""
    return b"".join(orjson.dumps(item, option=orjson.OPT_APPEND_NEWLINE) for item in items)
