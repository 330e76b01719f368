"""What `cockpit doctor --system` looks at: whether an installed tree is whole."""

from __future__ import annotations

import stat
from collections.abc import Iterator
from pathlib import Path

from cockpit.profile.load import load_profile
from cockpit.profile.runnable import Finding
from cockpit.service.install import SYSUSERS, TMPFILES, UNITS, USER, planned
from cockpit.unix_socket import LONGEST_PATH_BYTES
from models.errors import InputError

STATE = Path("var/lib/cockpit")
API_SOCKET = Path("run/cockpit/api.sock")
_FOLDERS = ((STATE, 0o750), (Path("var/cache/cockpit"), 0o750))


def system_findings(root: Path, profile: str) -> Iterator[Finding]:
    """Every check, in the order of an installation. root: / or an image's."""
    yield from _files(root, profile)
    yield from _user(root)
    yield from _folders(root)
    yield from _models(root, profile)
    yield from _socket(root)


def program_of(root: Path) -> Path | None:
    """What the installed service starts; None without one."""
    try:
        text = (root / UNITS / "cockpit.service").read_text(encoding="utf-8")
    except OSError:
        return None
    started = next((line for line in text.splitlines() if line.startswith("ExecStart=")), "ExecStart=")
    return Path(started.removeprefix("ExecStart=").split(" ")[0])


def _files(root: Path, profile: str) -> Iterator[Finding]:
    again = f"cockpit install --root {root} --profile {profile}"
    program = program_of(root)
    if program is None:
        yield Finding("units", "missing", f"no {root / UNITS / 'cockpit.service'}", again)
        return
    try:
        laid = planned(root, profile, program)
    except InputError as error:
        yield Finding("units", "missing", str(error), again)
        return
    stale = [str(root / file.path) for file in laid.files if laid.state(file) != "unchanged"]
    if stale:
        yield Finding("units", "missing", f"not as this version installs them: {', '.join(stale)}", again)
    else:
        yield Finding("units", "ok", f"{len(laid.files)} files as this version installs them")
    there = root / program.relative_to("/")
    if there.exists():
        yield Finding("program", "ok", str(there))
    else:
        yield Finding("program", "missing", f"no {there}", f"install cockpit-voice there, or {again} --program PATH")


def _user(root: Path) -> Iterator[Finding]:
    remedy = f"systemd-sysusers{_root_option(root)} (it reads {SYSUSERS})"
    users = _entries(root / "etc/passwd")
    groups = _entries(root / "etc/group")
    if USER in users and USER in groups:
        yield Finding("user", "ok", USER)
    else:
        yield Finding("user", "missing", f"no user and group {USER}", remedy)
    members = groups.get("audio", ["", "", ""])[-1].split(",") if "audio" in groups else None
    if members is None:
        yield Finding("audio group", "missing", "no group audio: the service may not open sound devices", remedy)
    elif USER in members:
        yield Finding("audio group", "ok", f"{USER} is a member")
    else:
        yield Finding("audio group", "missing", f"{USER} is no member of audio", remedy)


def _folders(root: Path) -> Iterator[Finding]:
    remedy = f"systemd-tmpfiles{_root_option(root)} --create cockpit.conf (it reads {TMPFILES})"
    users = _entries(root / "etc/passwd")
    for folder, mode in _FOLDERS:
        path = root / folder
        try:
            found = path.stat()
        except OSError as error:
            yield Finding(f"folder {folder}", "missing", f"{path}: {error.strerror}", remedy)
            continue
        owner = users.get(USER, ["", "", "-1"])[2]
        faults = [] if stat.S_ISDIR(found.st_mode) else ["is no folder"]
        if stat.S_IMODE(found.st_mode) & ~mode:
            faults.append(f"has mode {stat.S_IMODE(found.st_mode):o}, wanted {mode:o}")
        if str(found.st_uid) != owner:
            faults.append(f"belongs to user {found.st_uid}, wanted {USER} ({owner})")
        if faults:
            yield Finding(f"folder {folder}", "missing", f"{path} {' and '.join(faults)}", remedy)
        else:
            yield Finding(f"folder {folder}", "ok", str(path))


def _models(root: Path, profile: str) -> Iterator[Finding]:
    loaded = load_profile(profile)
    store = loaded.store(root / STATE, any_device=root != Path("/"))
    for name in loaded.profile.model_names:
        fault = store.fault(name)
        if fault is None:
            yield Finding(f"model {name}", "ok", str(store.built(name)))
        else:
            remedy = f"systemctl start cockpit-models@{Path(profile).stem}"
            yield Finding(f"model {name}", "missing", str(fault), remedy, error=type(fault))


def _socket(root: Path) -> Iterator[Finding]:
    path = root / API_SOCKET
    if len(str(path)) > LONGEST_PATH_BYTES:
        yield Finding("api socket", "note", f"{path} is too long to be connected to below this root")
    elif path.is_socket():
        yield Finding("api socket", "ok", str(path))
    elif path.exists():
        yield Finding("api socket", "missing", f"{path} is in the way and no socket", f"rm {path}")
    else:
        yield Finding("api socket", "note", f"{path} is not there: cockpit-api.socket does not run")


def _entries(file: Path) -> dict[str, list[str]]:
    """Rows of passwd or group by name; none where there is no file."""
    try:
        lines = file.read_text(encoding="utf-8").splitlines()
    except OSError:
        return {}
    return {row[0]: row for row in (line.split(":") for line in lines) if len(row) > 2}


def _root_option(root: Path) -> str:
    return "" if root == Path("/") else f" --root={root}"
