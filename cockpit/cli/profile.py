"""`cockpit profile`: check a profile and show what it comes to."""

from __future__ import annotations

import sys
from collections.abc import Iterator, Sequence
from dataclasses import asdict
from typing import Annotated, Any

import typer

from cockpit.cli.output import JsonFlag, print_json, print_table
from cockpit.cli.values import profile_values
from cockpit.profile.base import dotted
from cockpit.profile.explain import Explanation, explain
from cockpit.profile.load import LoadedProfile, load_profile
from cockpit.profile.memory_budget import MIB, MemoryPlan
from cockpit.profile.memory_plan import (
    LatencyEstimate,
    estimate_latency,
    plan_memory,
    restart_reason,
)
from cockpit.profile.runnable import Finding, findings
from cockpit.scheduling.measured_memory import measured_peaks
from models.errors import ConfigError, InputError
from models.store.store import Store

app = typer.Typer(help="Check, show and compare profiles.", no_args_is_help=True, rich_markup_mode=None)

Name = Annotated[
    str,
    typer.Argument(
        metavar="NAME|FILE", help="A profile that ships (cpu) or a path to a YAML file.", autocompletion=profile_values
    ),
]


@app.command()
def check(name: Name, json: JsonFlag = False) -> None:
    """Check a profile, everything it extends, and whether it can start here. Prints every fault, with its place.

    Exit code 2: the profile is wrong. 3: it is right, but something is missing on this machine.
    """
    try:
        loaded = load_profile(name)
    except ConfigError as error:
        faults = str(error).splitlines()
        if json:
            print_json({"ok": False, "faults": faults, "warnings": []})
        else:
            sys.stderr.write("\n".join(faults) + f"\n{_count(faults)}\n")
        raise typer.Exit(error.exit_code) from error
    warnings, missing = (
        [str(warning) for warning in loaded.warnings],
        _missing(loaded, loaded.store()),
    )
    if json:
        faults = [_placed(loaded, found) for found in missing]
        print_json({"ok": not missing, "files": loaded.files, "faults": faults, "warnings": warnings})
    else:
        for warning in warnings:
            sys.stderr.write(f"warning: {warning}\n")
        if not missing:
            print(f"{loaded.files[0]}: good ({' <- '.join(path.name for path in loaded.files)})")
        _print_missing(loaded, missing)
    if missing:
        raise typer.Exit(min(found.error.exit_code for found in missing))


@app.command()
def show(
    name: Name,
    key: Annotated[str | None, typer.Option("--explain", metavar="KEY", help="A key or section, such as tts.")] = None,
    json: JsonFlag = False,
) -> None:
    """Show the effective values of a profile, each with the place that set it; or explain one key."""
    loaded = load_profile(name)
    if key is not None:
        explanation = explain(loaded, key)
        print_json(asdict(explanation)) if json else print(_explained(explanation))
    elif json:
        print_json({"files": loaded.files, "profile": loaded.profile.model_dump(mode="json")})
    else:
        print("\n".join(_lines(loaded, loaded.profile.model_dump(mode="json", exclude={"extends"}), ())))


@app.command()
def diff(
    name: Name,
    other: Annotated[
        str, typer.Argument(metavar="OTHER", help="The profile to compare with.", autocompletion=profile_values)
    ],
    json: JsonFlag = False,
) -> None:
    """Show the effective values in which two profiles differ, and where each was set."""
    mine, theirs = load_profile(name), load_profile(other)
    rows = differences(mine, theirs)
    if json:
        fields = ("key", "value", "set_at", "other_value", "other_set_at")
        print_json({"differences": [dict(zip(fields, row, strict=True)) for row in rows]})
        return
    if rows:
        table = ((key, _text(value), at, _text(another), other_at) for key, value, at, another, other_at in rows)
        print_table(("key", name, "set at", other, "set at"), table)
    else:
        print("no difference")


