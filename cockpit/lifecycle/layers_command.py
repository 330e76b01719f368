"""`cockpit models profile`: where a model's time goes, as a table, JSON, or a page with a flame graph."""

from __future__ import annotations

import platform
from dataclasses import asdict
from pathlib import Path
from typing import Annotated

import typer

from cockpit.cli.output import JsonFlag, print_json, print_table
from cockpit.cli.values import model_values
from cockpit.lifecycle.commands import OfProfile, opened
from cockpit.lifecycle.validate import PHONEMES
from models.errors import InputError
from models.store.fingerprint import onnxruntime_version
from models.store.machine import machine_fields

WORST = 10


def profile_model(
    name: Annotated[str, typer.Argument(metavar="MODEL", help="A model.", autocompletion=model_values)],
    times: Annotated[int, typer.Option("--times", min=2, max=1000, help="How often it is asked.")] = 5,
    page: Annotated[Path | None, typer.Option("--page", help="Also write an HTML page with a flame graph.")] = None,
    profile: OfProfile = None,
    json: JsonFlag = False,
) -> None:
    """Profile a model node by node on this machine's CPU: time, bytes moved, share of the memory bound, the worst ten.

    The model is loaded as validation loads it, and asked what it is asked there. The first run of every node is left
    out. Profiling itself costs time: the shares count, not the sum.
    """
    from cockpit.lifecycle.layers import profile_layers
    from cockpit.lifecycle.layers_page import page as page_of

    store, _ = opened(profile, any_device=True)
    entry = store.registry.get(name)
    if store.runs_on(name) != "cpu" or entry.engine is None:
        raise InputError(f"{name} is not run by an engine on the CPU; nsys profiles what runs on a GPU")
    layers, gb_per_s = profile_layers(entry, store.built(name), store.root / "built" / PHONEMES, times=times)
    if page is not None:
        machine = f"{machine_fields('cpu')['cpu']}, {platform.machine()}, ONNX Runtime {onnxruntime_version()}"
        try:
            page.write_text(page_of(f"{name}: time by layer", layers, gb_per_s, machine), encoding="utf-8")
        except OSError as error:
            raise InputError(f"{page} cannot be written: {error.strerror}") from error
    whole_us = sum(layer.total_us for layer in layers)
    if json:
        print_json({"name": name, "copy_gb_per_s": round(gb_per_s, 2), "layers": [asdict(layer) for layer in layers]})
        return
    columns = ("node", "operator", "share", "median us", "MB moved", "share of bound")
    rows = (
        (
            f"{layer.graph}: {layer.name}",
            layer.operator,
            f"{layer.total_us / whole_us:.1%}",
            f"{layer.median_us:.0f}",
            f"{layer.moved_bytes / 1e6:.3f}",
            f"{layer.share_of_bound:.2f}",
        )
        for layer in layers[:WORST]
    )
    print_table(columns, rows)
    print(f"\n{len(layers)} nodes, {whole_us / 1000:.1f} ms in all; copying moves {gb_per_s:.1f} GB/s")
