"""`python -m docs.generate`: make everything that is made from the code again; `--check` says what is out of date."""

from __future__ import annotations

import sys
from collections.abc import Callable

from docs.generate import architecture, licences, manual
from docs.generate.house import ROOT

MAKERS: tuple[Callable[[], dict[str, str]], ...] = (architecture.make, licences.make, manual.make)
"""Each returns path (from the root) -> text. Paths are sorted before use, texts end with a line feed."""


def made() -> dict[str, str]:
    """Every generated file with the text that it should have."""
    return {path: text for make in MAKERS for path, text in make().items()}


def main(arguments: list[str]) -> int:
    stale = [path for path, text in made().items() if _current(path) != text]
    if arguments == ["--check"]:
        for path in stale:
            sys.stderr.write(f"{path} is out of date; run: make docs\n")
        return 1 if stale else 0
    for path, text in made().items():
        (ROOT / path).parent.mkdir(parents=True, exist_ok=True)
        (ROOT / path).write_text(text, encoding="utf-8")
    sys.stdout.write("".join(f"{path} written\n" for path in stale) or "everything is current\n")
    return 0


def _current(path: str) -> str | None:
    file = ROOT / path
    return file.read_text(encoding="utf-8") if file.is_file() else None


if __name__ == "__main__":
    raise SystemExit(main(sys.argv[1:]))