@app.command()
def apply(
    name: Name,
    dry_run: Annotated[bool, typer.Option("--dry-run", help="Only say what would change and whether it fits.")] = False,
    against: Annotated[
        str | None,
        typer.Option("--against", help="Profile in use; default: cpu or h200.", autocompletion=profile_values),
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Check a profile against this machine: memory plan, latency estimate, what changes. Exit code 2 when refused."""
    if not dry_run:
        raise InputError(
            f"a running Cockpit does not take a new profile yet: check it with --dry-run, then restart Cockpit with "
            f"--profile {name}"
        )
    loaded = load_profile(name)
    store = loaded.store()
    in_use = against or ("cpu" if loaded.profile.device == "cpu" else "h200")
    memory = plan_memory(loaded, store, measured_peaks(loaded.profile, loaded.arbiter, store))
    missing = _missing(loaded, store)
    latency = estimate_latency(loaded.profile)
    changes = differences(loaded, load_profile(in_use))
    if json:
        print_json(_plan_json(loaded, memory, latency, in_use, changes, missing))
    else:
        _print_plan(loaded, memory, latency, in_use, changes)
        _print_missing(loaded, missing)
    if missing:
        raise typer.Exit(min(found.error.exit_code for found in missing))


def _missing(loaded: LoadedProfile, store: Store) -> list[Finding]:
    """What keeps the profile from starting here."""
    peaks = measured_peaks(loaded.profile, loaded.arbiter, store)
    return [found for found in findings(loaded.profile, loaded.arbiter, store, peaks) if found.status == "missing"]


def _placed(loaded: LoadedProfile, found: Finding) -> str:
    """A finding with the place of the key that asks for it."""
    place = loaded.place(found.key) if found.key else None
    return f"{place}: {found}" if place else str(found)


def _print_missing(loaded: LoadedProfile, missing: list[Finding]) -> None:
    for found in missing:
        sys.stderr.write(_placed(loaded, found) + "\n")
    if missing:
        sys.stderr.write(f"cannot start here: {len(missing)} missing\n")


def _count(faults: Sequence[object]) -> str:
    return "1 fault" if len(faults) == 1 else f"{len(faults)} faults"


Change = tuple[str, Any, str, Any, str]


def _plan_json(
    loaded: LoadedProfile,
    memory: MemoryPlan,
    latency: LatencyEstimate,
    in_use: str,
    changes: list[Change],
    missing: list[Finding],
) -> dict[str, Any]:
    return {
        "ok": not missing,
        "refused": "\n".join(_placed(loaded, found) for found in missing) or None,
        "files": loaded.files,
        "warnings": [str(warning) for warning in loaded.warnings],
        "memory": {
            "items": [asdict(line) for line in memory.lines],
            "sum_bytes": memory.sum_bytes,
            "limit_bytes": memory.limit_bytes,
            "total_bytes": memory.total_bytes,
        },
        "latency": asdict(latency),
        "against": in_use,
        "changes": [
            {"key": key, "value": value, "value_in_use": other, "restart": True, "because": restart_reason(key)}
            for key, value, _, other, _ in changes
        ],
    }


def _print_plan(
    loaded: LoadedProfile, memory: MemoryPlan, latency: LatencyEstimate, in_use: str, changes: list[Change]
) -> None:
    for warning in loaded.warnings:
        sys.stderr.write(f"warning: {warning}\n")
    rows = [(line.name, f"{line.count_bytes / MIB:.0f} MiB", line.note) for line in memory.lines]
    total = ("sum", f"{memory.sum_bytes / MIB:.0f} MiB", f"limit {memory.limit_text}")
    print_table(("memory", "size", "from"), [*rows, total])
    print(f"\nlatency of English turns, end of speech to first sound, median ({latency.source})")
    if latency.command_ms is not None and latency.question_ms is not None:
        print(f"  command   about {latency.command_ms:.0f} ms\n  question  about {latency.question_ms:.0f} ms")
    print(f"\nchanges against {in_use}" + ("" if changes else ": none"))
    if changes:
        texts = ((key, _text(other), _text(value), restart_reason(key)) for key, value, _, other, _ in changes)
        print_table(("key", "in use", "new", "needs a restart"), texts)


def differences(mine: LoadedProfile, theirs: LoadedProfile) -> list[tuple[str, Any, str, Any, str]]:
    """(key, value, where set, other value, where set) of every leaf that differs; None: the profile has no such key."""
    left, right = (
        dict(_leaves(one.profile.model_dump(mode="json", exclude={"extends"}), ())) for one in (mine, theirs)
    )
    changed = [path for path in dict.fromkeys([*left, *right]) if left.get(path) != right.get(path)]
    return [
        (dotted(path), left.get(path), _origin(mine, path), right.get(path), _origin(theirs, path)) for path in changed
    ]


def _leaves(node: dict[str, Any], path: tuple[str, ...]) -> Iterator[tuple[tuple[str, ...], Any]]:
    for key, value in node.items():
        if isinstance(value, dict):
            yield from _leaves(value, (*path, key))
        else:
            yield (*path, key), value


def _origin(loaded: LoadedProfile, path: tuple[str, ...]) -> str:
    place = loaded.places.get(path)
    return f"{place.file.name}:{place.line}" if place else "default"


def _explained(found: Explanation) -> str:
    if found.keys:
        return "\n".join(_section_lines(found, 0))
    rows = {
        "value": _text(found.value),
        "set at": found.origin,
        "default": _text(found.default),
        "allowed": found.allowed,
        "effect": found.effect,
    }
    return found.key + "\n" + "\n".join(f"  {label:<8} {text}" for label, text in rows.items() if text)


def _section_lines(found: Explanation, depth: int) -> Iterator[str]:
    """A section as YAML: each key with its value and origin, and below it what it does."""
    indent = "  " * depth
    name = found.key.rpartition(".")[2] if depth else found.key
    about = f"{indent}    {found.effect}" + (f" ({found.allowed})" if found.allowed else "")
    if found.keys:
        yield f"{indent}{name}:"
        if found.effect:
            yield about
        for inner in found.keys:
            yield from _section_lines(inner, depth + 1)
    else:
        yield f"{indent + name + ': ' + _text(found.value):<48} # {found.origin}"
        if found.effect or found.allowed:
            yield about


def _lines(loaded: LoadedProfile, node: dict[str, Any], path: tuple[str, ...]) -> list[str]:
    lines = []
    for key, value in node.items():
        here = (*path, key)
        indent = "  " * len(path)
        if isinstance(value, dict) and value:
            lines += [f"{indent}{key}:", *_lines(loaded, value, here)]
        else:
            lines.append(f"{indent + key + ': ' + _text(value):<48} # {_origin(loaded, here)}")
    return lines


def _text(value: Any) -> str:
    if isinstance(value, list):
        return "[" + ", ".join(map(_text, value)) + "]"
    if isinstance(value, bool):
        return "true" if value else "false"
    return "null" if value is None else str(value)
