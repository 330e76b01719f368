"""Profile file -> checked settings, with the place where every value was written.

    read (every file of the `extends:` chain) -> merge -> check sections, orchestration and tasks, names of models

Every fault of every step is reported at once, as file:line:column: message.
"""

from __future__ import annotations

import difflib
from collections.abc import Iterator, Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, Final

from cockpit.arbiter.config import BACKGROUND, DIALOGUE, NAVIGATION, SPEECH, VEHICLE, ArbiterConfig
from cockpit.profile.base import Violation, dotted, suggestion, validated
from cockpit.profile.language_models import by_role
from cockpit.profile.latency_baselines import task_baselines_ms
from cockpit.profile.orchestration import (
    WARMED_TASKS,
    Context,
    Facts,
    arbiter_config,
    baseline_warnings,
    cross_violations,
)
from cockpit.profile.sections import Profile
from cockpit.profile.yaml import Document, Fault, KeyPath, SourcePosition, read_yaml
from cockpit.scheduling.tasks import stand_in
from models.errors import ConfigError
from models.store.registry import Device, Registry, Role, load_registry
from models.store.store import Store

PROFILES = Path(__file__).resolve().parents[2] / "profiles"
MAX_CHAIN = 8


@dataclass(frozen=True, slots=True)
class LoadedProfile:
    """A checked profile. `places`: key path -> where it was written; a path not in it has its default."""

    profile: Profile
    arbiter: ArbiterConfig | None
    files: tuple[Path, ...]
    places: Mapping[KeyPath, SourcePosition]
    warnings: tuple[Fault, ...]
    registry: Registry
    """The models that it may name."""

    def store(self, root: Path | None = None, *, any_device: bool = False, stand_ins: bool = False) -> Store:
        """The models of its registry at `root`, for its device unless `any_device`: see `Store.open`."""
        device = None if any_device else self.profile.device
        profile = None if self.profile.models.registry is None else str(self.files[0])
        return Store.open(root, self.registry, device=device, stand_ins=stand_ins, profile=profile)

    def place(self, path: KeyPath) -> SourcePosition | None:
        """Where the value, or the nearest mapping around it, was written; None where all of it is default."""
        written = (self.places.get(path[:length]) for length in range(len(path), 0, -1))
        return next((place for place in written if place is not None), None)


def profile_names() -> list[str]:
    """The profiles that ship."""
    return sorted(path.stem for path in PROFILES.glob("*.yaml"))


def find_profile(name: str, beside: Path | None = None) -> Path:
    """The file of a profile given by name (`cpu`) or path. Raises ConfigError with the known names."""
    if "/" not in name and not name.endswith((".yaml", ".yml")):
        shipped = PROFILES / f"{name}.yaml"
        if shipped.is_file():
            return shipped
        near = difflib.get_close_matches(name, profile_names(), n=1)
        hint = f"; did you mean {near[0]}?" if near else ""
        raise ConfigError(f"no profile {name!r}{hint} (known: {', '.join(profile_names())}, or a path to a YAML file)")
    path = Path(name).expanduser()
    path = path if beside is None or path.is_absolute() else beside.parent / path
    if not path.is_file():
        raise ConfigError(f"no profile file {path}")
    return path


def load_profile(name: str, *, registry: Registry | None = None) -> LoadedProfile:
    """Load and check a profile by name or path. Raises ConfigError holding every fault found, one a line.

    What depends on this machine is not looked at here: see `cockpit.profile.runnable`.
    """
    chain = _chain(find_profile(name))
    data: dict[str, Any] = {}
    written = _Written({}, {}, [document.file for document in chain], set())
    chain = [_with_roles(document, written) for document in chain]
    for document in reversed(chain):
        _merge(data, document.data, (), written, document.places)
    data.pop("extends", None)
    _beside_their_profile(data, written)
    registry = registry or _registry(data, written)
    facts = _facts(data, registry)

    profile, violations = validated(Profile, data, Context.of(data, facts))
    known = {violation.path for violation in violations}
    violations += [found for found in cross_violations(data, facts) if found.path not in known]
    violations += _model_violations(data, registry)
    if profile is not None:
        violations += _grant_violations(profile)
        violations += _idle_task_violations(profile)
    faults = [fault for document in chain for fault in document.faults]
    faults += [written.fault(violation) for violation in violations]
    if faults or profile is None:
        ordered = sorted(dict.fromkeys(faults), key=lambda fault: (written.depth(fault.place), fault.place))
        raise ConfigError("\n".join(map(str, ordered)))
    arbiter = None if profile.orchestration is None else arbiter_config(profile.orchestration, profile.tasks)
    warnings = () if arbiter is None else tuple(map(written.fault, baseline_warnings(arbiter, facts)))
    return LoadedProfile(profile, arbiter, tuple(written.files), written.places, warnings, registry)


