"""`cockpit completion SHELL`: scripts that complete `cockpit` and `o3ctl` in bash, zsh and fish.

They hold the whole command line as data. typer's own completion starts Python at every press of Tab and imports the
command, about two seconds for `cockpit say`.
"""

from __future__ import annotations

from collections.abc import Iterable
from dataclasses import replace
from enum import StrEnum
from typing import Annotated

import typer

from cockpit.cli.command_tree import CommandNode, Parameter, command_tree


class Shell(StrEnum):
    """The shells that there are scripts for."""

    bash = "bash"
    zsh = "zsh"
    fish = "fish"


def completion(shell: Annotated[Shell, typer.Argument(metavar="SHELL", help="bash, zsh or fish.")]) -> None:
    """Print the script that completes `cockpit` and `o3ctl` in a shell. For bash: eval "$(cockpit completion bash)"."""
    typer.echo("\n".join(script(program, shell) for program in programs()), nl=False)


def programs() -> list[CommandNode]:
    """Both programs with everything in them, in the order of their help pages."""
    from cockpit.cli import COMMANDS, full_app
    from cockpit.cli.o3ctl import app

    order = [command.name for command in COMMANDS]
    cockpit = command_tree(full_app(), "cockpit")
    ordered = sorted(cockpit.commands, key=lambda node: order.index(node.path[-1]))
    return [replace(cockpit, commands=tuple(ordered)), command_tree(app, "o3ctl")]


def script(program: CommandNode, shell: Shell) -> str:
    """The completion script of one program. Ends with a line feed."""
    return {Shell.bash: _bash, Shell.zsh: _zsh, Shell.fish: _fish}[shell](program)


def _key(node: CommandNode) -> str:
    return " ".join(node.path)


def _names(options: Iterable[Parameter]) -> list[str]:
    return [name for option in options for name in option.names]


def _quoted(text: str) -> str:
    """For a shell's single quotes."""
    return "'" + text.replace("'", "'\\''") + "'"


# --- bash ----------------------------------------------------------------------------------------------------------
def _bash(program: CommandNode) -> str:
    name = program.path[0]
    add = f"_{name}_add"
    lines = [
        f"# bash completion for {name}; made by: cockpit completion bash",
        f"{add}() {{",  # one candidate a line: file names may hold blanks
        "  local line",
        '  while IFS= read -r line; do COMPREPLY+=("$line"); done < <(compgen "$@" -- "${COMP_WORDS[COMP_CWORD]}")',
        "}",
        f"_{name}_completion() {{",
        f"  local current=${{COMP_WORDS[COMP_CWORD]}} at={name} index",
        "  COMPREPLY=()",
        "  for ((index = 1; index < COMP_CWORD; index++)); do",
        '    case "$at ${COMP_WORDS[index]}" in',
        f'      {_below(program)}) at="$at ${{COMP_WORDS[index]}}" ;;',
        "    esac",
        "  done",
        '  case "$at ${COMP_WORDS[COMP_CWORD-1]}" in',
    ]
    for patterns, option in _value_cases(program):
        lines.append(f"    {patterns}) {_bash_values(add, option)}; return ;;")
    lines += ["  esac", '  case "$at" in']
    for node in program.all():
        values = [_bash_values(add, argument) for argument in node.arguments]
        if node.commands:
            values.append(f"{add} -W {_quoted(' '.join(command.path[-1] for command in node.commands))}")
        lines.append(f"    {_quoted(_key(node))})")
        lines.append(f"      if [[ $current != -* ]]; then {'; '.join(values) or ':'}; fi")
        names = _quoted(" ".join(_names(node.options)))
        lines.append(f"      if [[ $current == -* || ${{#COMPREPLY[@]}} -eq 0 ]]; then {add} -W {names}; fi ;;")
    lines += ["  esac", "}", f"complete -o bashdefault -F _{name}_completion {name}"]
    return "\n".join(lines) + "\n"


def _below(program: CommandNode) -> str:
    return "|".join(_quoted(_key(node)) for node in program.all() if len(node.path) > 1)


