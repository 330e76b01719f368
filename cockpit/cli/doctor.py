"""`cockpit doctor`: what is missing, and the command that mends it."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated

import typer

from cockpit.cli.checks import all_findings
from cockpit.cli.output import JsonFlag, print_json
from cockpit.cli.values import profile_values
from cockpit.profile.load import load_profile
from cockpit.service.system_checks import system_findings
from models.errors import InputError, StartupError

_MARKS = {"ok": "ok     ", "note": "note   ", "missing": "MISSING"}


def doctor(
    profile: Annotated[
        str, typer.Option("--profile", help="The profile this machine should run.", autocompletion=profile_values)
    ] = "cpu",
    system: Annotated[
        bool, typer.Option("--system", help="Check what `cockpit install` laid down instead: units, user, folders.")
    ] = False,
    root: Annotated[Path | None, typer.Option("--root", help="With --system: the root of an image.")] = None,
    json: JsonFlag = False,
) -> None:
    """Check this machine: Python, packages, models, audio, disk, cores, GPU. Exit code 3 when something is missing."""
    if root is not None and not system:
        raise InputError("--root goes with --system")
    if system:
        findings = list(system_findings(root or Path("/"), profile))
    else:
        loaded = load_profile(profile)
        findings = list(all_findings(loaded, loaded.store()))
    missing = [finding for finding in findings if finding.status == "missing"]
    if json:
        print_json({"ok": not missing, "profile": profile, "findings": [found.as_json() for found in findings]})
    else:
        for finding in findings:
            print(f"{_MARKS[finding.status]}  {finding.name:<34} {finding.detail}")
            if finding.remedy:
                print(f"{'':43} -> {finding.remedy}")
        print(f"\n{len(missing)} missing" if missing else f"\nready for profile {profile}")
    if missing:
        raise typer.Exit(StartupError.exit_code)
