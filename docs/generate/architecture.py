"""The pictures of `docs/architecture.md`, and its table of channels."""

from __future__ import annotations

from docs.generate.house import BESIDE, LAYERS, ROOT, Edge, Stage, edges, room, stages
from docs.generate.picture import draw_data_way, draw_rooms, when_full

PAGE = "docs/architecture.md"
BEGIN, END = "<!-- generated: {name} -->", "<!-- end: {name} -->"


def make() -> dict[str, str]:
    """The two pictures and the page with its table made again."""
    rows, channels = stages(), edges()
    page = (ROOT / PAGE).read_text(encoding="utf-8")
    return {
        "docs/data-way.svg": draw_data_way(rows, channels),
        "docs/rooms.svg": draw_rooms({name: room(name) for name in (*LAYERS, *BESIDE)}),
        PAGE: between(page, "channels", _table(rows, channels)),
    }


def between(page: str, name: str, text: str) -> str:
    """`page` with what stands between the two marks of `name` replaced. Raises ValueError where a mark is missing."""
    begin, end = BEGIN.format(name=name), END.format(name=name)
    if page.count(begin) != 1 or page.count(end) != 1:
        raise ValueError(f"the page needs {begin} and {end} once each")
    return page.partition(begin)[0] + f"{begin}\n{text}\n{end}" + page.partition(end)[2]


def _table(rows: list[Stage], channels: list[Edge]) -> str:
    readers = {row.inbox: row.name for row in rows}
    writers = {row.outbox: row.name for row in rows}
    lines = ["| channel | message | from -> to | holds | when full |", "|---|---|---|---|---|"]
    for edge in channels:
        way = f"{writers.get(edge.name, 'source')} -> {readers[edge.name]}"
        lines.append(f"| {edge.name} | `{edge.message}` | {way} | {edge.capacity} | {when_full(edge)[6:]} |")
    return "\n".join(lines)
