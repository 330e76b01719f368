"""`cockpit profile`: check a profile and show what it comes to."""

from __future__ import annotations

import os
import sys
from collections.abc import Iterator
from dataclasses import asdict
from typing import Annotated, Any

import typer

from cockpit.arbiter.config import Facts
from cockpit.cli.output import JsonFlag, print_json, print_table
from cockpit.cli.values import profile_values
from cockpit.profile.explain import Explanation, explain
from cockpit.profile.load import LoadedProfile, dotted, load_profile
from cockpit.profile.memory_budget import MIB, MemoryPlan
from cockpit.profile.memory_plan import (
    LatencyEstimate,
    device_memory_bytes,
    estimate_latency,
    plan_memory,
    restart_reason,
)
from models.errors import ConfigError, InputError
from models.store.registry import load_registry
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
    """Check a profile and everything it extends. Prints every fault as file:line:column; exit code 2 on any."""
    try:
        loaded = load_profile(name)
    except ConfigError as error:
        faults = str(error).splitlines()
        if json:
            print_json({"ok": False, "faults": faults, "warnings": []})
        else:
            sys.stderr.write("\n".join(faults) + f"\n{len(faults)} faults\n")
        raise typer.Exit(error.exit_code) from error
    warnings = [str(warning) for warning in loaded.warnings]
    if json:
        print_json({"ok": True, "files": loaded.files, "faults": [], "warnings": warnings})
        return
    for warning in warnings:
        sys.stderr.write(f"warning: {warning}\n")
    print(f"{loaded.files[0]}: good ({' <- '.join(path.name for path in loaded.files)})")


@app.command()
def show(
    name: Name,
    key: Annotated[str | None, typer.Option("--explain", metavar="KEY", help="One key, e.g. endpoint.reopen.")] = None,
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
    loaded = _here(name)
    in_use = against or ("cpu" if loaded.profile.device == "cpu" else "h200")
    memory = plan_memory(loaded, Store.open())
    latency = estimate_latency(loaded.profile)
    changes = differences(loaded, load_profile(in_use))
    if json:
        print_json(_plan_json(loaded, memory, latency, in_use, changes))
    else:
        _print_plan(loaded, memory, latency, in_use, changes)
    if not memory.fits:
        raise typer.Exit(ConfigError.exit_code)


def _here(name: str) -> LoadedProfile:
    """The profile checked against what this machine has. Raises ConfigError."""
    device = load_profile(name).profile.device
    total = device_memory_bytes(device)
    facts = Facts(
        device=device,
        units=len(os.sched_getaffinity(0)) if device == "cpu" else None,
        memory_total_mb=None if total is None else total >> 20,
        models=load_registry().names,
    )
    return load_profile(name, facts=facts)


Change = tuple[str, Any, str, Any, str]


def _plan_json(
    loaded: LoadedProfile, memory: MemoryPlan, latency: LatencyEstimate, in_use: str, changes: list[Change]
) -> dict[str, Any]:
    return {
        "ok": memory.fits,
        "refused": None if memory.fits else memory.refusal,
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
    print(f"\nlatency, end of speech to first sound ({latency.source})")
    if latency.command_ms is not None and latency.question_ms is not None:
        print(f"  command   about {latency.command_ms:.0f} ms\n  question  about {latency.question_ms:.0f} ms")
    print(f"\nchanges against {in_use}" + ("" if changes else ": none"))
    if changes:
        texts = ((key, _text(other), _text(value), restart_reason(key)) for key, value, _, other, _ in changes)
        print_table(("key", "in use", "new", "needs a restart"), texts)
    if not memory.fits:
        sys.stderr.write(f"cockpit: refused: {memory.refusal}\n")


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
    rows = {
        "value": _text(found.value),
        "set at": found.origin,
        "default": _text(found.default),
        "allowed": found.allowed,
        "effect": found.effect,
    }
    return found.key + "\n" + "\n".join(f"  {label:<8} {text}" for label, text in rows.items() if text)


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
