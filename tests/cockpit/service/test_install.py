"""`cockpit install` lays down what systemd accepts and finds safe; `doctor --system` finds what is gone of it."""

from __future__ import annotations

import json
import os
import re
import shutil
import socket
import subprocess
import sys
from pathlib import Path

import pytest
from typer.testing import CliRunner

from cockpit.cli import full_app
from cockpit.lifecycle.refresh import REBUILD_WANTED
from cockpit.service.install import MARK, PRESET, SYSUSERS, TMPFILES, UNITS, planned, templates
from cockpit.service.system_checks import system_findings
from models.errors import ConfigError, InputError
from tests.support.paths import ROOT, short_folder

ANALYZE = shutil.which("systemd-analyze")
needs_systemd = pytest.mark.skipif(
    ANALYZE is None, reason="systemd-analyze is not on this machine (Debian package systemd): units are not verified"
)
PROGRAM = Path("/opt/cockpit/.venv/bin/cockpit")


def run(*arguments: str | Path) -> tuple[int, str]:
    done = CliRunner().invoke(full_app(), [str(argument) for argument in arguments])
    return done.exit_code, done.output


def laid_down(root: Path, profile: str = "cpu", program: Path = PROGRAM) -> None:
    planned(root, profile, program).write()


def test_it_says_what_it_would_write_writes_it_and_then_changes_nothing(tmp_path: Path) -> None:
    command = ("install", "--root", tmp_path, "--program", PROGRAM, "--json")
    code, output = run(*command, "--dry-run")
    assert code == 0
    assert {file["state"] for file in json.loads(output)["files"]} == {"written"}
    assert not list(tmp_path.iterdir()), "a dry run writes nothing"
    code, output = run(*command)
    told = json.loads(output)
    written = [Path(file["path"]) for file in told["files"]]
    assert sorted(path for path in tmp_path.rglob("*") if path.is_file()) == sorted(written)
    services = {"cockpit", "cockpit@", "cockpit-models@", "cockpit-rebuild@", "cockpit-degraded"}
    units = {f"{name}.service" for name in services} | {"cockpit-api.socket"}
    assert {path.name for path in written if path.parent == tmp_path / UNITS} == units
    assert tmp_path / SYSUSERS in written
    assert tmp_path / TMPFILES in written
    assert told["next"][-1] == (
        f"systemctl --root={tmp_path} enable cockpit.service cockpit-api.socket cockpit-models@cpu.service "
        "cockpit-rebuild@cpu.service"
    )
    for path in written:
        text = path.read_text()
        assert text.startswith(MARK)
        assert not re.search(r"@[A-Z]+@", text), f"{path}: a place was not filled in"
        assert path.stat().st_mode & 0o777 == 0o644
    _, output = run(*command)
    assert {file["state"] for file in json.loads(output)["files"]} == {"unchanged"}


def test_a_file_of_somebody_else_is_named_and_left_alone(tmp_path: Path) -> None:
    stranger = tmp_path / UNITS / "cockpit.service"
    stranger.parent.mkdir(parents=True)
    stranger.write_text("[Service]\nExecStart=/bin/true\n")
    with pytest.raises(InputError, match=re.escape(str(stranger))):
        laid_down(tmp_path)
    assert stranger.read_text() == "[Service]\nExecStart=/bin/true\n"
    assert not (tmp_path / SYSUSERS).exists(), "nothing else was written either"


def test_what_cannot_be_installed_is_refused(tmp_path: Path) -> None:
    with pytest.raises(ConfigError, match="did you mean cpu"):
        planned(tmp_path, "cpuu", PROGRAM)
    for program in ("cockpit", "/opt/my cockpit/bin/cockpit", "/opt/%i/cockpit"):
        with pytest.raises(InputError, match="absolute path"):
            planned(tmp_path, "cpu", Path(program))
    (tmp_path / "a car.yaml").write_text("extends: cpu\n")
    with pytest.raises(InputError, match="named after a profile"):
        planned(tmp_path, str(tmp_path / "a car.yaml"), PROGRAM)


def test_an_own_profile_is_copied_with_what_it_extends(tmp_path: Path) -> None:
    (tmp_path / "car.yaml").write_text("extends: ./fleet.yaml\ntts: {speed: 1.1}\n")
    (tmp_path / "fleet.yaml").write_text("extends: cpu\n")
    root = tmp_path / "root"
    laid_down(root, str(tmp_path / "car.yaml"))
    assert (root / "etc/cockpit/fleet.yaml").read_text() == f"{MARK}extends: cpu\n"
    service = (root / UNITS / "cockpit.service").read_text()
    assert f"ExecStart={PROGRAM} serve --profile /etc/cockpit/car.yaml\n" in service
    assert "After=sound.target cockpit-models@car.service" in service
    models = (root / UNITS / "cockpit-models@car.service").read_text()
    assert f"ExecStart={PROGRAM} models refresh --profile /etc/cockpit/car.yaml\n" in models
    code, output = run("profile", "check", root / "etc/cockpit/car.yaml")
    assert "car.yaml" in output, output
    assert code in (0, 3), output


