"""`cockpit models hash` and `validate`: what a model was built for, and whether it works here."""

from __future__ import annotations

from collections.abc import Sequence
from dataclasses import asdict
from typing import TYPE_CHECKING, Annotated

import typer

from cockpit.cli.output import JsonFlag, print_json, print_table
from cockpit.cli.values import model_values, profile_values
from cockpit.lifecycle.child import Outcome
from cockpit.lifecycle.validate import validatable, validate
from models.errors import InputError, StartupError
from models.store.identity import Identity, identity_of
from models.store.registry import ModelEntry
from models.store.store import Store

if TYPE_CHECKING:
    from cockpit.profile.sections import Profile

Names = Annotated[
    list[str] | None,
    typer.Argument(metavar="[MODEL]...", help="Models; none: the default set.", autocompletion=model_values),
]
ForProfile = Annotated[
    str | None,
    typer.Option("--profile", help="The models of this profile, where it runs them.", autocompletion=profile_values),
]
OfProfile = Annotated[
    str | None,
    typer.Option("--profile", help="Whose registry (its models.registry) is meant.", autocompletion=profile_values),
]


def chosen(names: list[str] | None, profile: str | None, *, everything: bool = False) -> tuple[Store, list[ModelEntry]]:
    """The store for the profile's device (a voice runs on a GPU only beside one), and the models that are meant: the
    named ones and the profile's, else the default set. everything: all that may be used commercially.
    """
    store, loaded = opened(profile)
    if everything:
        return store, [entry for entry in store.registry.models if entry.commercial_use]
    wanted = [*(names or ()), *(() if loaded is None else loaded.model_names)] or store.registry.default_names
    return store, [store.registry.get(name) for name in dict.fromkeys(wanted)]


def opened(profile: str | None, *, any_device: bool = False) -> tuple[Store, Profile | None]:
    """The store over a profile's registry and for its device (unless `any_device`), and that profile; without one, the
    store over the registry that ships.
    """
    if profile is None:
        return Store.open(), None
    from cockpit.profile.load import load_profile

    loaded = load_profile(profile)
    return loaded.store(any_device=any_device), loaded.profile


def hash_models(
    names: Names = None,
    profile: ForProfile = None,
    field: Annotated[str | None, typer.Option("--field", help="Print only the value of this field.")] = None,
    json: JsonFlag = False,
) -> None:
    """Print the fingerprint of models on this machine, sha3-256 over named fields, and the fields.

    Those of the build decide whether it may be loaded, those of the machine whether its validation holds.
    """
    store, wanted = chosen(names, profile)
    found = [identity_of(store, entry.name) for entry in wanted]
    if json:
        print_json({"models": [_as_json(identity, field) for identity in found]})
        return
    for identity in found:
        if field is not None:
            value = _field(identity, field)
            print(value if len(found) == 1 else f"{identity.model}: {value}")
        else:
            _show(identity, store)


def _field(identity: Identity, field: str) -> str:
    if field not in identity.fields:
        raise InputError(f"{identity.model} has no field {field!r}; it has {', '.join(identity.fields)}")
    return identity.fields[field]


def _as_json(identity: Identity, field: str | None) -> dict[str, object]:
    if field is not None:
        return {"name": identity.model, field: _field(identity, field)}
    said = {"name": identity.model, "sha3_256": identity.sha3, "build": identity.build, "machine": identity.machine}
    return {**said, "differences": identity.differences, "unvalidated": identity.unvalidated or None}


def _show(identity: Identity, store: Store) -> None:
    print(f"{identity.model}  {identity.sha3}")
    rows = [("build", name, value) for name, value in identity.build.items()]
    rows += [("machine", name, value) for name, value in identity.machine.items()]
    print_table(("of", "field", "value"), rows)
    for difference in identity.differences:
        print(f"not as wanted here: {difference}; run: {store.remedy(identity.model)}")
    if identity.unvalidated and not identity.differences:
        again = store.validation_remedy if store.is_built(identity.model) else store.remedy
        remedy = again(identity.model)
        print(f"may not be served: {identity.unvalidated}; run: {remedy}")
    print()


def validate_models(
    names: Names = None,
    profile: ForProfile = None,
    cold_start: Annotated[
        bool,
        typer.Option("--cold-start", help="A process for each model, its files out of the page cache."),
    ] = False,
    json: JsonFlag = False,
) -> None:
    """Load models in a fresh process, ask them, compare with known answers, and keep the result beside each build.

    `serve` and `listen` take only what passed on this machine, firmware, driver and software. Exit code 3 when a model
    did not pass, or cannot be tried here.
    """
    store, entries = chosen(names, profile)
    wanted = [entry.name for entry in entries]
    store.built_all(wanted)
    outcomes = list(told(store, validatable(store, wanted), cold=cold_start, quiet=json))
    if json:
        print_json({"ok": all(_passed(outcome) for outcome in outcomes), "models": [asdict(item) for item in outcomes]})
    if not all(map(_passed, outcomes)):
        raise typer.Exit(StartupError.exit_code)


def told(store: Store, names: Sequence[str], *, cold: bool, quiet: bool) -> list[Outcome]:
    """Validate, and say on stdout what comes of it unless `quiet`."""
    outcomes = []
    for outcome in validate(store, names, cold=cold):
        outcomes.append(outcome)
        if not quiet:
            typer.echo(f"{outcome.model}: {text_of(outcome, store)}")
    return outcomes


def text_of(outcome: Outcome, store: Store) -> str:
    """An outcome in one line."""
    if outcome.cannot:
        remedy = store.validation_remedy(outcome.model)
        return f"cannot be validated here: {outcome.cannot}; run {remedy} where it is served"
    if outcome.fault:
        return f"FAILED: {outcome.fault}"
    known = sum(bool(answer.expected) for answer in outcome.answers)
    answers = f"{known} known answer{'s' if known > 1 else ''}" if known else "no known answer, the same one twice"
    times = f"loaded in {outcome.load_ms:.0f} ms, first result in {outcome.first_result_ms:.0f} ms"
    return f"validated: {answers}, {times}, {outcome.peak_memory_mb:.0f} MB at most"


def _passed(outcome: Outcome) -> bool:
    return not outcome.fault and not outcome.cannot
