"""Profile file -> checked settings, with the place where every value was written.

    read (every file of the `extends:` chain) -> merge -> check sections, orchestration and tasks, names of models

Every fault of every step is reported at once, as file:line:column: message.
"""

from __future__ import annotations

import difflib
from collections.abc import Mapping
from dataclasses import dataclass, replace
from pathlib import Path
from typing import Any, get_args

from pydantic import BaseModel, ValidationError

from cockpit.arbiter.config import ArbiterConfig, Facts, parse
from cockpit.profile.latency_baselines import task_baselines_ms
from cockpit.profile.sections import Profile
from cockpit.profile.yaml import Document, Fault, KeyPath, SourcePosition, read_yaml
from models.errors import ConfigError
from models.store.registry import Registry, load_registry

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


def load_profile(name: str, *, registry: Registry | None = None, facts: Facts | None = None) -> LoadedProfile:
    """Load and check a profile by name or path. Raises ConfigError holding every fault found, one a line."""
    chain = _chain(find_profile(name))
    faults = [fault for document in chain for fault in document.faults]
    data: dict[str, Any] = {}
    places: dict[KeyPath, SourcePosition] = {}
    for document in reversed(chain):
        _merge(data, document.data, (), places, document.places)
    data.pop("extends", None)
    root = SourcePosition(chain[0].file, 1, 1)
    registry = registry or load_registry()

    profile: Profile | None = None
    try:
        profile = Profile.model_validate(data)
    except ValidationError as error:
        faults += [_fault(item, places, root) for item in error.errors(include_url=False)]
    arbiter, warnings = _check_arbiter(data, facts or _known_facts(data, registry), places, root, faults)
    faults += _check_models(data, registry, places, root)
    if faults or profile is None:
        ordered = sorted(set(faults), key=lambda fault: (chain_index(chain, fault.place.file), fault.place))
        raise ConfigError("\n".join(map(str, ordered)))
    return LoadedProfile(profile, arbiter, tuple(document.file for document in chain), places, tuple(warnings))


def chain_index(chain: list[Document], file: Path) -> int:
    """Position of `file` in the chain, the asked-for profile first."""
    return next((index for index, document in enumerate(chain) if document.file == file), len(chain))


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


def _merge(
    into: dict[str, Any],
    new: Mapping[str, Any],
    path: KeyPath,
    places: dict[KeyPath, SourcePosition],
    new_places: Mapping[KeyPath, SourcePosition],
) -> None:
    """Mappings merge key by key; anything else replaces; null drops what was inherited."""
    for key, value in new.items():
        here = (*path, key)
        inherited = into.get(key)
        if isinstance(value, dict) and isinstance(inherited, dict):
            places[here] = new_places[here]
            _merge(inherited, value, here, places, new_places)
            continue
        for old in [known for known in places if known[: len(here)] == here]:
            del places[old]
        if value is None:
            into.pop(key, None)
            continue
        into[key] = value
        places.update({known: place for known, place in new_places.items() if known[: len(here)] == here})


_OWN_WORDS = {"out_of_range", "no_unit", "bad_unit", "value_error"}
"""Kinds of fault whose message holds the value already."""


def _fault(item: Any, places: Mapping[KeyPath, SourcePosition], root: SourcePosition) -> Fault:
    path: KeyPath = tuple(item["loc"])
    message = item["msg"].removeprefix("Value error, ")
    if item["type"] == "extra_forbidden":
        known = list(_section_at(path[:-1]).model_fields)
        near = difflib.get_close_matches(str(path[-1]), known, n=1, cutoff=0.5)
        hint = f"did you mean {near[0]}?" if near else f"known keys: {', '.join(known)}"
        message = f"unknown key {path[-1]!r}; {hint}"
    elif item["type"] == "literal_error":
        wanted = str(item.get("ctx", {}).get("expected", ""))
        near = difflib.get_close_matches(str(item["input"]), wanted.replace("'", "").replace(" or ", ", ").split(", "))
        message = f"{item['input']!r} is not one of {wanted}" + (f"; did you mean {near[0]}?" if near else "")
    elif item["type"] not in _OWN_WORDS and not isinstance(item["input"], dict):
        message = f"{message.replace('Input should', 'must')}, not {item['input']!r}"
    return Fault(nearest_place(path, places, root), f"{dotted(path)}: {message}")


def _section_at(path: KeyPath) -> type[BaseModel]:
    model: type[BaseModel] = Profile
    for key in path:
        found = model.model_fields[str(key)].annotation
        candidates = [found, *get_args(found)]
        model = next(kind for kind in candidates if isinstance(kind, type) and issubclass(kind, BaseModel))
    return model


def nearest_place(path: KeyPath, places: Mapping[KeyPath, SourcePosition], root: SourcePosition) -> SourcePosition:
    """Where `path` was written, else the nearest mapping around it, else `root`."""
    for length in range(len(path), 0, -1):
        if path[:length] in places:
            return places[path[:length]]
    return root


def dotted(path: KeyPath) -> str:
    """`("asr", "languages", 0)` -> `asr.languages[0]`."""
    return "".join(f"[{key}]" if isinstance(key, int) else f".{key}" for key in path).lstrip(".") or "profile"


def _known_facts(data: Mapping[str, Any], registry: Registry) -> Facts:
    """What is known without opening a device."""
    return Facts(device="cuda" if data.get("device") == "cuda" else "cpu", models=registry.names)


def _check_arbiter(
    data: Mapping[str, Any],
    facts: Facts,
    places: Mapping[KeyPath, SourcePosition],
    root: SourcePosition,
    faults: list[Fault],
) -> tuple[ArbiterConfig | None, list[Fault]]:
    if "orchestration" not in data and "tasks" not in data:
        return None, []
    facts = replace(facts, engines_gate_kv=False, engines_hold_l2=False)
    if not facts.floor_ms:
        floor_ms, source = task_baselines_ms(data)
        facts = replace(facts, floor_ms=floor_ms, floor_source=source)
    checked = parse({"orchestration": data.get("orchestration", {}), "tasks": data.get("tasks")}, facts)
    placed = [
        [Fault(nearest_place(item.path, places, root), f"{dotted(item.path)}: {item.message}") for item in items]
        for items in (checked.errors, checked.warnings)
    ]
    faults += placed[0]
    return checked.config, placed[1]


_MODEL_KEYS: tuple[tuple[KeyPath, frozenset[str]], ...] = (
    (("asr", "model"), frozenset({"asr"})),
    (("llm", "model"), frozenset({"llm"})),
    (("tts", "en_voice"), frozenset({"tts", "phonemes"})),
    (("tts", "zh_voice"), frozenset({"tts", "phonemes"})),
)


def _check_models(
    data: Mapping[str, Any], registry: Registry, places: Mapping[KeyPath, SourcePosition], root: SourcePosition
) -> list[Fault]:
    faults = []
    for path, kinds in _MODEL_KEYS:
        section = data.get(str(path[0]))
        name = section.get(path[1]) if isinstance(section, dict) else None
        known = [entry.name for entry in registry.models if entry.kind in kinds]
        if isinstance(name, str) and name not in known:
            near = difflib.get_close_matches(name, known, n=1, cutoff=0.4)
            hint = f"did you mean {near[0]}?" if near else f"known: {', '.join(known)}"
            faults.append(Fault(nearest_place(path, places, root), f"{dotted(path)}: no such model {name!r}; {hint}"))
    return faults