# --- what systemd thinks of it ---------------------------------------------------------------------------------------
@needs_systemd
@pytest.mark.parametrize("profile", ["cpu", "h200"])
def test_systemd_finds_no_fault_in_the_units(tmp_path: Path, profile: str) -> None:
    program = tmp_path / "cockpit"
    program.write_text("#!/bin/sh\n")
    program.chmod(0o755)
    laid_down(tmp_path, profile, program)
    units = [path.name for path in (tmp_path / UNITS).iterdir() if path.is_file() and "@" not in path.name]
    units += [f"cockpit@{profile}.service", f"cockpit-models@{profile}.service", f"cockpit-rebuild@{profile}.service"]
    for unit in units:
        if "@" in unit:
            (tmp_path / UNITS / unit).symlink_to(f"{unit.split('@')[0]}@.service")
    files = [str(tmp_path / UNITS / unit) for unit in units]
    done = subprocess.run(
        [str(ANALYZE), "verify", "--man=no", "--recursive-errors=yes", *files],
        capture_output=True, text=True, check=False, env={**os.environ, "SYSTEMD_UNIT_PATH": f"{tmp_path / UNITS}:"},
    )  # fmt: skip
    assert done.returncode == 0, done.stderr


@needs_systemd
@pytest.mark.parametrize(
    ("profile", "unit", "threshold"),
    [
        ("cpu", "cockpit.service", 5),
        ("cpu", "cockpit-degraded.service", 5),
        ("cpu", "cockpit-models@.service", 16),
        ("cpu", "cockpit-rebuild@.service", 16),
        ("h200", "cockpit.service", 16),
    ],
)
def test_what_a_broken_in_service_could_reach(tmp_path: Path, profile: str, unit: str, threshold: int) -> None:
    """threshold: tenths, as systemd-analyze takes it."""
    laid_down(tmp_path, profile)
    done = subprocess.run(
        [str(ANALYZE), "security", "--offline=true", f"--threshold={threshold}", f"--root={tmp_path}", unit],
        capture_output=True, text=True, check=False,
    )  # fmt: skip
    assert done.returncode == 0, done.stdout[-2000:]
    assert "Overall exposure level" in done.stdout


def test_units_with_sound_may_write_code() -> None:
    """With MemoryDenyWriteExecute cffi refuses the callback that PortAudio needs: MemoryError, and no device opens."""
    for unit in ("cockpit@.service", "cockpit-degraded.service"):
        text = (templates() / unit).read_text(encoding="utf-8")
        assert "DeviceAllow=char-alsa rw\n" in text
        assert "\nMemoryDenyWriteExecute=" not in text


def test_a_gpu_gets_its_devices_and_no_other_profile_does(tmp_path: Path) -> None:
    laid_down(tmp_path / "cpu")
    laid_down(tmp_path / "gpu", "h200")
    assert not list((tmp_path / "cpu").rglob("*gpu.conf"))
    for unit in ("cockpit.service.d", "cockpit@h200.service.d", "cockpit-models@h200.service.d"):
        assert "DeviceAllow=char-nvidia-uvm rw" in (tmp_path / "gpu" / UNITS / unit / "10-gpu.conf").read_text()


def test_who_may_ask_is_known_by_name(tmp_path: Path) -> None:
    """In a user namespace the kernel would tell every other user as nobody."""
    laid_down(tmp_path / "plain")
    assert not list(tmp_path.rglob("*clients.conf"))
    own = tmp_path / "car.yaml"
    own.write_text("extends: cpu\napi: {group: hmi, grants: {radio: [dialogue_task]}}\ncontrol: {group: bench}\n")
    laid_down(tmp_path / "named", str(own))
    for unit in ("cockpit.service.d", "cockpit@car.service.d"):
        text = (tmp_path / "named" / UNITS / unit / "20-clients.conf").read_text()
        assert "SupplementaryGroups=bench hmi\nPrivateUsers=no" in text
    assert "SocketGroup=hmi" in (tmp_path / "named" / UNITS / "cockpit-api.socket").read_text()
    assert "SocketGroup=cockpit" in (tmp_path / "plain" / UNITS / "cockpit-api.socket").read_text()
    own.write_text("extends: cpu\napi: {grants: {radio: [dialogue_task]}}\n")
    laid_down(tmp_path / "granted", str(own))
    text = (tmp_path / "granted" / UNITS / "cockpit.service.d/20-clients.conf").read_text()
    assert "SupplementaryGroups" not in text
    assert "PrivateUsers=no" in text


