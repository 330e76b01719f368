"""What `cockpit install` lays down: units, their user, their folders. Each file is made from one of `systemd/`."""

from __future__ import annotations

import os
import tempfile
from collections.abc import Iterator
from dataclasses import dataclass
from pathlib import Path
from typing import Literal

from cockpit.profile.load import find_profile, load_profile
from cockpit.profile.sections import Profile
from models.errors import InputError, StartupError

MARK = "# Installed by `cockpit install`; change it with drop-ins (systemctl edit), or install again.\n"
"""First line of every installed file. One without it is somebody else's and is not written over."""
UNITS = Path("usr/lib/systemd/system")
SYSUSERS = Path("usr/lib/sysusers.d/cockpit.conf")
TMPFILES = Path("usr/lib/tmpfiles.d/cockpit.conf")
PRESET = Path("usr/lib/systemd/system-preset/50-cockpit.preset")
PROFILES = Path("etc/cockpit")

USER = "cockpit"
"""The service's user and group."""

State = Literal["written", "unchanged", "in the way"]


@dataclass(frozen=True, slots=True)
class Planned:
    """One file. path: below the root. text: all of it, MARK included."""

    path: Path
    text: str


@dataclass(frozen=True, slots=True)
class Installation:
    """What is to lie below `root`. profile: a name that ships, or the stem of the file that was given."""

    root: Path
    profile: str
    files: tuple[Planned, ...]

    def state(self, planned: Planned) -> State:
        """What writing it would do."""
        path = self.root / planned.path
        try:
            found = path.read_text(encoding="utf-8")
        except FileNotFoundError:
            return "written"
        except (OSError, UnicodeDecodeError):
            return "in the way"
        if found == planned.text:
            return "unchanged"
        return "written" if found.startswith(MARK) else "in the way"

    def check(self) -> None:
        """Raises InputError naming every file that is in the way."""
        strangers = [str(self.root / planned.path) for planned in self.files if self.state(planned) == "in the way"]
        if strangers:
            raise InputError(f"not written by `cockpit install`, and in the way: {', '.join(strangers)}; move them")

    def write(self) -> list[tuple[Path, State]]:
        """Write what is not there as it should be, each file whole or not at all; returns what became of each."""
        self.check()
        done = []
        for planned in self.files:
            state = self.state(planned)
            if state == "written":
                _write(self.root / planned.path, planned.text)
            done.append((planned.path, state))
        return done


@dataclass(frozen=True, slots=True)
class _Clients:
    """Whom a profile names of the programs that ask. named: whether it names anybody by user or group."""

    named: bool
    api_group: str
    membership: str

    @classmethod
    def of(cls, profile: Profile) -> _Clients:
        groups = sorted({group for group in (profile.control.group, profile.wyoming.group, profile.api.group) if group})
        users = {*profile.api.grants, *profile.api.words, *profile.api.control}
        named = bool(groups) or bool(users - {"*", "token"})
        membership = f"SupplementaryGroups={' '.join(groups)}\n" if groups else ""
        return cls(named, profile.api.group or USER, membership)


def planned(root: Path, profile: str, program: Path) -> Installation:
    """profile: a name that ships, or a YAML file, which is copied with what it extends. program: `cockpit` as the
    target has it. Raises ConfigError for a profile that is wrong, InputError for what cannot be installed.
    """
    if not program.is_absolute() or any(sign.isspace() or sign in "%$\"'\\" for sign in str(program)):
        raise InputError(f"--program {program}: name an absolute path without blanks, quotes, % or $")
    loaded = load_profile(profile)
    name, named, copied = _profile_files(profile)
    clients = _Clients.of(loaded.profile)
    replaced = {
        "@COCKPIT@": str(program),
        "@PROFILE@": named,
        "@SERVICE@": "cockpit.service",
        "@API_GROUP@": clients.api_group,
        "@GROUPS@": clients.membership,
    }
    service = _template("cockpit@.service", replaced)
    units = {
        "cockpit@.service": service,
        "cockpit.service": service.replace("cockpit-models@%i", f"cockpit-models@{name}")
        .replace("--profile %i", f"--profile {named}")
        .replace("%i", name),
        "cockpit-models@.service": _template("cockpit-models@.service", replaced),
        "cockpit-rebuild@.service": _template("cockpit-rebuild@.service", replaced),
        "cockpit-degraded.service": _template("cockpit-degraded.service", replaced),
        "cockpit-api.socket": _template("cockpit-api.socket", replaced),
    }
    model_units = ("cockpit-models", "cockpit-rebuild")
    for unit in model_units if copied else ():  # of a profile that does not ship
        units[f"{unit}@{name}.service"] = units[f"{unit}@.service"].replace("--profile %i", f"--profile {named}")
    if loaded.profile.device == "cuda":
        for unit in ("cockpit.service", *(f"{kind}@{name}.service" for kind in ("cockpit", *model_units))):
            units[f"{unit}.d/10-gpu.conf"] = _template("gpu.conf", replaced)
    if clients.named:
        for unit in ("cockpit.service", f"cockpit@{name}.service"):
            units[f"{unit}.d/20-clients.conf"] = _template("clients.conf", replaced)
    files = [Planned(UNITS / unit, text) for unit, text in units.items()]
    files += [
        Planned(SYSUSERS, _template("cockpit.sysusers.conf", replaced)),
        Planned(TMPFILES, _template("cockpit.tmpfiles.conf", replaced)),
        Planned(PRESET, _template("cockpit.preset", {**replaced, "@PROFILE@": name})),
        *copied,
    ]
    return Installation(root, name, tuple(files))