_FILES: Final = (
    ("manual", "file"),
    ("models", "registry"),
    ("models", "trusted_keys"),
    ("navigation", "places"),
    ("vehicle", "signals"),
)
"""Keys that name files, one or a list."""


def _beside_their_profile(data: dict[str, Any], written: _Written) -> None:
    """A relative path begins at the profile that wrote it, not at the folder that a program was started in."""
    for section, key in _FILES:
        value = _at(data, (section, key))
        if not isinstance(value, str | list):
            continue
        folder = written.places[section, key].file.parent
        files = value if isinstance(value, list) else [value]
        paths = [str(folder / Path(file).expanduser()) if isinstance(file, str) else file for file in files]
        data[section] = data[section] | {key: paths if isinstance(value, list) else paths[0]}


def _registry(data: dict[str, Any], written: _Written) -> Registry:
    """The models that ship, and those of the profile's own registry. Raises ConfigError at the place that names a
    registry which is wrong.
    """
    key = ("models", "registry")
    file = _at(data, key)
    if not isinstance(file, str):
        return load_registry()
    try:
        return load_registry(own=Path(file))
    except ConfigError as error:
        faults = (str(Fault(written.places[key], f"models.registry: {line}")) for line in str(error).splitlines())
        raise ConfigError("\n".join(faults)) from error


def _chain(first: Path) -> list[Document]:
    """The documents from the asked-for profile to the root of its chain."""
    chain = [read_yaml(first)]
    while (parent := chain[-1].data.get("extends")) is not None:
        here = chain[-1]
        place = here.places["extends",]
        if not isinstance(parent, str):
            raise ConfigError(f"{place}: extends takes one profile's name or path, not {parent!r}")
        try:
            file = find_profile(parent, beside=here.file)
        except ConfigError as error:
            raise ConfigError(f"{place}: {error}") from error
        seen = [document.file.resolve() for document in chain]
        if file.resolve() in seen:
            circle = " -> ".join(path.name for path in [*seen, file.resolve()])
            raise ConfigError(f"{place}: extends goes round in a circle: {circle}")
        if len(chain) >= MAX_CHAIN:
            raise ConfigError(f"{place}: more than {MAX_CHAIN} profiles extend one another")
        chain.append(read_yaml(file))
    return chain


_TALK: KeyPath = ("llm", "dialogue")


def _with_roles(document: Document, written: _Written) -> Document:
    """The document with `llm` by role, whichever form it is written in."""
    llm = document.data.get("llm")
    if not isinstance(llm, dict):
        return document
    named = by_role(llm)
    if named is llm:
        return document
    written.without_roles.add(document.file)
    places = {
        ((*_TALK, *path[1:]) if path[:1] == ("llm",) and len(path) > 1 else path): place
        for path, place in document.places.items()
    }
    places[_TALK] = document.places["llm",]
    return replace(document, data=document.data | {"llm": named}, places=places)


@dataclass(frozen=True, slots=True)
class _Written:
    """Where everything was written. `dropped`: where a `null` took an inherited value away."""

    places: dict[KeyPath, SourcePosition]
    dropped: dict[KeyPath, SourcePosition]
    files: list[Path]
    """The asked-for profile first."""
    without_roles: set[Path]
    """Those that write `llm` in its older form."""

    def depth(self, place: SourcePosition) -> int:
        """How many `extends:` away from the asked-for profile."""
        return self.files.index(place.file)

    def fault(self, violation: Violation) -> Fault:
        """At the value itself; where several values could mend it, at the one nearest to the asked-for profile."""
        related = [self.places.get(path) or self.dropped.get(path) for path in violation.related]
        places = [self._nearest(violation.path), *(place for place in related if place is not None)]
        place = min(places, key=self.depth)
        path = violation.path
        if path[:2] == _TALK and place.file in self.without_roles:
            path = ("llm", *path[2:])
        return Fault(place, f"{dotted(path)}: {violation.message}")

    def _nearest(self, path: KeyPath) -> SourcePosition:
        """Where `path` was written, else the nearest mapping around it, else the start of the profile."""
        for length in range(len(path), 0, -1):
            place = self.places.get(path[:length]) or self.dropped.get(path[:length])
            if place is not None:
                return place
        return SourcePosition(self.files[0], 1, 1)


