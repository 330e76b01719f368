"""Questions to the owner's manual: how often the right section answers, and how often a wrong or needless one.

python -m benchmarks manual [--part test|dev] [--turns] [--file MANUAL] [--json] [--show N]

The questions (benchmarks/data/manual_questions.yaml) were written from what the sections are about, in a driver's
words; thresholds were chosen on `dev`. Beside the product's own way (names, then the sentence encoder) plain word
overlap runs over the same texts: Okapi BM25 (k1 1.2, b 0.75; words, and characters and their pairs in Mandarin) and
rapidfuzz's token_set_ratio over the names.

recall@1: the right section stands first, whatever its score. answered: share of the questions that get any section;
right: share that get theirs. false: share of the questions that the manual does not answer which get one all the same.
--turns: the same questions through a whole turn's plan, with the parser and no language model: what becomes of them.
Latency: of one question, encoder on one thread; cpu_ms: of this process, which a shared machine disturbs less.
"""

from __future__ import annotations

import json
import math
import os
import re
import time
from collections import Counter
from collections.abc import Callable, Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from itertools import pairwise
from pathlib import Path
from typing import Any

from rapidfuzz import fuzz
from rich.console import Console
from rich.table import Table
from ruamel.yaml import YAML

from benchmarks.harness.report import command_line, percentiles
from models.engines import factory
from models.engines.sentence_encoder import SentenceEncoder
from models.store.store import Store
from pipeline.dialogue.manager import DialogueManager
from pipeline.frames import Language
from pipeline.manual.file import Section
from pipeline.manual.kept import encoder_key, index_of
from pipeline.manual.manual import SHIPPED, THRESHOLDS, Manual

QUESTIONS = Path(__file__).parents[1] / "data" / "manual_questions.yaml"
ENCODER = "sentence-encoder"


@dataclass(frozen=True, slots=True)
class Question:
    """subject: the section's id, None where the manual does not answer it."""

    text: str
    language: Language
    subject: str | None


@dataclass(frozen=True, slots=True)
class Found:
    """What a way of searching gives: the first subject, and whether it would be said."""

    subject: str | None
    said: bool
    ms: float
    cpu_ms: float


Search = Callable[[str, Language], tuple[str | None, bool]]


def questions(part: str) -> list[Question]:
    """`part` (test, dev) with those of it that are not in the manual."""
    data: dict[str, Any] = YAML(typ="safe").load(QUESTIONS.read_text("utf-8"))
    languages: tuple[Language, Language] = ("en", "zh")
    asked = [
        Question(text, language, subject)
        for subject, texts in data[part].items()
        for text, language in zip(texts, languages, strict=True)
    ]
    return asked + [
        Question(text, language, None) for language in languages for text in data[f"absent_{part}"][language]
    ]


def product(manual: Manual) -> Search:
    """As a turn that is sure to be asked how something is done: names first, then the encoder."""

    def search(text: str, language: Language) -> tuple[str | None, bool]:
        named = manual.find(text, language)
        if named is not None:
            return named.entry.name, True
        return by_encoder(text, language)

    by_encoder = encoder_alone(manual)
    return search


def encoder_alone(manual: Manual) -> Search:
    """The sentence encoder without names."""

    def search(text: str, language: Language) -> tuple[str | None, bool]:
        best = manual.nearest(text, language)
        if best is None:
            return None, False
        return best.section.id, best.likeness >= THRESHOLDS[language].how_to

    return search


def names_alone(manual: Manual) -> Search:
    """Names by words and by sound, as before there was an encoder."""

    def search(text: str, language: Language) -> tuple[str | None, bool]:
        named = manual.find(text, language)
        return (None, False) if named is None else (named.entry.name, True)

    return search


def bm25(sections: Sequence[Section]) -> Search:
    """Word overlap; it says what it finds, since its scores have no scale."""
    ranked = {language: _Bm25([s for s in sections if s.language == language]) for language in ("en", "zh")}
    return lambda text, language: ranked[language].best(text)