# --- doctor --system -------------------------------------------------------------------------------------------------
def test_doctor_finds_what_is_gone_from_an_installed_tree(tmp_path: Path) -> None:
    def missing() -> dict[str, str]:
        found = {finding.name: finding for finding in system_findings(tmp_path, "cpu") if finding.status == "missing"}
        assert all(finding.remedy for finding in found.values())
        return {name: finding.detail for name, finding in found.items() if not name.startswith("model ")}

    assert "units" in missing()
    laid_down(tmp_path)
    assert set(missing()) == {"program", "user", "audio group", "folder var/lib/cockpit", "folder var/cache/cockpit"}
    program = tmp_path / PROGRAM.relative_to("/")
    program.parent.mkdir(parents=True)
    program.touch()
    (tmp_path / "etc").mkdir(exist_ok=True)
    (tmp_path / "etc/passwd").write_text(f"cockpit:x:{os.getuid()}:990::/var/lib/cockpit:/usr/sbin/nologin\n")
    (tmp_path / "etc/group").write_text("cockpit:x:990:\naudio:x:29:cockpit\n")
    for folder in ("var/lib/cockpit", "var/cache/cockpit"):
        (tmp_path / folder).mkdir(parents=True)
        (tmp_path / folder).chmod(0o750)
    assert missing() == {}
    (tmp_path / "var/lib/cockpit").chmod(0o777)
    assert "has mode 777, wanted 750" in missing()["folder var/lib/cockpit"]
    (tmp_path / "var/lib/cockpit").chmod(0o750)
    with (tmp_path / UNITS / "cockpit-degraded.service").open("a") as unit:
        unit.write("MemoryMax=1M\n")
    assert "cockpit-degraded.service" in missing()["units"]
    laid_down(tmp_path)
    (tmp_path / "run/cockpit").mkdir(parents=True)
    (tmp_path / "run/cockpit/api.sock").touch()
    assert "in the way" in missing()["api socket"]
    code, output = run("doctor", "--system", "--root", tmp_path, "--json")
    assert code == 3, "no model is built there"
    assert not json.loads(output)["ok"]
    assert isinstance(CliRunner().invoke(full_app(), ["doctor", "--root", str(tmp_path)]).exception, InputError)


def test_the_models_are_looked_at_at_every_boot_and_built_anew_behind_the_voice(tmp_path: Path) -> None:
    laid_down(tmp_path)
    models = (tmp_path / UNITS / "cockpit-models@.service").read_text()
    assert "ConditionPathExists" not in models
    assert "Before=cockpit@%i.service cockpit.service\n" in models
    rebuild = (tmp_path / UNITS / "cockpit-rebuild@.service").read_text()
    assert f"ConditionPathExists=%S/cockpit/{REBUILD_WANTED}\n" in rebuild
    assert "After=network.target cockpit-models@%i.service cockpit@%i.service cockpit.service\n" in rebuild
    assert f"ExecStart={PROGRAM} models refresh --rebuild --profile %i\n" in rebuild
    assert "enable cockpit-rebuild@.service cpu\n" in (tmp_path / PRESET).read_text()


# --- socket activation -----------------------------------------------------------------------------------------------
def test_a_socket_that_the_manager_opened_is_used_and_left_in_its_place() -> None:
    """In a child, which gets it as number 3, as systemd hands it over; another process's variables are not obeyed."""
    code = (
        "import os, sys\n"
        "os.dup2(int(sys.argv[1]), 3)\n"
        "own = sys.argv[2] == 'own'\n"
        "os.environ |= {'LISTEN_FDS': '1', 'LISTEN_FDNAMES': 'api', 'LISTEN_PID': str(os.getpid()) if own else '1'}\n"
        "from cockpit.service.activation import inherited\n"
        "made = inherited('api')\n"
        "print(made and made.getsockname(), inherited('other'), 'LISTEN_FDS' in os.environ)\n"
    )
    with short_folder() as folder, socket.socket(socket.AF_UNIX) as listening:
        listening.bind(str(folder / "api.sock"))
        listening.listen()

        def told(whose: str) -> str:
            done = subprocess.run(
                [sys.executable, "-c", code, str(listening.fileno()), whose],
                capture_output=True, text=True, check=True, pass_fds=[listening.fileno()], cwd=ROOT,
            )  # fmt: skip
            return done.stdout.strip()

        assert told("own") == f"{folder / 'api.sock'} None False"
        assert told("other") == "None None False"