def next_steps(installation: Installation) -> tuple[str, ...]:
    """The commands that put it to work, on the target or on its image."""
    root = "" if installation.root == Path("/") else f" --root={installation.root}"
    steps = (f"systemd-sysusers{root}", f"systemd-tmpfiles{root} --create cockpit.conf")
    name = installation.profile
    units = f"cockpit.service cockpit-api.socket cockpit-models@{name}.service cockpit-rebuild@{name}.service"
    start = () if root else ("systemctl daemon-reload", "systemctl start cockpit.service")
    return (*steps, f"systemctl{root} enable {units}", *start)


def templates() -> Path:
    """The folder of the unit files: in an installed package, or in the repository."""
    here = Path(__file__).resolve().parent
    for folder in (here / "units", here.parents[1] / "systemd"):
        if folder.is_dir():
            return folder
    raise StartupError(f"the unit files are not at {here / 'units'}: install cockpit-voice again")


def _template(name: str, replaced: dict[str, str]) -> str:
    text = (templates() / name).read_text(encoding="utf-8")
    for sign, value in replaced.items():
        text = text.replace(sign, value)
    return MARK + text


def _profile_files(profile: str) -> tuple[str, str, list[Planned]]:
    """Name for units, what `--profile` is given, and the files to copy: none for a profile that ships."""
    path = find_profile(profile)
    if path.parent == find_profile("cpu").parent:
        return path.stem, path.stem, []
    name = path.stem
    if not name.replace("-", "").replace("_", "").isalnum():
        raise InputError(f"{path}: units are named after a profile, so its file's name holds letters, digits, - and _")
    return name, f"/{PROFILES / path.name}", list(_copied(path))


def _copied(path: Path) -> Iterator[Planned]:
    """The file, what it extends by a path beside it, and its own model registry and keys where they lie beside or below
    it; those that are named by a path elsewhere are used there.
    """
    loaded = load_profile(str(path))
    models = loaded.profile.models
    for named in (models.registry, *models.trusted_keys):
        if named is not None and named.is_relative_to(path.parent):
            yield Planned(PROFILES / named.relative_to(path.parent), named.read_text(encoding="utf-8"))
    for file in loaded.files:
        if file.parent == path.parent:
            yield Planned(PROFILES / file.name, MARK + file.read_text(encoding="utf-8").removeprefix(MARK))
        elif file.parent != find_profile("cpu").parent:
            raise InputError(f"{path} extends {file}, which does not lie beside it: copy it there")


def _write(path: Path, text: str) -> None:
    try:
        path.parent.mkdir(parents=True, exist_ok=True)
        handle, temporary = tempfile.mkstemp(dir=path.parent, prefix=f".{path.name}.")
        try:
            with os.fdopen(handle, "w", encoding="utf-8") as file:
                file.write(text)
                file.flush()
                os.fsync(file.fileno())
            os.chmod(temporary, 0o644)
            os.replace(temporary, path)
        except BaseException:
            os.unlink(temporary)
            raise
    except OSError as error:
        raise StartupError(
            f"{path} cannot be written ({error.strerror}): run as root, or name another --root"
        ) from error
