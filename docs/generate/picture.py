"""Two pictures in plain SVG: the way of the data, and the rooms of the house.

No fonts and no scripts from elsewhere; colours follow the reader's light or dark setting; every line of text is placed
by the width that a usual sans-serif font needs.
"""

from __future__ import annotations

import textwrap
from dataclasses import dataclass, field
from html import escape

from docs.generate.house import BESIDE, LAYERS, Edge, Room, Stage

MARGIN = 24
STYLE = """
  svg { font-family: system-ui, -apple-system, "Segoe UI", "DejaVu Sans", Helvetica, Arial, sans-serif; }
  .page { fill: #ffffff; } .text { fill: #1f2328; } .quiet { fill: #59636e; } .box { fill: #f6f8fa; stroke: #d1d9e0; }
  .card { fill: #ffffff; stroke: #d1d9e0; } .stage { fill: #ddf4ff; stroke: #54aeff; }
  .chip { fill: #f6f8fa; stroke: #d1d9e0; }
  .engine { fill: #dafbe1; stroke: #4ac26b; } .scheduler { fill: #fff8c5; stroke: #d4a72c; }
  .line { stroke: #59636e; fill: none; } .head { fill: #59636e; }
  @media (prefers-color-scheme: dark) {
    .page { fill: #0d1117; } .text { fill: #f0f6fc; } .quiet { fill: #9198a1; } .box { fill: #151b23; stroke: #3d444d; }
    .card { fill: #0d1117; stroke: #3d444d; } .stage { fill: #0c2d6b; stroke: #388bfd; }
    .chip { fill: #151b23; stroke: #3d444d; }
    .engine { fill: #033a16; stroke: #2ea043; } .scheduler { fill: #341a00; stroke: #bb8009; }
    .line { stroke: #9198a1; } .head { fill: #9198a1; }
  }
"""


@dataclass(slots=True)
class Drawing:
    """SVG elements so far, and how far down they reach."""

    title: str
    width: int
    parts: list[str] = field(default_factory=list)
    bottom: float = 0.0

    def box(self, x: float, y: float, width: float, height: float, kind: str) -> None:
        self.parts.append(f'<rect class="{kind}" x="{x:g}" y="{y:g}" width="{width:g}" height="{height:g}" rx="6"/>')
        self.bottom = max(self.bottom, y + height)

    def text(
        self,
        x: float,
        y: float,
        text: str,
        *,
        size: float = 13,
        bold: bool = False,
        kind: str = "text",
        anchor: str = "",
    ) -> None:
        """One line with its baseline at `y`."""
        weight = ' font-weight="600"' if bold else ""
        place = f' text-anchor="{anchor}"' if anchor else ""
        self.parts.append(
            f'<text class="{kind}" x="{x:g}" y="{y:g}" font-size="{size:g}"{weight}{place}>{escape(text)}</text>'
        )
        self.bottom = max(self.bottom, y + 4)

    def paragraph(self, x: float, y: float, text: str, width: float, *, size: float = 12, kind: str = "quiet") -> float:
        """Wrapped lines, the first with its baseline at `y`. Returns the baseline after the last."""
        for line in lines_of(text, width, size):
            self.text(x, y, line, size=size, kind=kind)
            y += size * 1.35
        return y

    def arrow(self, x: float, y: float, to_y: float) -> None:
        """Straight down."""
        self.parts.append(f'<path class="line" stroke-width="1.5" d="M{x:g} {y:g}V{to_y - 6:g}"/>')
        self.parts.append(f'<path class="head" d="M{x - 5:g} {to_y - 8:g}h10l-5 8z"/>')

    def svg(self) -> str:
        width, height, title = self.width, self.bottom + MARGIN, escape(self.title)
        lines = [
            f'<svg xmlns="http://www.w3.org/2000/svg" viewBox="0 0 {width} {height:g}"',
            f'  width="{width}" height="{height:g}" role="img" aria-label="{title}">',
            f"<title>{title}</title>",
            f"<style>{STYLE}</style>",
            f'<rect class="page" width="{width}" height="{height:g}" rx="8"/>',
            *self.parts,
            "</svg>",
        ]
        return "\n".join(lines) + "\n"