def fuzzy(sections: Sequence[Section]) -> Search:
    """rapidfuzz: the name with the highest token_set_ratio."""

    def search(text: str, language: Language) -> tuple[str | None, bool]:
        asked = " ".join(_words(text))
        scored = [
            (max(fuzz.token_set_ratio(asked, " ".join(_words(name))) for name in section.names), section.id)
            for section in sections
            if section.language == language
        ]
        return max(scored)[1], True

    return search


class _Bm25:
    """Okapi BM25 over whole sections."""

    def __init__(self, sections: Sequence[Section]) -> None:
        self._ids = [section.id for section in sections]
        self._counts = [
            Counter(word for text in (*section.names, *section.passages) for word in _words(text))
            for section in sections
        ]
        self._sizes = [sum(counts.values()) for counts in self._counts]
        self._mean = sum(self._sizes) / max(len(self._sizes), 1)
        self._known = Counter(word for counts in self._counts for word in counts)

    def best(self, text: str) -> tuple[str | None, bool]:
        words = set(_words(text))
        scores = [self._score(words, number) for number in range(len(self._ids))]
        top = max(range(len(scores)), key=scores.__getitem__)
        return (self._ids[top], True) if scores[top] > 0 else (None, False)

    def _score(self, words: set[str], number: int) -> float:
        counts, size = self._counts[number], self._sizes[number] / self._mean
        return sum(
            math.log(1 + (len(self._ids) - self._known[word] + 0.5) / (self._known[word] + 0.5))
            * counts[word] * 2.2 / (counts[word] + 1.2 * (0.25 + 0.75 * size))
            for word in words
            if counts[word]
        )  # fmt: skip


def _words(text: str) -> list[str]:
    """Words; in Mandarin characters and pairs of them."""
    parts = re.findall(r"[㐀-鿿]|[a-z0-9']+", text.lower())
    pairs = [a + b for a, b in pairwise(parts) if not a.isascii() and not b.isascii()]
    return parts + pairs


def measure(asked: Sequence[Question], search: Search) -> dict[str, Any]:
    """Figures of one way of searching."""
    found = []
    for question in asked:
        start_s, cpu_s = time.perf_counter(), time.process_time()
        subject, said = search(question.text, question.language)
        took_ms, cpu_ms = (time.perf_counter() - start_s) * 1e3, (time.process_time() - cpu_s) * 1e3
        found.append(Found(subject, said, took_ms, cpu_ms))
    figures: dict[str, Any] = {}
    for language in ("en", "zh", "both"):
        rows = [pair for pair in zip(asked, found, strict=True) if language in (pair[0].language, "both")]
        there = [pair for pair in rows if pair[0].subject is not None]
        absent = [one for question, one in rows if question.subject is None]
        figures[language] = {
            "questions": len(there),
            "recall_at_1": _share(one.subject == question.subject for question, one in there),
            "answered": _share(one.said for _, one in there),
            "right": _share(one.said and one.subject == question.subject for question, one in there),
            "absent": len(absent),
            "false": _share(one.said for one in absent),
        }
    figures["ms"] = percentiles([one.ms for one in found])
    figures["cpu_ms"] = percentiles([one.cpu_ms for one in found])
    figures["missed"] = [
        {"question": question.text, "wanted": question.subject, "found": one.subject, "said": one.said}
        for question, one in zip(asked, found, strict=True)
        if (one.said if question.subject is None else not one.said or one.subject != question.subject)
    ]
    return figures


def _share(values: Any) -> float:
    counted = [bool(value) for value in values]
    return sum(counted) / len(counted) if counted else 0.0


