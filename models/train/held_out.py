"""Sentences that judge the parser: never written into training data, also where the grammar comes upon them by chance.

    python -m models.train.held_out FILE...      keep these out, too (JSON lines, YAML)

Only fingerprints are kept, so that others' sentences stand nowhere in this repository.
"""

from __future__ import annotations

import hashlib
import json
import re
import sys
from collections.abc import Iterator, Sequence
from functools import cache
from pathlib import Path

from ruamel.yaml import YAML

FILE = Path(__file__).with_name("held_out.txt")


def fingerprint(text: str) -> str:
    """Of the words alone: case, spaces and punctuation make no difference."""
    return hashlib.sha256(re.sub(r"[\W_]+", "", text.lower()).encode()).hexdigest()[:12]


@cache
def held_out() -> frozenset[str]:
    """The fingerprints."""
    return frozenset(FILE.read_text(encoding="utf-8").split())


def sentences_of(file: Path) -> Iterator[str]:
    """The sentences of a set: `text` of JSON lines, `t` or the second of a row in YAML, `text` of a manifest."""
    content = file.read_text(encoding="utf-8")
    if file.suffix == ".jsonl":
        yield from (json.loads(line)["text"] for line in content.splitlines())
        return
    rows = YAML(typ="safe").load(content)
    for row in rows if isinstance(rows, list) else [row for part in rows.values() for row in part]:
        yield row[1] if isinstance(row, list) else row["t"] if "t" in row else row["text"]


def main(arguments: Sequence[str] | None = None) -> int:
    """Add the files' sentences to the list."""
    files = [Path(name) for name in (sys.argv[1:] if arguments is None else arguments)]
    if not files:
        print(__doc__, file=sys.stderr)
        return 2
    kept = held_out() | {fingerprint(text) for file in files for text in sentences_of(file)}
    FILE.write_text("\n".join(sorted(kept)) + "\n", encoding="utf-8")
    print(f"{len(kept)} sentences are kept out")
    return 0


if __name__ == "__main__":
    raise SystemExit(main())
