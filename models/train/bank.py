"""The phrase bank: files of templates, written by hand, one folder per language."""

from __future__ import annotations

from functools import cache
from pathlib import Path

from models.train.grammar import TemplateError, parsed

FOLDER = Path(__file__).with_name("phrases")


@cache
def bank_of(language: str) -> dict[str, tuple[str, ...]]:
    """Slot name -> its templates. TemplateError for a template that cannot be read or a name given twice."""
    bank: dict[str, list[str]] = {}
    for file in sorted((FOLDER / language).glob("*.txt")):
        name = ""
        here: set[str] = set()
        for number, line in enumerate(file.read_text(encoding="utf-8").splitlines(), 1):
            if line.startswith("@"):
                name = line[1:].strip()
                if name in here:
                    raise TemplateError(f"{file}:{number}: @{name} stands twice in this file")
                here.add(name)
                bank.setdefault(name, [])
            elif line.strip() and not line.startswith("#"):
                if not name:
                    raise TemplateError(f"{file}:{number}: a template before the first @name")
                bank[name] += [part.strip() for part in line.split(";") if part.strip()]
    for templates in bank.values():
        for template in templates:
            parsed(template)
    return {name: tuple(dict.fromkeys(templates)) for name, templates in bank.items()}


def sizes() -> dict[str, int]:
    """How many templates (with a slot) and phrases (without) the bank holds, both languages together."""
    templates = {t for language in ("en", "zh") for bank in bank_of(language).values() for t in bank}
    with_slot = sum(any(sign in template for sign in "{[(") for template in templates)
    return {"templates": with_slot, "phrases": len(templates) - with_slot}
