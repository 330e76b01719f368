"""`cockpit install`: units, their user, their folders and the profile, laid down below a root."""

from __future__ import annotations

import sys
from pathlib import Path
from typing import Annotated

import typer

from cockpit.cli.output import JsonFlag, print_json
from cockpit.cli.values import profile_values
from cockpit.service.install import next_steps, planned


def own_program() -> Path:
    """`cockpit` as it lies in this environment."""
    return Path(sys.prefix) / "bin" / "cockpit"


def install(
    root: Annotated[Path, typer.Option("--root", help="Below which it is laid down: / or an image's root.")],
    profile: Annotated[
        str,
        typer.Option(
            "--profile",
            help="What cockpit.service runs: a profile that ships, or a YAML file, which is copied to etc/cockpit.",
            autocompletion=profile_values,
        ),
    ] = "cpu",
    program: Annotated[
        Path | None, typer.Option("--program", help="`cockpit` as the target has it; without it, this one.")
    ] = None,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Say what would be written, and write nothing.")] = False,
    json: JsonFlag = False,
) -> None:
    """Lay down the systemd units, sysusers.d, tmpfiles.d, a preset and the profile. Doing it twice changes nothing.

    A file that `cockpit install` did not write is never written over: exit code 2 names it.
    """
    laid = planned(root, profile, program or own_program())
    laid.check()
    done = [(file.path, laid.state(file)) for file in laid.files] if dry_run else laid.write()
    steps = next_steps(laid)
    if json:
        files = [{"path": str(root / path), "state": state} for path, state in done]
        print_json({"root": root, "profile": laid.profile, "dry_run": dry_run, "files": files, "next": steps})
        return
    for path, state in done:
        typer.echo(f"{'would be ' if dry_run and state == 'written' else ''}{state:<10} {root / path}")
    typer.echo("\nnext:" + "".join(f"\n  {step}" for step in steps))