def _merge(
    into: dict[str, Any],
    new: Mapping[str, Any],
    path: KeyPath,
    written: _Written,
    new_places: Mapping[KeyPath, SourcePosition],
) -> None:
    """Mappings merge key by key; anything else replaces; null drops what was inherited."""
    for key, value in new.items():
        here = (*path, key)
        inherited = into.get(key)
        written.dropped.pop(here, None)
        if isinstance(value, dict) and isinstance(inherited, dict):
            written.places[here] = new_places[here]
            _merge(inherited, value, here, written, new_places)
            continue
        for old in [known for known in written.places if known[: len(here)] == here]:
            del written.places[old]
        if value is None:
            into.pop(key, None)
            written.dropped[here] = new_places[here]
            continue
        into[key] = _without_nulls(value)
        written.places.update({known: place for known, place in new_places.items() if known[: len(here)] == here})


def _without_nulls(value: Any) -> Any:
    """Nothing was inherited that a `null` inside could drop."""
    if isinstance(value, dict):
        return {key: _without_nulls(inner) for key, inner in value.items() if inner is not None}
    return value


def _facts(data: Mapping[str, Any], registry: Registry) -> Facts:
    """What is known without looking at the machine."""
    baseline_ms, source = task_baselines_ms(data)
    return Facts(
        device="cuda" if data.get("device") == "cuda" else "cpu",
        models=registry.names,
        task_models=_task_models(data),
        warmed=WARMED_TASKS,
        baseline_ms=baseline_ms,
        baseline_source=source,
        engines_gate_kv=False,
        engines_hold_l2=False,
    )


def _task_models(data: Mapping[str, Any]) -> dict[str, tuple[str, ...]]:
    """Task -> the models it runs, as the stages' own sections name them."""
    speech = tuple(_named(data, path) for path, role in _MODEL_ROLES if role != "llm")
    talk = _named(data, (*_TALK, "model"))
    own = _at(data, ("llm", "background", "model"))
    background = own if isinstance(own, str) else talk
    return {SPEECH: speech, **dict.fromkeys((NAVIGATION, VEHICLE, DIALOGUE), (talk,)), BACKGROUND: (background,)}


def _grant_violations(profile: Profile) -> Iterator[Violation]:
    """Tasks that the API grants and nothing here can run its requests as."""
    if "grants" not in profile.api.model_fields_set:
        return
    served = tuple(profile.tasks) or (DIALOGUE,)
    for user, tasks in profile.api.grants.items():
        for task in tasks:
            path = ("api", "grants", user)
            if stand_in(task, served) not in (*served, DIALOGUE):
                known = suggestion(task, list(served), cutoff=0.4)
                yield Violation(path, f"no such task {task!r}; {known}", (("tasks",),))


def _idle_task_violations(profile: Profile) -> Iterator[Violation]:
    """Tasks that nothing runs as: neither the voice chain, nor an API request of anyone."""
    granted = {task for tasks in profile.api.grants.values() for task in tasks}
    for name in profile.tasks:
        if name not in WARMED_TASKS and name not in granted:
            yield Violation(
                ("tasks", name),
                f"nothing runs as {name}: the voice chain runs as {', '.join(WARMED_TASKS)}, and api.grants "
                "names it for no client; grant it to one, or leave it out",
            )


_MODEL_ROLES: tuple[tuple[KeyPath, Role], ...] = (
    (("asr", "model"), "asr"),
    ((*_TALK, "model"), "llm"),
    (("llm", "background", "model"), "llm"),
    (("tts", "en_voice"), "voice-en"),
    (("tts", "zh_voice"), "voice-zh"),
    (("nlu", "model"), "parser"),
    (("manual", "encoder"), "encoder"),
)


_DEFAULTS = Profile().model_dump()


def _named(data: Mapping[str, Any], path: KeyPath) -> Any:
    """What a profile, or else its default, says at `path`: other checks say what is wrong with it."""
    value = _at(data, path)
    return value if isinstance(value, str) else _at(_DEFAULTS, path)


def _at(data: Any, path: KeyPath) -> Any:
    """The value at `path`, None where there is none."""
    for key in path:
        data = data.get(key) if isinstance(data, Mapping) else None
    return data


def _model_violations(data: Mapping[str, Any], registry: Registry) -> Iterator[Violation]:
    """Models that the stage which names them cannot load, on the profile's device. Defaults count too."""
    device: Device = "cuda" if data.get("device") == "cuda" else "cpu"
    for path, role in _MODEL_ROLES:
        default, name = _at(_DEFAULTS, path), _named(data, path)
        if name is None:
            continue
        known = registry.choices(role, device)
        if name in known:
            continue
        if name in registry.names:
            try:
                registry.loadable(name, role, device)
            except ConfigError as error:
                yield Violation(path, str(error), (("device",),) if name == default else ())
        else:
            yield Violation(path, f"no such model {name!r}; {suggestion(name, list(known), cutoff=0.4)}")
