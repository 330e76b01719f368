"""`cockpit models profile`: the nodes of a real model with their times and bytes, and the page."""

from __future__ import annotations

import json
from html.parser import HTMLParser
from pathlib import Path

import pytest

from cockpit.cli import main
from cockpit.lifecycle.layers import Layer, _layers
from cockpit.lifecycle.layers_page import page
from models.engines.placement import CpuPlacement


def test_a_model_is_profiled_node_by_node(
    capsys: pytest.CaptureFixture[str], tmp_path: Path, model_store: object
) -> None:
    with pytest.raises(SystemExit) as ended:
        main(["models", "profile", "silero-vad", "--times", "2", "--json", "--page", str(tmp_path / "vad.html")])
    said = json.loads(capsys.readouterr().out)
    assert (ended.value.code or 0) == 0
    layers = said["layers"]
    operators = {layer["operator"] for layer in layers}
    assert {"LSTM"} <= operators
    assert not operators & {"If", "Loop"}, "time would count twice"
    assert [layer["total_us"] for layer in layers] == sorted((layer["total_us"] for layer in layers), reverse=True)
    assert said["copy_gb_per_s"] > 0
    assert CpuPlacement.profiles is None, "the next session is not profiled"
    assert "https://" not in (tmp_path / "vad.html").read_text()


def event(name: str, took_us: int, **more: object) -> dict[str, object]:
    return {"cat": "Node", "name": f"{name}_kernel_time", "dur": took_us, "args": {"op_name": "MatMul", **more}}


def test_the_first_run_is_left_out_and_weights_that_a_kernel_packed_are_counted(tmp_path: Path) -> None:
    sizes = {"activation_size": "100", "output_size": "200", "parameter_size": "8"}
    events = [event("up", took, **sizes) for took in (9000, 10, 30, 20)] + [{"cat": "Session", "name": "x", "dur": 1}]
    path = tmp_path / "decoder_2026-12-01_20-00-00_123.json"
    path.write_text(json.dumps(events))
    (found,) = _layers(path, {"decoder": {"up": 1700}}, bytes_per_s=1e9)
    assert found == Layer("decoder", "up", "MatMul", 3, 60.0, 20.0, 2000, 0.1)


def test_the_page_shows_what_it_is_given_and_fetches_nothing() -> None:
    layers = [
        Layer("decoder", "/layers.0/<b>/MatMul", "MatMul", 3, 900.0, 300.0, 1000, 0.5),
        Layer("decoder", "/layers.1/Add", "Add", 3, 100.0, 33.0, 10, 0.01),
    ]
    made = page("a & b", layers, 5.0, "a machine")
    seen: list[tuple[str, dict[str, str | None]]] = []

    class Reader(HTMLParser):
        def handle_starttag(self, tag: str, attrs: list[tuple[str, str | None]]) -> None:
            seen.append((tag, dict(attrs)))

    Reader().feed(made)
    told = [attributes["title"] for tag, attributes in seen if tag == "div" and "title" in attributes]
    assert "layers.0: 0.90 ms, 90.0%" in told
    assert "all: 1.00 ms, 100.0%" in told
    assert not [tag for tag, attributes in seen if tag in ("script", "link", "img", "b") or "src" in attributes]
