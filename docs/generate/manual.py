"""Man pages and completion scripts of `cockpit` and `o3ctl`, as files that the wheel puts under `share/`.

click-man reads click's objects, which typer no longer makes; this reads `cockpit.cli.command_tree`.
"""

from __future__ import annotations

import re
from collections.abc import Iterator

from cockpit import __version__
from cockpit.cli import EXIT_CODES
from cockpit.cli.command_tree import CommandNode, Parameter
from cockpit.cli.completion import Shell, programs, script
from docs.generate.house import ROOT

SHARE = "docs/share"
COMPLETION = {
    Shell.bash: "bash-completion/completions/{name}",
    Shell.zsh: "zsh/site-functions/_{name}",
    Shell.fish: "fish/vendor_completions.d/{name}.fish",
}
PURPOSE = {
    "cockpit": "in-vehicle voice runtime",
    "o3ctl": "ask the arbiter of a running Cockpit, and give it orders",
}
ENVIRONMENT = {
    "cockpit": (
        ("COCKPIT_CACHE", "Where weights and built models are kept; ~/.cache/cockpit when unset."),
        ("COCKPIT_API_SOCKET", "The API's socket that cockpit send asks, when --socket is not given."),
        ("COCKPIT_WEIGHTS", "A folder to look in for weights before any download."),
        ("HF_ENDPOINT", "Mirror of Hugging Face to fetch weights from; https://huggingface.co when unset."),
    ),
    "o3ctl": (("O3CTL_SOCKET", "The control socket to ask, when --socket is not given."),),
}
SEE_ALSO = {"cockpit": "o3ctl", "o3ctl": "cockpit"}


def make() -> dict[str, str]:
    """Every file under `docs/share`."""
    files = {}
    for program in programs():
        name = program.path[0]
        files[f"{SHARE}/man/man1/{name}.1"] = page(program)
        for shell, path in COMPLETION.items():
            files[f"{SHARE}/{path.format(name=name)}"] = script(program, shell)
    return files


def page(program: CommandNode) -> str:
    """The man page of one program, all commands on it."""
    return "\n".join(_lines(program)) + "\n"


def _released() -> str:
    """The date of the newest version in `CHANGELOG.md`."""
    found = re.search(
        r"^## \[[0-9.]+\] - (\d{4}-\d{2}-\d{2})$", (ROOT / "CHANGELOG.md").read_text("utf-8"), re.MULTILINE
    )
    if found is None:
        raise ValueError("CHANGELOG.md names no version with its date")
    return found[1]


def _lines(program: CommandNode) -> Iterator[str]:
    name = program.path[0]
    yield f'.TH {name.upper()} 1 "{_released()}" "Cockpit {__version__}" "User Commands"'
    yield ".SH NAME"
    yield f"{name} \\- {_escaped(PURPOSE[name])}"
    yield ".SH SYNOPSIS"
    yield f".B {name}"
    yield "[\\fIOPTIONS\\fR] \\fICOMMAND\\fR [\\fIARGUMENTS\\fR]"
    yield ".SH DESCRIPTION"
    yield from _paragraphs(program.help)
    yield ".SH OPTIONS"
    for option in program.options:
        yield from _parameter(option)
    yield ".SH COMMANDS"
    for node in program.all():
        if not node.commands:
            yield from _command(node)
    yield ".SH EXIT STATUS"
    for code, meaning in EXIT_CODES:
        yield from (".TP", f".B {_escaped(str(code))}", _escaped(meaning))
    if ENVIRONMENT[name]:
        yield ".SH ENVIRONMENT"
    for variable, meaning in ENVIRONMENT[name]:
        yield from (".TP", f".B {variable}", _escaped(meaning))
    yield ".SH SEE ALSO"
    yield f".BR {SEE_ALSO[name]} (1)"


def _command(node: CommandNode) -> Iterator[str]:
    yield f".SS {_escaped(' '.join(node.path))}{''.join(' ' + _usage(part) for part in node.arguments)} [OPTIONS]"
    yield from _paragraphs(node.help)
    for parameter in node.parameters:
        if parameter.help and "--help" not in parameter.names:
            yield from _parameter(parameter)


def _usage(argument: Parameter) -> str:
    value = argument.value if argument.required or argument.value.startswith("[") else f"[{argument.value}]"
    return _escaped(value + ("..." if argument.repeated and not value.endswith("...") else ""))


def _parameter(parameter: Parameter) -> Iterator[str]:
    yield ".TP"
    if parameter.is_option:
        names = ", ".join(f"\\fB{_escaped(name)}\\fR" for name in parameter.names)
        yield names + (f" \\fI{_escaped(parameter.value)}\\fR" if parameter.value else "")
    else:
        yield f"\\fI{_escaped(parameter.value)}\\fR"
    default = f" Default: {parameter.default}." if parameter.default else ""
    yield _escaped(parameter.help + default)


def _paragraphs(text: str) -> Iterator[str]:
    """Paragraphs, with examples (indented lines) left as they are."""
    for number, paragraph in enumerate(re.split(r"\n\s*\n", text)):
        if number:
            yield ".PP"
        if paragraph.startswith("    "):
            yield from (".EX", *(_escaped(line) for line in paragraph.splitlines()), ".EE")
        else:
            yield _escaped(" ".join(paragraph.split()))


def _escaped(text: str) -> str:
    """For roff: backslashes, hyphens that are minus signs, and a first letter that would be a request."""
    safe = text.replace("\\", "\\e").replace("-", "\\-").replace("'", "\\(aq").replace("`", "")
    return f"\\&{safe}" if safe.startswith(".") else safe
