"""`cockpit kernels`: compile the GPU kernels for the device here, so that serving needs no compiler."""

from __future__ import annotations

from pathlib import Path

import typer

from cockpit.cli.output import JsonFlag, print_json
from cockpit.device.cuda.driver import BoundDriver
from cockpit.device.cuda.kernel_store import KernelStore, nvrtc_version
from cockpit.device.cuda_decode.serving import served_sources
from cockpit.lifecycle.commands import OfProfile, opened
from models.engines.llm.causal_lm import DEVICE_SUFFIXES
from models.errors import ModelMissing

app = typer.Typer(help="Compile the GPU kernels for the device here.", no_args_is_help=True, rich_markup_mode=None)


@app.command()
def build(profile: OfProfile = None, json: JsonFlag = False) -> None:
    """Compile for GPU 0: the decode kernels of every built model that they serve.

    A model that is not built is left out; one that is damaged, or was built for something else, is an error.
    """
    models, _ = opened(profile, any_device=True)
    facts = BoundDriver().open(0)
    kernels, nvrtc = KernelStore(models.root), nvrtc_version()

    def built(engine: str, ending: str = "") -> list[Path]:
        named = [entry.name for entry in models.registry.models if entry.engine == engine]
        there = [name for name in named if name.endswith(ending) and not isinstance(models.fault(name), ModelMissing)]
        return list(models.built_all(there).values())

    sources = served_sources(built("causal-lm", DEVICE_SUFFIXES["f16"]))
    paths = [kernels.build(source, facts, nvrtc) for source in sources]
    if json:
        print_json({"device": facts.name, "capability": facts.capability, "nvrtc": nvrtc, "kernels": paths})
    else:
        for path in paths:
            print(path)
