"""`cockpit adapt`: train what the models of the chain are adapted with, on the bench."""

from __future__ import annotations

import importlib
import shlex
import subprocess
import sys
from collections.abc import Sequence
from pathlib import Path
from typing import Annotated, Any

import typer

from cockpit.cli.output import JsonFlag, print_json
from cockpit.cli.progress import steps
from models.errors import InputError, StartupError
from models.store.store import Store

app = typer.Typer(help="Train the adapters of models, on the bench.", no_args_is_help=True, rich_markup_mode=None)


@app.callback()
def adapt() -> None:
    """Train the adapters of models, on the bench. Needs the `build` extra (torch)."""


@app.command()
def parser(
    data: Annotated[
        str,
        typer.Option("--data", metavar="DIR|FILE|generated:SEED:N", help="Training data: JSON lines, or made."),
    ],
    out: Annotated[Path, typer.Option("--out", help="Folder of the adapter, its card, report and plots.")],
    dev: Annotated[
        Path | None, typer.Option("--dev", help="JSON lines to calibrate on; none: one line of 25 is held out.")
    ] = None,
    seed: Annotated[int, typer.Option("--seed", help="Seed of weights, order and masking.")] = 1,
    epochs: Annotated[int, typer.Option("--epochs", min=1, help="How often every line is seen.")] = 6,
    start: Annotated[
        Path | None,
        typer.Option("--start", metavar="ADAPTER", help="Begin with this adapter's weights; none: with fresh ones."),
    ] = None,
    threads: Annotated[
        int, typer.Option("--threads", min=1, help="Compute threads, and processes that read data.")
    ] = 1,
    device: Annotated[
        str, typer.Option("--device", help="Of torch: cpu, cuda; auto: a GPU where there is one.")
    ] = "auto",
    json: JsonFlag = False,
) -> None:
    """Train the semantic parser. A run that was cut short goes on when the same command is given again."""
    from models.train.parser.run import Encoder, read_lines, train_parser

    try:
        from models.train.parser.fit import FitOptions, device_of
    except ModuleNotFoundError as error:
        raise StartupError('training needs torch; run: pip install "cockpit-voice[build]"') from error
    try:
        chosen = device_of(device)
    except ValueError as error:
        raise InputError(f"--device: {error}") from error
    lines = _generated(data) if data.startswith("generated:") else read_lines(Path(data))
    held_out = _held_out(data, dev)
    options = FitOptions(seed=seed, epochs=epochs, threads=threads, device=chosen)
    with steps(quiet=json, total=1) as progress:
        progress.begin("parser", work=True)
        shown = 0

        def told(done: int, total: int, loss: float) -> None:
            nonlocal shown
            if done * 200 // total != shown or sys.stderr.isatty():
                shown = done * 200 // total
                progress.step(f"step {done} of {total}, loss {loss:.3f}", done / total)

        def say(line: str) -> None:
            if not json:
                sys.stderr.write(f"{line}\n")

        command = "cockpit " + shlex.join(sys.argv[1:])
        report = train_parser(
            lines,
            held_out,
            Encoder.of(Store.open()),
            out,
            options,
            command=command,
            start=start,
            generator=_generator() if data.startswith("generated:") else "",
            told=told,
            say=say,
        )
        progress.end(f"parser: adapter in {out}")
    if json:
        print_json(report)
        return
    last = report["held_out_accuracy"][-1]
    typer.echo(f"held out: reason right {last['reason']:.1%}, calls {last['calls']:.1%}, both {last['whole']:.1%}")
    typer.echo(f"adapter: {report['adapter']} ({report['adapter_bytes']} bytes, sha256 {report['adapter_sha256']})")


def _held_out(data: str, dev: Path | None) -> Sequence[Any]:
    from models.train.parser.run import read_lines

    if dev is not None:
        return read_lines(dev)
    beside = Path(data) / "dev.jsonl"
    return read_lines(beside) if beside.is_file() else []


def _generated(data: str) -> list[Any]:
    """Lines of `generated:SEED:N`, made by models/train/generate.py."""
    try:
        seed, count = map(int, data.split(":")[1:])
    except ValueError as error:
        raise InputError(f"{data}: generated:SEED:N, two whole numbers") from error
    generate = importlib.import_module("models.train.generate")
    return list(generate.sentences(seed, count))


def _generator() -> str:
    """The commit that changed the generator last; empty outside a checkout, where the package's version says it."""
    folder = Path(__file__).resolve().parents[2] / "models" / "train"
    log = [
        "git",
        "-C",
        str(folder),
        "log",
        "-1",
        "--format=%H",
        "--",
        *(path.name for path in folder.glob("*.py")),
        "phrases",
    ]
    try:
        return subprocess.run(log, capture_output=True, text=True, check=True).stdout.strip()
    except (OSError, subprocess.CalledProcessError):
        return ""
