"""Beginnings of texts whose keys and values are stored once and shown by several: what they are made of."""

from __future__ import annotations

from dataclasses import dataclass


class Sheet:
    """Room in the file of shared pages for one text of full length. filled: up to which row."""

    __slots__ = ("filled", "offset")

    def __init__(self, offset: int) -> None:
        self.offset = offset
        self.filled = 0


class SharedRows:
    """Rows `start` to `stop` of a text, of every layer and head. Never changed; their memory goes with the last
    reference, and whoever shows them has one.
    """

    __slots__ = ("__weakref__", "sheet", "size_bytes", "start", "stop")

    def __init__(self, sheet: Sheet, start: int, stop: int, size_bytes: int) -> None:
        self.sheet = sheet
        self.start = start
        self.stop = stop
        self.size_bytes = size_bytes


@dataclass(frozen=True, slots=True)
class SharedBeginning:
    """A text's first rows: parts that follow each other, each up to a row."""

    parts: tuple[tuple[SharedRows, int], ...] = ()

    @property
    def rows(self) -> int:
        """How many, from the first on."""
        return self.parts[-1][1] if self.parts else 0

    @property
    def sheets(self) -> int:
        """In how many pieces they are stored: what follows in one sheet is one piece."""
        return len({id(part.sheet) for part, _ in self.parts})

    @property
    def open_sheet(self) -> Sheet | None:
        """Where a longer beginning may go on: nothing else was stored there after this one."""
        if not self.parts:
            return None
        part, stop = self.parts[-1]
        return part.sheet if stop == part.sheet.filled else None

    def clipped(self, rows: int) -> SharedBeginning:
        """Of these the first `rows`."""
        return SharedBeginning(tuple((part, min(stop, rows)) for part, stop in self.parts if part.start < rows))

    def and_then(self, part: SharedRows) -> SharedBeginning:
        return SharedBeginning((*self.parts, (part, part.stop)))

    def in_common(self, other: SharedBeginning) -> int:
        """How many parts both have to the same row."""
        pairs = zip(self.parts, other.parts, strict=False)
        shorter = min(len(self.parts), len(other.parts))
        return next((index for index, (mine, theirs) in enumerate(pairs) if mine != theirs), shorter)


NOTHING_SHARED = SharedBeginning()