def _value_cases(program: CommandNode) -> list[tuple[str, Parameter]]:
    """For every option that takes a value: the patterns of what stands before the value, and the option."""
    return [
        ("|".join(_quoted(f"{_key(node)} {name}") for name in option.names), option)
        for node in program.all()
        for option in node.options
        if option.value
    ]


def _bash_values(add: str, parameter: Parameter) -> str:
    parts = [f"{add} -W {_quoted(' '.join(parameter.choices))}"] if parameter.choices else []
    parts += [f"compopt -o filenames 2>/dev/null; {add} -f"] if parameter.files else []
    return "; ".join(parts) or ":"


# --- zsh -----------------------------------------------------------------------------------------------------------
def _zsh(program: CommandNode) -> str:
    name = program.path[0]
    lines = [
        f"#compdef {name}",
        f"# zsh completion for {name}; made by: cockpit completion zsh",
        f"_{name}() {{",
        f"  local at={name} word; local -a entries",
        "  for word in ${words[2,CURRENT-1]}; do",
        '    case "$at $word" in',
        f'      {_below(program)}) at="$at $word" ;;',
        "    esac",
        "  done",
        '  case "$at ${words[CURRENT-1]}" in',
    ]
    lines += [f"    {patterns}) {_zsh_values(option)} return ;;" for patterns, option in _value_cases(program)]
    lines += ["  esac", '  case "$at" in']
    for node in program.all():
        lines.append(f"    {_quoted(_key(node))})")
        for argument in node.arguments:
            lines.append(f"      [[ $PREFIX == -* ]] || {{ {_zsh_values(argument)} }}")
        entries = [(command.path[-1], command.summary) for command in node.commands]
        entries += [(alias, option.help) for option in node.options for alias in option.names]
        described = " ".join(_quoted(f"{word.replace(':', chr(92) + ':')}:{text}") for word, text in entries)
        lines.append(f"      entries=({described})")
        lines.append(f"      _describe -t commands {name} entries ;;")
    lines += [
        "  esac",
        "}",
        f'if [ "$funcstack[1]" = "_{name}" ]; then _{name} "$@"; else compdef _{name} {name}; fi',
    ]
    return "\n".join(lines) + "\n"


def _zsh_values(parameter: Parameter) -> str:
    parts = [f"compadd -- {' '.join(map(_quoted, parameter.choices))};"] if parameter.choices else []
    parts += ["_files;"] if parameter.files else []
    return " ".join(parts) or ":;"


# --- fish ----------------------------------------------------------------------------------------------------------
def _fish(program: CommandNode) -> str:
    name = program.path[0]
    below = " ".join(_quoted(_key(node)) for node in program.all() if len(node.path) > 1)
    lines = [
        f"# fish completion for {name}; made by: cockpit completion fish",
        f"function __{name}_at --description 'The command that is being completed'",
        f"    set -l at {name}",
        "    for word in (commandline -opc)[2..-1]",
        f'        contains -- "$at $word" {below}; and set at "$at $word"',
        "    end",
        '    test "$at" = "$argv[1]"',
        "end",
        f"complete -c {name} -f",
    ]
    for node in program.all():
        line = f"complete -c {name} -n {_quoted(f'__{name}_at {_quoted_double(_key(node))}')}"
        lines += [
            f"{line} -a {_quoted(command.path[-1])} -d {_fish_text(command.summary)}" for command in node.commands
        ]
        for option in node.options:
            flags = " ".join(
                f"-l {alias[2:]}" if alias.startswith("--") else f"-s {alias[1:]}" for alias in option.names
            )
            lines.append(f"{line} {flags}{_fish_values(option)} -d {_fish_text(option.help)}")
        for argument in node.arguments:
            if argument.choices:
                lines.append(f"{line} -a {_quoted(' '.join(argument.choices))}")
            if argument.files:
                lines.append(f"{line} -F")
    return "\n".join(lines) + "\n"


def _fish_values(option: Parameter) -> str:
    if not option.value:
        return ""
    values = f" -a {_quoted(' '.join(option.choices))}" if option.choices else ""
    return f" -r{' -F' if option.files else ''}{values}"


def _quoted_double(text: str) -> str:
    return f'"{text}"'


def _fish_text(text: str) -> str:
    return "'" + text.replace("\\", "\\\\").replace("'", "\\'") + "'"
