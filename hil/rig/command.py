"""`cockpit hil`: run scenarios on this machine, check them, list them."""

from __future__ import annotations

from pathlib import Path
from typing import Annotated, Any

import typer

from cockpit.cli.output import JsonFlag, print_json, print_table
from cockpit.cli.talk import ProfileName
from hil.rig import report
from hil.rig.scenario import Loaded, find
from hil.rig.verdict import BAD
from models.errors import StartupError

app = typer.Typer(help="Run the rig's scenarios and report.", no_args_is_help=True, rich_markup_mode=None)

Patterns = Annotated[
    list[str] | None,
    typer.Argument(metavar="[PATTERN...]", help="Files, folders, or ids that ship, with *; all that ship by default."),
]


@app.callback()
def hil() -> None:
    """Run the rig's scenarios and report."""


@app.command()
def run(
    patterns: Patterns = None,
    profile: ProfileName = "cpu",
    out: Annotated[Path, typer.Option("--out", help="Folder of results.jsonl, junit.xml, report.html.")] = Path(
        "out/hil"
    ),
    resume: Annotated[
        bool, typer.Option("--resume", help="Keep what --out holds of the same scenarios and profile; run the rest.")
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Run scenarios in this process, one after the other, at the speed they are spoken.

    Exit code 1 when one is not PASS or MARGINAL. Ctrl-C ends the run; --resume goes on with it.
    """
    loaded = find(patterns or ())
    out = out.expanduser()
    try:
        out.mkdir(parents=True, exist_ok=True)
        kept = _kept(loaded, out, profile) if resume else {}
        report.begin(out, list(kept.values()))
    except OSError as error:
        raise StartupError(f"{out} cannot be written ({error.strerror}): name another --out") from error
    rest = [one for one in loaded if one.digest not in kept]
    rows = kept | (_run(rest, profile, out, list(kept.values()), quiet=json) if rest else {})
    ordered = [rows[one.digest] for one in loaded]
    bad = [row for row in ordered if row["outcome"] in BAD]
    if json:
        print_json({"outcome": "FAIL" if bad else "PASS", "results": ordered, "report": str(out / "report.html")})
    else:
        typer.echo(f"{len(ordered) - len(bad)} of {len(ordered)} passed; {out / 'report.html'}")
    if bad:
        raise typer.Exit(1)


def _run(
    loaded: list[Loaded], profile: str, out: Path, before: list[dict[str, Any]], *, quiet: bool
) -> dict[str, dict[str, Any]]:
    """Results by digest; writes every file of the report. before: results that are kept of an earlier run."""
    from hil.rig.bench import environment, opened

    env, rows, sounds = environment(profile), {}, {}
    with opened(profile, out / "heard", quiet=quiet) as bench:
        for number, one in enumerate(loaded, 1):
            if not quiet:
                typer.echo(f"{number}/{len(loaded)} {one.scenario.id} ... ", nl=False)
            result = bench.run(one)
            report.append(out, result, profile)
            rows[one.digest] = result.as_json() | {"profile": profile}
            sounds[one.scenario.id] = result.audio
            if not quiet:
                typer.echo(result.outcome + "".join(f"\n    {reason}" for reason in result.reasons))
            every = [*before, *rows.values()]
            report.write_junit(out / "junit.xml", every)
            report.write_html(out / "report.html", every, sounds, env)
    return rows


def _kept(loaded: list[Loaded], out: Path, profile: str) -> dict[str, dict[str, Any]]:
    wanted = {one.digest for one in loaded}
    return {
        row["digest"]: row
        for row in report.earlier(out)
        if row["digest"] in wanted and row["profile"] == profile and row["outcome"] not in ("ERROR", "TIMEOUT")
    }


@app.command()
def check(patterns: Patterns = None, json: JsonFlag = False) -> None:
    """Check scenario files without running them."""
    loaded = find(patterns or ())
    if json:
        print_json({"scenarios": [{"id": one.scenario.id, "file": str(one.file)} for one in loaded]})
    else:
        typer.echo(f"{len(loaded)} scenarios are good")


@app.command("list")
def list_(patterns: Patterns = None, json: JsonFlag = False) -> None:
    """List scenarios: id, requirement, what is said."""
    rows = [
        (one.scenario.id, one.scenario.requirement or "-", str(one.scenario.stimulus.say or one.scenario.stimulus.wav))
        for one in find(patterns or ())
    ]
    if json:
        print_json({"scenarios": [dict(zip(("id", "requirement", "said"), row, strict=True)) for row in rows]})
    else:
        print_table(("id", "requirement", "said"), rows)
