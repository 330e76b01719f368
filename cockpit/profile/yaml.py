"""YAML text -> plain values with the place of every key, all faults collected.

Stricter than YAML: no duplicate keys, no merge keys, no tags, no alias that refers to itself or multiplies, no document
beyond `MAX_BYTES` / `MAX_NODES`.
"""

from __future__ import annotations

import re
from dataclasses import dataclass
from pathlib import Path
from typing import Any

from ruamel.yaml import YAML
from ruamel.yaml.error import MarkedYAMLError, YAMLError
from ruamel.yaml.nodes import MappingNode, Node, ScalarNode, SequenceNode

from models.errors import ConfigError

MAX_BYTES = 1 << 20
MAX_NODES = 10_000
MAX_DEPTH = 32

KeyPath = tuple[str | int, ...]
_TAG = "tag:yaml.org,2002:"
_LEADING_ZERO = re.compile(r"[+-]?0[0-9_]+")
_PLAIN_TAGS = {"str", "int", "float", "bool", "null", "map", "seq", "timestamp"}


@dataclass(frozen=True, slots=True, order=True)
class SourcePosition:
    """Where something was written. Lines and columns count from 1."""

    file: Path
    line: int
    column: int

    def __str__(self) -> str:
        return f"{self.file}:{self.line}:{self.column}"


@dataclass(frozen=True, slots=True)
class Fault:
    """One thing wrong with a profile."""

    place: SourcePosition
    message: str

    def __str__(self) -> str:
        return f"{self.place}: {self.message}"


@dataclass(frozen=True, slots=True)
class Document:
    """One file. `places`: key path -> where its key stands (list items: where the item stands)."""

    file: Path
    data: dict[str, Any]
    places: dict[KeyPath, SourcePosition]
    faults: tuple[Fault, ...]


def read_yaml(file: Path) -> Document:
    """Read one file. Raises ConfigError when there is nothing to go on with (unreadable, not YAML, too large)."""
    try:
        raw = file.read_bytes()
    except OSError as error:
        raise ConfigError(f"cannot read the profile {file}: {error.strerror}") from error
    if len(raw) > MAX_BYTES:
        raise ConfigError(f"{file}: {len(raw)} bytes, a profile holds at most {MAX_BYTES}")
    try:
        root = YAML(typ="safe", pure=True).compose(raw.decode("utf-8"))
    except UnicodeDecodeError as error:
        raise ConfigError(f"{file}: not UTF-8 text: {error.reason} at byte {error.start}") from error
    except MarkedYAMLError as error:
        mark = error.problem_mark or error.context_mark
        place = SourcePosition(file, mark.line + 1, mark.column + 1) if mark else SourcePosition(file, 1, 1)
        problem = error.problem or error.context or "not YAML"
        if "'\\t'" in problem:
            problem = "a tab stands where YAML wants spaces: replace it by spaces"
        raise ConfigError(f"{place}: {problem}") from error
    except (YAMLError, RecursionError) as error:
        raise ConfigError(f"{file}: not YAML: {error}") from error
    reader = _Reader(file)
    data = {} if root is None else reader.value(root, (), ())
    if not isinstance(data, dict):
        start = SourcePosition(file, 1, 1)
        raise ConfigError(f"{start}: a profile is a mapping of sections, not {type(data).__name__}")
    return Document(file, data, reader.places, tuple(reader.faults))


class _Reader:
    def __init__(self, file: Path) -> None:
        self._file = file
        self._count = 0
        self.places: dict[KeyPath, SourcePosition] = {}
        self.faults: list[Fault] = []

    def value(self, node: Node, path: KeyPath, parents: tuple[int, ...]) -> Any:
        """The plain value of `node`. Aliases are followed, each counting as often as it is used."""
        self._count += 1
        if self._count > MAX_NODES:
            raise ConfigError(f"{self._place(node)}: aliases multiply this file to more than {MAX_NODES} values")
        if id(node) in parents or len(parents) > MAX_DEPTH:
            raise ConfigError(f"{self._place(node)}: this value holds itself, or is nested deeper than {MAX_DEPTH}")
        tag = str(node.tag).removeprefix(_TAG)
        if tag not in _PLAIN_TAGS:
            self._fault(node, f"the tag {node.tag} is not allowed in a profile")
            return None
        inside = (*parents, id(node))
        if isinstance(node, MappingNode):
            return self._mapping(node, path, inside)
        if isinstance(node, SequenceNode):
            items = []
            for index, item in enumerate(node.value):
                self.places[*path, index] = self._place(item)
                items.append(self.value(item, (*path, index), inside))
            return items
        return self._scalar(node, tag)

    def _mapping(self, node: MappingNode, path: KeyPath, parents: tuple[int, ...]) -> dict[str, Any]:
        found: dict[str, Any] = {}
        for key_node, value_node in node.value:
            key = str(key_node.value) if isinstance(key_node, ScalarNode) else None
            if key is None:
                self._fault(key_node, "a key must be a plain word")
            elif key == "<<":
                self._fault(key_node, "merge keys (<<) are not allowed; use extends")
            elif key in found:
                self._fault(key_node, f"duplicate key {key!r}; it stands first at {self.places[*path, key]}")
            else:
                self.places[*path, key] = self._place(key_node)
                found[key] = self.value(value_node, (*path, key), parents)
                if isinstance(value_node, ScalarNode) and value_node.tag == f"{_TAG}null" and not value_node.value:
                    self._fault(key_node, f"{key} is left empty: write its value, null to drop what it has, or no line")
        return found

    def _scalar(self, node: Node, tag: str) -> Any:
        text = str(node.value)
        if tag == "int" and _LEADING_ZERO.fullmatch(text):  # YAML 1.1 reads 010 as 8, YAML 1.2 as 10
            self._fault(node, f"{text} may be read as octal: write {int(text.replace('_', ''))}")
            return None
        try:
            if tag == "int":
                return int(text.replace("_", ""), 0 if text.lstrip("+-")[:2].lower() in {"0x", "0o", "0b"} else 10)
            if tag == "float":
                return float(text.replace("_", "").replace(".inf", "inf").replace(".nan", "nan"))
        except ValueError:
            self._fault(node, f"{text!r} is not a number")
            return None
        if tag == "bool":
            return text.lower() == "true"
        return None if tag == "null" else text

    def _place(self, node: Node) -> SourcePosition:
        return SourcePosition(self._file, node.start_mark.line + 1, node.start_mark.column + 1)

    def _fault(self, node: Node, message: str) -> None:
        self.faults.append(Fault(self._place(node), message))
