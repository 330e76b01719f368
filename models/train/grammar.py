"""Templates to text whose parts are known by name.

A template is plain text with `{slot}`, `[optional]`, `(one|of|these)` and `<what>`: the words that name a missing or
forbidden thing. A slot is filled by the caller or by the phrase bank (itself templates).
"""

from __future__ import annotations

import random
from collections.abc import Mapping, Sequence
from dataclasses import dataclass
from functools import cache

Chunk = tuple[str, str]
"""Text and its tag: "" or "what", or "N.value", "N.place", "N.query" with N the index of the call it belongs to."""
Chunks = tuple[Chunk, ...]

OPTIONAL_SHARE = 0.4
_CLOSING = {"(": ")", "[": "]", "<": ">", "{": "}"}


class TemplateError(ValueError):
    """A template that cannot be read, or names a slot that does not exist."""


@dataclass(frozen=True, slots=True)
class Node:
    """One part of a template. `kind`: text, slot, optional, choice, what, sequence."""

    kind: str
    text: str = ""
    parts: tuple[Node, ...] = ()


@cache
def parsed(template: str) -> Node:
    """The template as a tree. TemplateError where brackets do not match."""
    node, end = _sequence(template, 0, "")
    if end != len(template):
        raise TemplateError(f"{template!r}: {template[end]!r} closes nothing")
    return node


def _sequence(template: str, i: int, stop: str) -> tuple[Node, int]:
    parts: list[Node] = []
    plain = ""
    while i < len(template) and template[i] not in stop:
        character = template[i]
        if character in _CLOSING:
            if plain:
                parts.append(Node("text", plain))
                plain = ""
            node, i = _group(template, i)
            parts.append(node)
        elif character in ")]>}":
            raise TemplateError(f"{template!r}: {character!r} closes nothing")
        else:
            plain += character
            i += 1
    if plain:
        parts.append(Node("text", plain))
    return Node("sequence", parts=tuple(parts)), i


def _group(template: str, i: int) -> tuple[Node, int]:
    opening, closing = template[i], _CLOSING[template[i]]
    if opening == "{":
        end = template.find(closing, i)
        if end < 0:
            raise TemplateError(f"{template!r}: {opening!r} is never closed")
        return Node("slot", template[i + 1 : end]), end + 1
    alternatives = []
    i += 1
    while True:
        node, i = _sequence(template, i, closing + ("|" if opening in "([" else ""))
        alternatives.append(node)
        if i >= len(template):
            raise TemplateError(f"{template!r}: {opening!r} is never closed")
        i += 1
        if template[i - 1] == closing:
            break
    kind = {"(": "choice", "[": "optional", "<": "what"}[opening]
    return Node(kind, parts=tuple(alternatives)), i


@dataclass(frozen=True, slots=True)
class Writer:
    """Expands templates of one language by one random source. `bank`: slot name -> templates."""

    bank: Mapping[str, Sequence[str]]
    rng: random.Random

    def write(self, template: str, slots: Mapping[str, Chunks | str] | None = None) -> Chunks:
        """The chunks of one expansion. TemplateError for a slot that neither `slots` nor the bank knows."""
        return tuple(self._expand(parsed(template), slots or {}, ""))

    def pick(self, name: str) -> str:
        """One template of the bank."""
        try:
            return self.rng.choice(self.bank[name])
        except KeyError:
            raise TemplateError(f"the phrase bank has no {name!r}") from None

    def phrase(self, name: str, slots: Mapping[str, Chunks | str] | None = None) -> Chunks:
        """One expansion of one template of the bank."""
        return self.write(self.pick(name), slots)

    def _expand(self, node: Node, slots: Mapping[str, Chunks | str], tag: str) -> list[Chunk]:
        if node.kind == "text":
            return [(node.text, tag)]
        if node.kind == "slot":
            filled = slots.get(node.text)
            if filled is None:
                return self._expand(parsed(self.pick(node.text)), slots, tag)
            if isinstance(filled, str):
                return [(filled, tag)]
            return [(text, inner or tag) for text, inner in filled]
        if node.kind == "optional" and self.rng.random() >= OPTIONAL_SHARE:
            return []
        if node.kind in ("choice", "optional"):
            return self._expand(self.rng.choice(node.parts), slots, tag)
        inner = "what" if node.kind == "what" else tag
        return [chunk for part in node.parts for chunk in self._expand(part, slots, inner)]


def text_of(chunks: Sequence[Chunk]) -> str:
    """The plain text."""
    return "".join(text for text, _ in chunks)


def tagged(chunks: Sequence[Chunk], tag: str) -> Chunks:
    """The chunks, untagged ones under `tag`."""
    return tuple((text, inner or tag) for text, inner in chunks)


def renumbered(chunks: Sequence[Chunk], offset: int) -> Chunks:
    """The chunks with the index of every call moved up by `offset`."""

    def moved(tag: str) -> str:
        number, dot, name = tag.partition(".")
        return f"{int(number) + offset}.{name}" if dot else tag

    return tuple((text, moved(tag)) for text, tag in chunks)


def joined(chunks: Sequence[Chunk]) -> tuple[str, dict[str, tuple[int, int]]]:
    """The text with single spaces, and the range of characters [start, end) of each tag (its outer whitespace left
    out).
    """
    text = ""
    spans: dict[str, tuple[int, int]] = {}
    for piece, tag in chunks:
        kept = ""
        for character in piece:
            before = (text + kept)[-1:]
            if character == " " and before in (" ", ""):
                continue
            if character in ",.?!" and before == " ":
                if kept:
                    kept = kept[:-1]
                else:
                    text = text[:-1]
                    spans = {name: (low, min(high, len(text))) for name, (low, high) in spans.items()}
            kept += character
        if tag and kept.strip():
            low = len(text) + len(kept) - len(kept.lstrip())
            high = len(text) + len(kept.rstrip())
            spans[tag] = (min(spans[tag][0], low) if tag in spans else low, high)
        text += kept
    end = len(text.rstrip())
    return text[:end], {name: (low, min(high, end)) for name, (low, high) in spans.items()}
