"""The command line as data, read from typer applications: what man pages and shell completion are made from.

Only what typer documents is read (registered commands and groups, the parameters of their functions), not the objects
that it makes of them, which differ between its versions.
"""

from __future__ import annotations

import enum
import inspect
import typing
from collections.abc import Callable
from dataclasses import dataclass
from pathlib import Path
from typing import Any

import typer
from typer.models import ArgumentInfo, OptionInfo
from typer.utils import get_params_from_function


@dataclass(frozen=True, slots=True)
class Parameter:
    """One option or argument. `names`: ("-v", "--verbose"); empty for an argument. `value`: what its value is called,
    "" for a switch. `choices`: values to offer; `files`: offer files, too. `default`: as typed, "" for none."""

    names: tuple[str, ...]
    value: str
    help: str
    default: str = ""
    required: bool = False
    repeated: bool = False
    choices: tuple[str, ...] = ()
    files: bool = False

    @property
    def is_option(self) -> bool:
        return bool(self.names)


@dataclass(frozen=True, slots=True)
class CommandNode:
    """One command or group. `path`: ("cockpit", "models", "fetch")."""

    path: tuple[str, ...]
    summary: str
    help: str
    parameters: tuple[Parameter, ...]
    commands: tuple[CommandNode, ...] = ()

    @property
    def options(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if parameter.is_option)

    @property
    def arguments(self) -> tuple[Parameter, ...]:
        return tuple(parameter for parameter in self.parameters if not parameter.is_option)

    def all(self) -> list[CommandNode]:
        """This one and every command below, in the order of the help page."""
        return [self, *(below for command in self.commands for below in command.all())]


HELP = Parameter(("-h", "--help"), "", "Show the help and exit.")


def command_tree(app: typer.Typer, name: str, summary: str = "", path: tuple[str, ...] = ()) -> CommandNode:
    """The application `app` under `name`, with everything in it."""
    own = (*path, name)
    commands = [_command(info.callback, info.name, info.help, own) for info in app.registered_commands]
    for group in app.registered_groups:
        assert group.typer_instance is not None
        commands.append(command_tree(group.typer_instance, str(_given(group.name) or _app_name(group)), path=own))
    text = _text(_given(app.info.help)) or summary
    root = app.registered_callback.callback if app.registered_callback else None
    return CommandNode(own, _first(text), text, (*_parameters(root), HELP), tuple(commands))


def _app_name(group: Any) -> str:
    return str(_given(group.typer_instance.info.name))


def _command(
    callback: Callable[..., Any] | None, name: str | None, help_text: Any, path: tuple[str, ...]
) -> CommandNode:
    assert callback is not None
    text = _text(_given(help_text)) or _text(callback.__doc__)
    own = (*path, name or callback.__name__.replace("_", "-"))
    return CommandNode(own, _first(text), text, (*_parameters(callback), HELP))


def _given(value: Any) -> Any:
    """typer marks what was not given with a placeholder that holds the default."""
    return getattr(value, "value", value)


def _text(value: str | None) -> str:
    return inspect.cleandoc(value or "")


def _first(text: str) -> str:
    line = " ".join(text.split("\n\n", maxsplit=1)[0].split())
    return line[: line.find(". ") + 1] if ". " in line else line


def _parameters(callback: Callable[..., Any] | None) -> tuple[Parameter, ...]:
    if callback is None:
        return ()
    return tuple(
        _parameter(name, meta.default, meta.annotation)
        for name, meta in get_params_from_function(callback).items()
        if not getattr(meta.default, "hidden", False)
        and not (isinstance(meta.annotation, type) and meta.annotation.__name__ == "Context")
    )


def _parameter(name: str, info: Any, annotation: Any) -> Parameter:
    kinds = _kinds(annotation)
    repeated = any(typing.get_origin(part) in (list, tuple) for part in (annotation, *typing.get_args(annotation)))
    choices = _choices(info, kinds)
    is_argument = isinstance(info, ArgumentInfo) or (
        not isinstance(info, OptionInfo) and info is inspect.Parameter.empty
    )
    default = info.default if isinstance(info, ArgumentInfo | OptionInfo) else info
    required = default is ... or default is inspect.Parameter.empty
    help_text = getattr(info, "help", None) or ""
    files = Path in kinds or _takes_files(info)
    if is_argument:
        value = getattr(info, "metavar", None) or name.upper()
        return Parameter((), value, help_text, _shown(default), required, repeated, choices, files)
    names = tuple(getattr(info, "param_decls", None) or (f"--{name.replace('_', '-')}",))
    if bool in kinds:
        return Parameter(tuple(part for decl in names for part in decl.split("/")), "", help_text)
    value = getattr(info, "metavar", None) or _value_name(kinds, choices, files)
    return Parameter(names, value, help_text, _shown(default), required, repeated, choices, files)


def _kinds(annotation: Any) -> set[Any]:
    parts = typing.get_args(annotation)
    return (
        {annotation}
        if not parts or typing.get_origin(annotation) is typing.Literal
        else set().union(*map(_kinds, parts))
    )


def _choices(info: Any, kinds: set[Any]) -> tuple[str, ...]:
    offered = getattr(info, "autocompletion", None)
    if offered is not None:
        return tuple(offered(""))
    for kind in kinds:
        if isinstance(kind, type) and issubclass(kind, enum.Enum):
            return tuple(str(member.value) for member in kind)
        if typing.get_origin(kind) is typing.Literal:
            return tuple(map(str, typing.get_args(kind)))
    return ()


def _takes_files(info: Any) -> bool:
    """A profile may be named or be a file."""
    return getattr(getattr(info, "autocompletion", None), "__name__", "") == "profile_values"


def _value_name(kinds: set[Any], choices: tuple[str, ...], files: bool) -> str:
    if files:
        return "NAME|FILE" if choices else "PATH"
    if choices:
        return "|".join(choices) if len(choices) < 5 else "NAME"
    return "NUMBER" if kinds & {int, float} else "TEXT"


def _shown(default: Any) -> str:
    if default in (None, ..., inspect.Parameter.empty, ()) or isinstance(default, list):
        return ""
    return str(default.value if isinstance(default, enum.Enum) else default)
