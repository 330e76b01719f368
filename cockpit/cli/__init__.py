"""The command line. Each row of the table is one command; only the module of the command that runs is imported, so
`cockpit doctor` works on a machine where half of the packages are missing.

A command raises `CockpitError`; `main` turns it into one message on stderr (and one JSON object on stdout with
`--json`) and its exit code: 2 wrong input or configuration, 3 cannot start as asked, 4 fetching failed,
5 a stage failed for good, 6 a device is not there now. A signal ends it with 128 + its number
(cockpit/stop_signals.py).
"""

from __future__ import annotations

import importlib
import sys
from collections.abc import Callable
from dataclasses import dataclass
from typing import Annotated, Any

import typer

from cockpit import __version__
from cockpit.cli.output import report_error, run_program
from models.errors import CockpitError, StartupError

EXIT_CODES: tuple[tuple[int | str, str], ...] = (
    (0, "done"),
    (1, "a scenario of the rig failed"),
    (2, "wrong input or profile"),
    (3, "cannot start as asked"),
    (4, "fetching failed"),
    (5, "a stage failed on three turns in a row"),
    (6, "a device is not there now and may come: microphone, speaker, GPU, databroker"),
    (130, "stopped by Ctrl-C (SIGINT)"),
    (143, "stopped by SIGTERM"),
    (129, "stopped by SIGHUP"),
)
"""Of both programs; the help pages and the man pages show them, the README explains them."""


@dataclass(frozen=True, slots=True)
class Command:
    """One row. `target`: module:function, or module:typer application when `group`. `summary`: its line in the help."""

    name: str
    target: str
    summary: str
    group: bool = False


COMMANDS: tuple[Command, ...] = (
    Command("demo", "cockpit.cli.demo:demo", "Make the models ready and play recorded commands."),
    Command("say", "cockpit.cli.talk:say", "Play WAV files through the whole chain."),
    Command("listen", "cockpit.cli.talk:listen", "Listen to the microphone and answer through the speaker."),
    Command("ask", "cockpit.cli.talk:ask", "Answer text: one line, or those of standard input."),
    Command("serve", "cockpit.cli.serve:serve", "Run voice and the OpenAI-compatible API in one process."),
    Command("send", "cockpit.cli.serve:send", "Ask a running `cockpit serve`."),
    Command("panel", "cockpit.panel.command:panel", "Show a running `cockpit serve` in a browser, on loopback."),
    Command("places", "cockpit.cli.places:app", "Index a place file, and try what a name finds.", group=True),
    Command("manual", "cockpit.cli.manual:app", "Build an owner's manual, and try what a question finds.", group=True),
    Command("models", "cockpit.cli.models:app", "Fetch, list, build and verify model weights.", group=True),
    Command("pack", "cockpit.lifecycle.pack_commands:app", "Packs of models for a head unit offline.", group=True),
    Command("adapt", "cockpit.cli.adapt:app", "Train the adapters of models, on the bench.", group=True),
    Command("hil", "hil.rig.command:app", "Run the rig's scenarios and report.", group=True),
    Command("kernels", "cockpit.cli.kernels:app", "Compile the GPU kernels for the device here.", group=True),
    Command("profile", "cockpit.cli.profile:app", "Check, show and compare profiles.", group=True),
    Command("doctor", "cockpit.cli.doctor:doctor", "Say what is missing here and the command that mends it."),
    Command("install", "cockpit.service.install_command:install", "Lay down systemd units and what they need."),
    Command("degraded", "cockpit.service.degraded:degraded", "Stand in for the voice runtime when it cannot run."),
    Command("completion", "cockpit.cli.completion:completion", "Print the completion script of a shell."),
)
"""In the order of the help page."""


def build_app(wanted: str | None) -> typer.Typer:
    """The command line with `wanted` loaded; of every other command only the line in the help."""
    return _build(lambda command: command.name == wanted)


def full_app() -> typer.Typer:
    """The command line with every command loaded: what man pages and completion are made from."""
    return _build(lambda _: True)


def _build(loaded: Callable[[Command], bool]) -> typer.Typer:
    app = typer.Typer(
        name="cockpit",
        help="In-vehicle voice runtime: listens, understands, acts and answers, offline, in one process.",
        epilog=f"Exit codes: {', '.join(f'{code} {meaning}' for code, meaning in EXIT_CODES)}.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for command in COMMANDS:
        if not loaded(command):
            app.command(command.name, help=command.summary)(_not_loaded)
        elif command.group:
            app.add_typer(_load(command), name=command.name)
        else:
            app.command(command.name)(_load(command))
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. `arguments` default to those of the process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        app = build_app(next((word for word in arguments if not word.startswith("-")), None))
    except CockpitError as error:  # a package that the command needs is missing
        report_error(error, as_json="--json" in arguments)
        raise SystemExit(error.exit_code) from error
    run_program(app, arguments, "cockpit")


def _print_version(wanted: bool) -> None:
    if wanted:
        typer.echo(f"cockpit {__version__}")
        raise typer.Exit


def _root(
    version: Annotated[
        bool, typer.Option("--version", help="Print the version and exit.", is_eager=True, callback=_print_version)
    ] = False,
) -> None:
    """Options of the program itself."""


def _not_loaded() -> None:
    raise AssertionError("only the command that was asked for can run")


def _load(command: Command) -> Any:
    module, _, name = command.target.partition(":")
    try:
        return getattr(importlib.import_module(module), name)
    except ModuleNotFoundError as error:
        remedy = 'run: pip install "cockpit-voice[cpu]"'
        raise StartupError(f"cockpit {command.name} needs {error.name}, which is not installed; {remedy}") from error