def turns(asked: Sequence[Question], manual: Manual, store: Store) -> dict[str, Any]:
    """What a whole turn makes of the questions: the right section, another, "not in the manual", free talk, a call."""
    parser = factory.PARSERS["parser"](store.built("command-parser"), None)
    dialogue = DialogueManager.create(parser=parser, manual=manual)
    heading = {
        (section.id, section.language): section.heading for section in (manual.index.sections if manual.index else ())
    }
    counts: dict[str, Counter[str]] = {"in the manual": Counter(), "not in the manual": Counter()}
    times = []
    changed = []
    for question in asked:
        start_s = time.perf_counter()
        plan = dialogue.plan(question.text, question.language)
        times.append((time.perf_counter() - start_s) * 1e3)
        if plan.from_manual is not None:
            section = plan.from_manual.section
            right = question.subject is not None and section == heading[question.subject, question.language]
            what = "right section" if right else "another section" if section else "not in the manual"
        elif plan.chat:
            what = "talk"
        else:
            names = [call.name for call in plan.calls]
            writes = [name for name in names if name not in ("refuse", "ask_vehicle", "ask_distance")]
            what = "changes something" if writes else "refused" if "refuse" in names else "state"
            if writes:
                changed.append({"question": question.text, "calls": names})
        counts["in the manual" if question.subject else "not in the manual"][what] += 1
    return {"counts": {name: dict(of) for name, of in counts.items()}, "changes": changed, "ms": percentiles(times)}


def main(arguments: Sequence[str] | None = None) -> int:
    parser = command_line(__name__, __doc__)
    parser.add_argument("--part", choices=("test", "dev"), default="test")
    parser.add_argument("--file", type=Path, default=SHIPPED)
    parser.add_argument("--turns", action="store_true")
    parser.add_argument("--show", type=int, default=0, metavar="N", help="list N questions that went wrong")
    options = parser.parse_args(arguments)
    store = Store.open()
    encoder: Future[SentenceEncoder] = Future()
    encoder.set_result(factory.ENCODERS[ENCODER](store.built(ENCODER), None))
    index = index_of(options.file, store.root / "manual", encoder_key(store.registry, ENCODER), encoder)
    manual, asked = Manual(index.sections, index, encoder), questions(options.part)
    ways: dict[str, Search] = {
        "names, then encoder": product(manual),
        "encoder alone": encoder_alone(manual),
        "names alone": names_alone(manual),
        "BM25": bm25(index.sections),
        "rapidfuzz": fuzzy(index.sections),
    }
    for question in asked[:3]:  # the first run of a session is slower
        product(manual)(question.text, question.language)
    report: dict[str, Any] = {"part": options.part, "load": os.getloadavg()[0], "vectors": len(index.vectors)}
    report["ways"] = {name: measure(asked, search) for name, search in ways.items()}
    if options.turns:
        report["turns"] = turns(asked, manual, store)
    if options.json:
        print(json.dumps(report, ensure_ascii=False, indent=1))
    else:
        _show(report, options.show)
    return 0


def _show(report: dict[str, Any], wrong: int) -> None:
    console = Console()
    table = Table(title=f"{report['part']}: {report['vectors']} vectors, load {report['load']:.1f}")
    columns = (
        "way",
        "language",
        "questions",
        "recall@1",
        "answered",
        "right",
        "absent",
        "false",
        "ms P50",
        "P99",
        "CPU ms P50",
    )
    for column in columns:
        table.add_column(column, justify="left" if column in ("way", "language") else "right")
    for name, figures in report["ways"].items():
        for language in ("en", "zh", "both"):
            row = figures[language]
            shares = [f"{row[key]:.1%}" for key in ("recall_at_1", "answered", "right")]
            times = [f"{figures[what][key]:.1f}" for what, key in (("ms", "p50"), ("ms", "p99"), ("cpu_ms", "p50"))]
            times = times if language == "both" else [""] * 3
            table.add_row(
                name, language, str(row["questions"]), *shares, str(row["absent"]), f"{row['false']:.1%}", *times
            )
    console.print(table)
    for miss in report["ways"]["names, then encoder"]["missed"][:wrong]:
        console.print(miss, soft_wrap=True)
    if "turns" in report:
        console.print(report["turns"])
