"""The command line. Each row of the two tables is one command; its module is imported when the program starts.

A command raises `CockpitError`; `main` turns it into one message on stderr (and one JSON object on stdout with
`--json`) and its exit code: 2 wrong input or configuration, 3 cannot start as asked, 4 fetching failed.
"""

from __future__ import annotations

import importlib
import sys
from typing import Annotated, Any

import typer

from cockpit import __version__
from cockpit.cli.output import report_error
from models.errors import CockpitError

COMMANDS: tuple[tuple[str, str], ...] = (("doctor", "cockpit.cli.doctor:doctor"),)
"""Name -> module:function, in the order of the help page."""

GROUPS: tuple[tuple[str, str], ...] = (
    ("models", "cockpit.cli.models:app"),
    ("profile", "cockpit.cli.profile:app"),
)
"""Name -> module:typer application."""


def build_app() -> typer.Typer:
    """The whole command line."""
    app = typer.Typer(
        name="cockpit",
        help="In-vehicle voice runtime: listens, understands, acts and answers, offline, in one process.",
        epilog="Exit codes: 0 done, 2 wrong input or profile, 3 cannot start as asked, 4 fetching failed.",
        no_args_is_help=True,
        add_completion=False,
        pretty_exceptions_enable=False,
        rich_markup_mode=None,
        context_settings={"help_option_names": ["-h", "--help"]},
    )
    app.callback()(_root)
    for name, target in COMMANDS:
        app.command(name)(_load(target))
    for name, target in GROUPS:
        app.add_typer(_load(target), name=name)
    return app


def main(arguments: list[str] | None = None) -> None:
    """Run the command line and exit. `arguments` default to those of the process."""
    arguments = sys.argv[1:] if arguments is None else arguments
    try:
        build_app()(arguments)
    except CockpitError as error:
        report_error(error, as_json="--json" in arguments)
        raise SystemExit(error.exit_code) from error


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


def _load(target: str) -> Any:
    module, _, name = target.partition(":")
    return getattr(importlib.import_module(module), name)
