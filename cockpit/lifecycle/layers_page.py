"""A profile of layers as one HTML file that fetches nothing: a flame graph, the worst nodes, time by operator."""

from __future__ import annotations

from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from html import escape

from cockpit.lifecycle.layers import Layer

SMALLEST = 0.0015
"""Share of the whole below which a box is not drawn."""
_STYLE = """
body{font:14px/1.4 system-ui,sans-serif;margin:2em;color:#222;background:#fff}
table{border-collapse:collapse;margin:1em 0}
td,th{padding:.2em .8em;text-align:right;border-bottom:1px solid #ddd}td.t,th.t{text-align:left;font-family:monospace}
.row{display:flex;width:100%}.box{min-width:0;flex:none}.bar{overflow:hidden;white-space:nowrap;border:1px solid #fff;
font:11px monospace;padding:1px 2px;height:16px}
"""


@dataclass(slots=True)
class _Box:
    """One level of the nodes' names, which are paths."""

    name: str
    total_us: float = 0.0
    below: dict[str, _Box] = field(default_factory=dict)


def page(title: str, layers: Sequence[Layer], gb_per_s: float, machine: str) -> str:
    """layers: by falling total_us."""
    whole_us = sum(layer.total_us for layer in layers)
    root = _tree(layers)
    flame = "".join(_drawn(root, whole_us, whole_us, 0))
    operators: dict[str, float] = {}
    for layer in layers:
        operators[layer.operator] = operators.get(layer.operator, 0.0) + layer.total_us
    by_operator = sorted(operators.items(), key=lambda item: -item[1])
    return f"""<!DOCTYPE html>
<html lang="en"><head><meta charset="utf-8"><title>{escape(title)}</title><style>{_STYLE}</style></head><body>
<h1>{escape(title)}</h1>
<p>{escape(machine)}; copying moves {gb_per_s:.1f} GB/s. Kernel time of all warm runs: {whole_us / 1000:.1f} ms.</p>
<h2>Flame graph</h2><div class="row">{flame}</div>
<h2>The worst ten</h2>
<table><tr><th class="t">node</th><th class="t">operator</th><th>runs</th><th>total ms</th><th>share</th>
<th>median us</th><th>MB moved</th><th>share of bound</th></tr>
{"".join(_row(layer, whole_us) for layer in layers[:10])}</table>
<h2>By operator</h2><table><tr><th class="t">operator</th><th>total ms</th><th>share</th></tr>
{"".join(_operator_row(name, took_us, whole_us) for name, took_us in by_operator)}</table>
</body></html>
"""


def _row(layer: Layer, whole_us: float) -> str:
    return (
        f'<tr><td class="t">{escape(layer.graph)}: {escape(layer.name)}</td><td class="t">{escape(layer.operator)}</td>'
        f"<td>{layer.runs}</td><td>{layer.total_us / 1000:.2f}</td><td>{layer.total_us / whole_us:.1%}</td>"
        f"<td>{layer.median_us:.0f}</td>"
        f"<td>{layer.moved_bytes / 1e6:.3f}</td><td>{layer.share_of_bound:.2f}</td></tr>\n"
    )


def _operator_row(name: str, took_us: float, whole_us: float) -> str:
    return f'<tr><td class="t">{escape(name)}</td><td>{took_us / 1000:.2f}</td><td>{took_us / whole_us:.1%}</td></tr>\n'


def _tree(layers: Sequence[Layer]) -> _Box:
    root = _Box("all")
    for layer in layers:
        box = root
        box.total_us += layer.total_us
        for part in (layer.graph, *filter(None, layer.name.split("/"))):
            box = box.below.setdefault(part, _Box(part))
            box.total_us += layer.total_us
    return root


def _drawn(box: _Box, parent_us: float, whole_us: float, depth: int) -> Iterator[str]:
    """A box, and below it what it is made of, each as wide as its share of the time."""
    if box.total_us < SMALLEST * whole_us:
        return
    share, hue = box.total_us / whole_us, 50 - 45 * min(1.0, depth / 6)
    told = escape(f"{box.name}: {box.total_us / 1000:.2f} ms, {share:.1%}", quote=True)
    yield f'<div class="box" style="width:{box.total_us / parent_us:.4%}">'
    yield f'<div class="bar" style="background:hsl({hue:.0f} 90% 75%)" title="{told}">{escape(box.name)}</div>'
    if box.below:
        yield '<div class="row">'
        for inner in sorted(box.below.values(), key=lambda item: -item.total_us):
            yield from _drawn(inner, box.total_us, whole_us, depth + 1)
        yield "</div>"
    yield "</div>"
