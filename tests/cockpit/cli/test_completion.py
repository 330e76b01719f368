"""Shell completion: made from the commands that there are, accepted by the shells, offering what is true."""

from __future__ import annotations

import shutil
import subprocess
from functools import cache
from pathlib import Path

import pytest
import typer.main

from cockpit.cli import COMMANDS, full_app
from cockpit.cli.completion import Shell, programs, script
from cockpit.profile.load import profile_names
from models.store.registry import load_registry

FILES = ["a file.wav", "b.wav"]


@cache
def scripts(shell: Shell) -> str:
    return "\n".join(script(program, shell) for program in programs())


def offered(folder: Path, *words: str) -> list[str]:
    """What bash offers for the last of `words`."""
    program = f"""{scripts(Shell.bash)}
COMP_WORDS=("$@"); COMP_CWORD=$(($# - 1)); _$1_completion
printf '%s\\n' "${{COMPREPLY[@]}}" """
    done = subprocess.run(
        ["bash", "--norc", "-c", program, "bash", *words], cwd=folder, capture_output=True, text=True, check=True
    )
    return done.stdout.splitlines()


@pytest.fixture
def folder(tmp_path: Path) -> Path:
    for name in FILES:
        (tmp_path / name).touch()
    return tmp_path


def test_commands_and_subcommands(folder: Path) -> None:
    assert sorted(offered(folder, "cockpit", "")) == sorted(command.name for command in COMMANDS)
    assert {"fetch", "list", "build", "verify"} <= set(offered(folder, "cockpit", "models", ""))
    assert offered(folder, "o3ctl", "policy", "fr") == ["freeze"]


def test_options(folder: Path) -> None:
    assert offered(folder, "cockpit", "say", "x.wav", "--tr") == ["--trace"]
    assert "--help" in offered(folder, "cockpit", "models", "fetch", "--")
    assert "--profile" not in offered(folder, "cockpit", "models", "fetch", "")


def test_values(folder: Path) -> None:
    assert offered(folder, "cockpit", "listen", "--profile", "c") == ["cpu"]
    assert set(offered(folder, "cockpit", "say", "--profile", "")) == {*profile_names(), *FILES}
    assert set(offered(folder, "cockpit", "models", "fetch", "")) == {model.name for model in load_registry().models}
    assert offered(folder, "cockpit", "completion", "") == ["bash", "zsh", "fish"]


def test_file_names_with_blanks_stay_whole(folder: Path) -> None:
    assert offered(folder, "cockpit", "say", "a") == ["a file.wav"]
    assert sorted(offered(folder, "cockpit", "say", "")) == FILES


@pytest.mark.parametrize("shell", list(Shell))
def test_scripts_parse(shell: Shell, tmp_path: Path) -> None:
    if shutil.which(shell) is None:
        pytest.skip(f"{shell} is not installed")
    file = tmp_path / "script"
    file.write_text(scripts(shell))
    done = subprocess.run([shell, "-n", file], capture_output=True, text=True, check=False)
    assert (done.returncode, done.stderr) == (0, "")


@pytest.mark.skipif(shutil.which("fish") is None, reason="fish is not installed")
def test_fish_offers_the_same(folder: Path) -> None:
    for words, expected in (("cockpit models fetch silero", ["silero-vad"]), ("o3ctl policy fr", ["freeze"])):
        command = f"{scripts(Shell.fish)}\ncomplete -C '{words}'"
        done = subprocess.run(["fish", "-N", "-c", command], cwd=folder, capture_output=True, text=True, check=True)
        assert [line.split("\t")[0] for line in done.stdout.splitlines()] == expected


def test_the_tree_has_every_option_of_the_help_page() -> None:
    """The tree is read from functions; typer's own objects must not know more."""

    def compare(command: object, names: tuple[str, ...]) -> None:
        node = nodes[names]
        known = {name for option in node.options for name in option.names}
        for parameter in command.params:  # type: ignore[attr-defined]
            if parameter.param_type_name == "option":
                assert {*parameter.opts, *parameter.secondary_opts} <= known, names
                assert bool(next(o for o in node.options if parameter.opts[0] in o.names).value) != parameter.is_flag
            else:
                assert parameter.required in [argument.required for argument in node.arguments], names
        for name, below in getattr(command, "commands", {}).items():
            compare(below, (*names, name))

    nodes = {node.path: node for program in programs() for node in program.all()}
    compare(typer.main.get_command(full_app()), ("cockpit",))
