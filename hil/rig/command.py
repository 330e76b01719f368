"""`cockpit hil`: run scenarios on this machine, check them, list them."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from contextlib import AbstractContextManager, contextmanager
from dataclasses import asdict, dataclass
from functools import partial
from pathlib import Path
from typing import TYPE_CHECKING, Annotated, Any

import typer

from cockpit.cli.output import JsonFlag, print_json, print_table
from cockpit.cli.talk import ProfileName
from hil.report import files as report
from hil.report import trend
from hil.report.compare import differences
from hil.rig.scenario import Loaded, find
from hil.rig.verdict import BAD
from models.errors import InputError, StartupError

if TYPE_CHECKING:  # a listing of scenarios loads no chain
    from hil.dut.base import DeviceUnderTest
    from hil.dut.service import RunningService

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
    service: Annotated[
        Path | None, typer.Option("--service", help="Drive the running cockpit serve on this socket instead.")
    ] = None,
    baseline: Annotated[
        Path | None, typer.Option("--baseline", help="The --out of an earlier run: the report shows the difference.")
    ] = None,
    trend_file: Annotated[
        Path | None, typer.Option("--trend", help="SQLite file of all runs; by default in the folder above --out.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Run scenarios one after the other, at the speed they are spoken: in this process, those with faults of devices or
    of the service in a process that the rig starts, or all of them on a running one (--service).

    Exit code 1 when one fails, has an error or gets no answer. Ctrl-C ends the run; --resume goes on with it.
    """
    loaded = find(patterns or ())
    out = out.expanduser()
    base = [] if baseline is None else _baseline(baseline)
    try:
        out.mkdir(parents=True, exist_ok=True)
        kept = _kept(loaded, out, profile) if resume else {}
        report.begin(out, list(kept.values()))
    except OSError as error:
        raise StartupError(f"{out} cannot be written ({error.strerror}): name another --out") from error
    rest = [one for one in loaded if one.digest not in kept]
    to = Destination(out, base, trend_file or out.parent / trend.FILE)
    rows = kept | (_run(rest, profile, to, list(kept.values()), service, quiet=json) if rest else {})
    ordered = [rows[one.digest] for one in loaded]
    compared = differences(ordered, base)
    bad = [row for row in ordered if row["outcome"] in BAD]
    if json:
        told = {"outcome": "FAIL" if bad else "PASS", "results": ordered, "report": str(out / "report.html")}
        if baseline is not None:
            told["differences"] = [asdict(one) | {"verdict": one.verdict} for one in compared]
        print_json(told)
    else:
        for one in compared:
            if one.verdict in ("slower", "faster"):
                typer.echo(f"{one.id}: {one.stage} {one.verdict} by {one.low_ms:.0f} to {one.high_ms:.0f} ms (95 %)")
        typer.echo(f"{len(ordered) - len(bad)} of {len(ordered)} passed; {out / 'report.html'}")
    if bad:
        raise typer.Exit(1)


@dataclass(frozen=True, slots=True)
class Destination:
    """Where a run is written to, and what it is compared with. baseline: rows of an earlier run. trend: SQLite."""

    out: Path
    baseline: list[dict[str, Any]]
    trend: Path


def _baseline(folder: Path) -> list[dict[str, Any]]:
    found = report.earlier(folder.expanduser())
    if not found:
        raise InputError(f"--baseline {folder}: no {report.RESULTS} there; name the --out of an earlier run")
    return found


def _run(
    loaded: list[Loaded],
    profile: str,
    to: Destination,
    before: list[dict[str, Any]],
    service: Path | None,
    *,
    quiet: bool,
) -> dict[str, dict[str, Any]]:
    """Results by digest; writes every file of the report. before: results that are kept of an earlier run."""
    from hil.rig.bench import Bench, environment

    out, env, sounds = to.out, environment(profile), {}
    rows: dict[str, dict[str, Any]] = {}
    for open_device, group in _devices(loaded, profile, service, out, quiet=quiet):
        with open_device() as device:
            env.setdefault("devices under test", []).append(device.name)
            bench = Bench(device, out / "heard")
            for one in group:
                if not quiet:
                    typer.echo(f"{len(rows) + 1}/{len(loaded)} {one.scenario.id} ... ", nl=False)
                result = bench.run(one)
                report.append(out, result, profile)
                rows[one.digest] = result.as_json() | {"profile": profile}
                sounds[one.scenario.id] = result.audio
                if not quiet:
                    typer.echo(result.outcome + "".join(f"\n    {reason}" for reason in result.reasons))
                every = [*before, *rows.values()]
                report.write_junit(out / "junit.xml", every)
                report.write_html(out / "report.html", every, sounds, env, differences(every, to.baseline))
    every = [*before, *rows.values()]
    trend.note(to.trend, every, env)
    compared = differences(every, to.baseline)
    report.write_html(out / "report.html", every, sounds, env, compared, trend.runs(to.trend))
    return rows


def _devices(
    loaded: list[Loaded], profile: str, service: Path | None, out: Path, *, quiet: bool
) -> Iterator[tuple[Callable[[], AbstractContextManager[DeviceUnderTest]], list[Loaded]]]:
    """The devices under test that are needed, and what runs on each."""
    from hil.dut import in_process, own_process
    from hil.dut.service import RunningService

    if service is not None:
        yield partial(_closing, RunningService, service), loaded
        return
    here = [one for one in loaded if not one.scenario.own_process]
    apart = [one for one in loaded if one.scenario.own_process]
    if here:
        yield partial(in_process.opened, profile, quiet=quiet), here
    if apart:
        yield partial(own_process.started, profile, out / "service.log"), apart


@contextmanager
def _closing(make: Callable[[Path], RunningService], socket: Path) -> Iterator[DeviceUnderTest]:
    device = make(socket)
    try:
        yield device
    finally:
        device.close()


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
        (one.scenario.id, one.scenario.requirement or "-", one.scenario.stimulus.told) for one in find(patterns or ())
    ]
    if json:
        print_json({"scenarios": [dict(zip(("id", "requirement", "said"), row, strict=True)) for row in rows]})
    else:
        print_table(("id", "requirement", "said"), rows)
