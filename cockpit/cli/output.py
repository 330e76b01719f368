"""How commands print: people get tables (no colour when piped), `--json` gets one object on stdout and nothing else."""

from __future__ import annotations

import io
import sys
from collections.abc import Iterable, Sequence
from typing import Annotated, Any, NoReturn

import typer

from models.errors import CockpitError
from pipeline.json_codec import dumps_text

JsonFlag = Annotated[bool, typer.Option("--json", help="Print one JSON object instead of text.")]


def print_json(value: Any) -> None:
    """One JSON object on stdout. Paths and other values print as their text."""
    sys.stdout.write(_writable(dumps_text(value, default=_text, pretty=True)) + "\n")


def print_json_line(value: Any) -> None:
    """One JSON object on one line of stdout, at once: for a reader that follows along."""
    sys.stdout.write(_writable(dumps_text(value, default=_text)) + "\n")
    sys.stdout.flush()


def _text(value: object) -> str:
    """Bytes of a file's name that are no UTF-8 are shown as such: a JSON text cannot hold them."""
    return str(value).encode(errors="backslashreplace").decode()


def _writable(text: str) -> str:
    """The JSON text with its letters as \\u escapes, where standard output cannot write them."""
    try:
        text.encode(sys.stdout.encoding or "utf-8")
    except UnicodeEncodeError:
        units = text.encode("utf-16-be")
        codes = (int.from_bytes(units[at : at + 2], "big") for at in range(0, len(units), 2))
        return "".join(chr(code) if code < 128 else f"\\u{code:04x}" for code in codes)
    return text


def table_lines(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> list[str]:
    """Columns as wide as their widest cell, never cut; the heading is bold (`typer.echo` drops that when piped)."""
    cells = [list(columns), *([str(cell) for cell in row] for row in rows)]
    widths = [max(len(line[index]) for line in cells) for index in range(len(columns))]
    lines = ["  ".join(cell.ljust(width) for cell, width in zip(line, widths, strict=True)).rstrip() for line in cells]
    return [typer.style(lines[0], bold=True), *lines[1:]]


def print_table(columns: Sequence[str], rows: Iterable[Sequence[object]]) -> None:
    """See `table_lines`."""
    for line in table_lines(columns, rows):
        typer.echo(line)


def report_error(error: CockpitError, *, as_json: bool, program: str = "cockpit") -> None:
    """Say what went wrong: the message on stderr, and with `--json` an object on stdout."""
    if as_json:
        print_json({"error": {"type": type(error).__name__, "message": str(error), "exit_code": error.exit_code}})
    sys.stderr.write(f"{program}: {error}\n")


USAGE_ERROR: type[Any] = typer.BadParameter.__bases__[0]
"""What typer raises for a command line that it cannot read; it exports no name for it."""


def run_program(app: typer.Typer, arguments: list[str], program: str) -> NoReturn:
    """Run a command line and exit. What went wrong is said on stderr, and with `--json` in one object on stdout."""
    as_json = "--json" in arguments
    for stream in (sys.stdout, sys.stderr):  # a journal or a terminal without UTF-8: \\u4e2d, and no traceback
        if isinstance(stream, io.TextIOWrapper):
            stream.reconfigure(errors="backslashreplace")
    try:
        code = app(arguments, prog_name=program, standalone_mode=False)
    except CockpitError as error:
        report_error(error, as_json=as_json, program=program)
        raise SystemExit(error.exit_code) from error
    except USAGE_ERROR as error:
        error.show()
        if as_json:
            fault = {"type": "UsageError", "message": error.format_message(), "exit_code": error.exit_code}
            print_json({"error": fault})
        raise SystemExit(error.exit_code) from error
    except typer.Abort as error:
        sys.stderr.write("Aborted!\n")
        raise SystemExit(1) from error
    raise SystemExit(code if isinstance(code, int) else 0)


def size_text(count_bytes: float) -> str:
    """`1536` -> `1.5 KB`, in decimal units."""
    for unit in ("B", "KB", "MB", "GB"):
        if count_bytes < 1000 or unit == "GB":
            return f"{count_bytes:.0f} {unit}" if unit == "B" else f"{count_bytes:.1f} {unit}"
        count_bytes /= 1000
    raise AssertionError("unreachable")