def lines_of(text: str, width: float, size: float) -> list[str]:
    """`text` in lines of at most `width` pixels, by the mean width of a letter."""
    return textwrap.wrap(text, max(8, int(width / (size * 0.58)))) or [""]


# --- the way of the data ---------------------------------------------------------------------------------------------
STAGE_X, STAGE_WIDTH, GAP = 24, 340, 62
CHIP_X, CHIP_WIDTH, CHIP_HEIGHT, CHIP_COLUMNS = STAGE_X + STAGE_WIDTH + 40, 198, 28, 2


def draw_data_way(stages: list[Stage], edges: list[Edge]) -> str:
    """From the microphone down to the speaker: one box a thread, one arrow a channel."""
    drawing = Drawing("The way of the data: stages and the channels between them", 860)
    drawing.text(MARGIN, 38, "The way of the data", size=18, bold=True)
    drawing.text(MARGIN, 58, "One box is one thread, one arrow is one bounded channel.", kind="quiet", size=12)
    _legend(drawing)
    by_name = {edge.name: edge for edge in edges}
    y: float = 84
    y = _end(drawing, y, "microphone or WAV file")
    for stage in stages:
        _channel(drawing, y, by_name[stage.inbox])
        y += GAP
        y = _stage(drawing, y, stage)
    drawing.arrow(STAGE_X + STAGE_WIDTH / 2, y, y + 30)
    _end(drawing, y + 30, "speaker or WAV file")
    return drawing.svg()


def _legend(drawing: Drawing) -> None:
    x = CHIP_X
    for kind, name, width in (
        ("chip", "pipeline", 74),
        ("engine", "models", 74),
        ("scheduler", "decides when it runs", 150),
    ):
        drawing.box(x, 26, width, 20, kind)
        drawing.text(x + width / 2, 40, name, size=11, anchor="middle")
        x += width + 8


def _end(drawing: Drawing, y: float, text: str) -> float:
    drawing.box(STAGE_X + 60, y, STAGE_WIDTH - 120, 30, "box")
    drawing.text(STAGE_X + STAGE_WIDTH / 2, y + 20, text, anchor="middle")
    return y + 30


def _channel(drawing: Drawing, y: float, edge: Edge) -> None:
    middle = STAGE_X + STAGE_WIDTH / 2
    drawing.arrow(middle, y, y + GAP)
    drawing.text(middle - 14, y + GAP / 2 - 2, edge.message, bold=True, anchor="end")
    drawing.text(middle - 14, y + GAP / 2 + 14, f"channel {edge.name}", kind="quiet", size=11.5, anchor="end")
    drawing.text(middle + 14, y + GAP / 2 - 2, f"holds {edge.capacity}", kind="quiet", size=11.5)
    drawing.text(middle + 14, y + GAP / 2 + 14, when_full(edge), kind="quiet", size=11.5)


def when_full(edge: Edge) -> str:
    """What a full channel does, in words."""
    words = {
        "block": "its writer waits",
        "drop_oldest": "the oldest is dropped",
        "drop_newest": "the newest is dropped",
    }
    if edge.policy == edge.live_policy:
        return f"full: {words[edge.policy]}"
    return f"full: {words[edge.policy]}; from a microphone {words[edge.live_policy]}"


def _stage(drawing: Drawing, y: float, stage: Stage) -> float:
    height = 40 + 17 * len(stage.files)
    chips = [(name, "chip") for name in stage.packages] + [(name, "engine") for name in stage.engines]
    chips += [(name, "scheduler") for name in stage.scheduled]
    drawing.box(STAGE_X, y, STAGE_WIDTH, height, "stage")
    drawing.text(STAGE_X + 16, y + 24, stage.name, size=15, bold=True)
    for row, file in enumerate(stage.files):
        drawing.text(STAGE_X + 16, y + 44 + 17 * row, file, size=12)
    _chips(drawing, y, height, chips)
    return y + height


