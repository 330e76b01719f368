"""Labelled sentences for the semantic parser, written from the phrase bank.

    python -m models.train.generate --seed 1 --sentences 100000 --out sentences.jsonl [--kinds plain,several]

One JSON object a line: text, lang (zh, en), kind, calls ({tool, args, spans}), reason (why nothing or not all is done,
or null), what ([start, end] of the words that name the missing or forbidden thing, or null), last (the call before, for
follow-ups, or null). Spans are in characters: value (the number), place, query. The same seed gives the same lines.
Sentences that judge the parser are never among them (models/train/held_out.py).
"""

from __future__ import annotations

import argparse
import json
import random
import sys
import time
from collections import Counter
from collections.abc import Iterator, Sequence
from pathlib import Path
from typing import Any

from models.train.bank import sizes
from models.train.check import NumberMisread, check
from models.train.grammar import joined
from models.train.held_out import fingerprint, held_out
from models.train.kinds import AS_SAID, KINDS, NOT_SPOILED, QUESTIONS
from models.train.surface import dressed, heard
from models.train.wishes import FROM_TEXT, Maker, Wish

_SEVERAL = ("several", "several_lacking")
MOST_MISREAD = 30
"""So many lines whose number the product does not read, and the generator has a fault; fewer are left away."""
MOST_REPEATS = 200
"""So many sentences of a kind that were there already, one after another, and it has no more."""


def sentences(seed: int, count: int, kinds: Sequence[str] = ()) -> Iterator[dict[str, Any]]:
    """`count` distinct lines, or fewer where the kinds have no more. ValueError for an unknown kind."""
    unknown = set(kinds) - set(KINDS)
    if unknown:
        raise ValueError(f"no kinds {sorted(unknown)}; there are {', '.join(KINDS)}")
    rng = random.Random(seed)
    makers = {language: Maker(language, rng) for language in ("en", "zh")}
    open_kinds = {(language, kind) for language in makers for kind in (kinds or KINDS)}
    repeats: Counter[tuple[str, str]] = Counter()
    seen: set[str] = set()
    misread = 0
    while len(seen) < count and open_kinds:
        language = rng.choice(("en", "zh"))
        left = [kind for kind in (kinds or KINDS) if (language, kind) in open_kinds]
        if not left:
            continue
        kind = rng.choices(left, [KINDS[kind][0] for kind in left])[0]
        try:
            line = sentence(makers[language], kind)
        except NumberMisread:
            misread += kind not in _SEVERAL  # two wishes without a pause between them may say a third thing
            if misread > MOST_MISREAD:
                raise
            continue  # nobody could read that
        key = line["text"] + (json.dumps(line["last"]) if line["last"] else "")
        if key in seen or fingerprint(line["text"]) in held_out():
            repeats[language, kind] += 1
            if repeats[language, kind] >= MOST_REPEATS:
                open_kinds.discard((language, kind))
            continue
        repeats[language, kind] = 0
        seen.add(key)
        yield line


def sentence(maker: Maker, kind: str) -> dict[str, Any]:
    """One line of a kind, checked. Raises LineError where the generator has a fault."""
    wish = KINDS[kind][1](maker)
    chunks = wish.chunks if kind in AS_SAID else dressed(maker, wish)
    chunks = heard(maker, chunks, question=wish.question or kind in QUESTIONS, spoiled=kind not in NOT_SPOILED)
    line = _line(maker, kind, wish, *joined(chunks))
    check(line)
    return line


def _line(maker: Maker, kind: str, wish: Wish, text: str, spans: dict[str, tuple[int, int]]) -> dict[str, Any]:
    calls = []
    for i, one in enumerate(wish.calls):
        own = {tag.split(".")[1]: list(span) for tag, span in spans.items() if tag.startswith(f"{i}.")}
        if kind == "exception" and not own and i and "0.value" in spans:
            own = {"value": list(spans["0.value"])}  # one number for several places
        args = {
            name: text[own[name][0] : own[name][1]] if value == FROM_TEXT else value
            for name, value in one["args"].items()
        }
        calls.append({"tool": one["tool"], "args": args, "spans": own})
    what = list(spans["what"]) if "what" in spans and wish.reason in ("unsupported", "forbidden") else None
    return {
        "text": text,
        "lang": maker.language,
        "kind": kind,
        "calls": calls,
        "reason": wish.reason,
        "what": what,
        "last": wish.last or _unrelated(maker, kind, wish),
    }


_BEFORE = (
    {"tool": "set_trunk", "args": {"open": True}},
    {"tool": "set_defrost", "args": {"area": "rear", "on": True}},
    {"tool": "set_wipers", "args": {"mode": "slow"}},
    {"tool": "set_interior_light", "args": {"on": True}},
    {"tool": "set_recirculation", "args": {"on": False}},
    {"tool": "set_sunroof", "args": {"position": "open"}},
    {"tool": "set_media_source", "args": {"source": "FM"}},
    {"tool": "set_air_conditioning", "args": {"on": True}},
    {"tool": "set_exterior_light", "args": {"which": "fog", "on": True}},
    {"tool": "set_screen", "args": {"on": False}},
    {"tool": "set_climate_mode", "args": {"mode": "auto", "on": True}},
    {"tool": "set_ambient_color", "args": {"color": "blue"}},
)


def _unrelated(maker: Maker, kind: str, wish: Wish) -> dict[str, Any] | None:
    """Most sentences have nothing to do with the call before them, and yet there is one."""
    before = maker.rng.choice(_BEFORE)
    if kind in ("fragment", "nonsense") or maker.rng.random() >= 0.2:
        return None
    return None if any(one["tool"] == before["tool"] for one in wish.calls) else dict(before)


def main(arguments: Sequence[str] | None = None) -> int:
    """Write the file and print the counts."""
    parser = argparse.ArgumentParser(
        prog="python -m models.train.generate",
        description=__doc__,
        formatter_class=argparse.RawDescriptionHelpFormatter,
    )
    parser.add_argument("--seed", type=int, default=1)
    parser.add_argument("--sentences", type=int, default=100_000, help="how many distinct ones (100000)")
    parser.add_argument("--out", type=Path, required=True, help="file to write, JSON lines")
    parser.add_argument("--kinds", default="", help=f"only these, comma-separated: {', '.join(KINDS)}")
    options = parser.parse_args(arguments)
    kinds = [kind for kind in options.kinds.split(",") if kind]
    counts: Counter[tuple[str, str]] = Counter()
    began = time.monotonic()
    part = options.out.with_suffix(".part")
    with part.open("w", encoding="utf-8") as file:
        for number, line in enumerate(sentences(options.seed, options.sentences, kinds), 1):
            file.write(json.dumps(line, ensure_ascii=False) + "\n")
            counts[line["kind"], line["lang"]] += 1
            if number % 1000 == 0:
                sys.stderr.write(f"\r{number}/{options.sentences} ")
    part.replace(options.out)
    sys.stderr.write("\n")
    show(counts, time.monotonic() - began)
    return 0


def show(counts: Counter[tuple[str, str]], took_s: float) -> None:
    """The counts by kind and language."""
    print(f"{'kind':18}{'English':>9}{'Mandarin':>10}")
    for kind in KINDS:
        if counts[kind, "en"] or counts[kind, "zh"]:
            print(f"{kind:18}{counts[kind, 'en']:>9}{counts[kind, 'zh']:>10}")
    bank = sizes()
    print(
        f"{sum(counts.values())} distinct sentences in {took_s:.0f} s from {bank['templates']} templates and "
        f"{bank['phrases']} phrases"
    )


if __name__ == "__main__":
    raise SystemExit(main())