def _chips(drawing: Drawing, y: float, height: float, chips: list[tuple[str, str]]) -> None:
    """What a stage uses, beside its box, rows centred on it."""
    if not chips:
        return
    middle, rows = y + height / 2, -(-len(chips) // CHIP_COLUMNS)
    path = f"M{STAGE_X + STAGE_WIDTH} {middle:g}H{CHIP_X - 8}"
    drawing.parts.append(f'<path class="line" stroke-dasharray="3 3" d="{path}"/>')
    for index, (name, kind) in enumerate(chips):
        row, column = divmod(index, CHIP_COLUMNS)
        x, top = CHIP_X + column * (CHIP_WIDTH + 8), middle - rows * CHIP_HEIGHT / 2 + row * CHIP_HEIGHT + 2
        drawing.box(x, top, CHIP_WIDTH, CHIP_HEIGHT - 4, kind)
        drawing.text(x + CHIP_WIDTH / 2, top + 16, name, size=12, anchor="middle")


# --- the rooms -------------------------------------------------------------------------------------------------------
PAGE_WIDTH, COLUMNS, CARD_GAP = 980, 4, 10


def draw_rooms(rooms: dict[str, Room]) -> str:
    """Three storeys, imports running downwards, and what stands beside them."""
    drawing = Drawing("The rooms: every folder with its purpose", PAGE_WIDTH)
    drawing.text(MARGIN, 38, "The rooms", size=18, bold=True)
    drawing.text(MARGIN, 58, "Every folder with its purpose. Imports run downwards only.", kind="quiet", size=12)
    y: float = 76
    for number, layer in enumerate(LAYERS):
        if number:
            drawing.arrow(PAGE_WIDTH / 2, y + 2, y + 26)
            drawing.text(PAGE_WIDTH / 2 + 12, y + 17, "imports", kind="quiet", size=11.5)
            y += 28
        y = _storey(drawing, y, rooms[layer])
    drawing.text(MARGIN, y + 34, "Beside them", size=15, bold=True)
    beside = [entry for name in BESIDE for entry in (rooms[name], *_inside(rooms[name]))]
    _cards(drawing, y + 48, [(entry.path, entry.purpose) for entry in beside], MARGIN, PAGE_WIDTH - 2 * MARGIN)
    return drawing.svg()


def _inside(entry: Room) -> list[Room]:
    """The folders in a folder, depth first; those of tests mirror the packages and go without saying."""
    shown = [inside for inside in entry.rooms if not inside.purpose.startswith("Tests of")]
    return [found for inside in shown for found in (inside, *_inside(inside))]


def _storey(drawing: Drawing, y: float, layer: Room) -> float:
    """One layer. Returns where it ends."""
    left, width = MARGIN + 14, PAGE_WIDTH - 2 * MARGIN - 28
    inner = Drawing("", PAGE_WIDTH)
    inner.text(left, y + 26, f"{layer.path}/", size=15, bold=True)
    inner.text(left + 92, y + 26, layer.purpose, size=12.5, kind="quiet")
    files = ", ".join(name for name, _ in layer.files if not name.startswith("__"))
    top = inner.paragraph(left, y + 48, f"Files: {files}", width)
    cards = [(entry.path.partition("/")[2], entry.purpose) for entry in _inside(layer)]
    bottom = _cards(inner, top - 2, cards, left, width) + 14
    drawing.box(MARGIN, y, PAGE_WIDTH - 2 * MARGIN, bottom - y, "box")
    drawing.parts += inner.parts
    return bottom


def _cards(drawing: Drawing, y: float, cards: list[tuple[str, str]], x: float, width: float) -> float:
    """Cards in rows of equal height. Returns where they end."""
    card = (width - (COLUMNS - 1) * CARD_GAP) / COLUMNS
    for start in range(0, len(cards), COLUMNS):
        row = [(name, lines_of(purpose, card - 24, 12)) for name, purpose in cards[start : start + COLUMNS]]
        height = 36 + 16 * max(len(lines) for _, lines in row)
        for column, (name, lines) in enumerate(row):
            left = x + column * (card + CARD_GAP)
            drawing.box(left, y, card, height, "card")
            drawing.text(left + 12, y + 22, f"{name}/", size=13, bold=True)
            for number, line in enumerate(lines):
                drawing.text(left + 12, y + 41 + 16 * number, line, size=12, kind="quiet")
        y += height + CARD_GAP
    return y - CARD_GAP
