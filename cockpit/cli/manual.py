"""`cockpit manual`: check and build an owner's manual, and try what a question finds in it."""

from __future__ import annotations

import re
import time
from concurrent.futures import Future
from pathlib import Path
from typing import Annotated, Any, Literal

import typer

from cockpit.cli.output import JsonFlag, print_json
from cockpit.cli.values import language_values
from models.engines import factory
from models.engines.sentence_encoder import SentenceEncoder
from models.errors import InputError
from models.store.store import Store
from pipeline.frames import Language
from pipeline.manual.file import Section, read_manual
from pipeline.manual.index import ManualIndex
from pipeline.manual.kept import build_index, encoder_key, index_of
from pipeline.manual.manual import MOST_SPOKEN, SHIPPED, THRESHOLDS, Manual, quoted

ENCODER = "sentence-encoder"
app = typer.Typer(
    help="Check and build an owner's manual (Markdown), and try what a question finds in it.",
    no_args_is_help=True,
    rich_markup_mode=None,
)
ManualFile = Annotated[Path, typer.Argument(metavar="FILE.md", help="A Markdown file: see docs/manual.md.")]


@app.command()
def check(file: ManualFile, json: JsonFlag = False) -> None:
    """Whether a file is a manual, how much it holds, and what will be cut when it is read aloud."""
    sections = read_manual(file)
    notes = [f"{file}:{section.line}: {note}" for section in sections for note in _notes(section)]
    subjects = {section.id for section in sections}
    by_language = {name: sum(section.language == name for section in sections) for name in ("en", "zh")}
    if json:
        print_json({"file": file, "subjects": len(subjects), "sections": by_language, "notes": notes})
        return
    for note in notes:
        typer.echo(note)
    typer.echo(
        f"{file}: {len(subjects)} subjects, {by_language['en']} sections in English, {by_language['zh']} in Mandarin"
    )


@app.command()
def build(
    file: ManualFile,
    out: Annotated[
        Path | None, typer.Option("--out", help="Where to; beside the file by default, where a start finds it.")
    ] = None,
    json: JsonFlag = False,
) -> None:
    """Check a manual and make the vectors of its sections, so that the next start with it is fast (500 names: 5 s)."""
    start_s = time.perf_counter()
    store = Store.open()
    index = build_index(file, encoder_key(store.registry, ENCODER), _encoder(store))
    kept = out or file.with_suffix(".npz")
    try:
        index.save(kept)
    except OSError as error:
        raise InputError(f"{kept} cannot be written ({error.strerror}): name another place by --out") from error
    took_s = time.perf_counter() - start_s
    if json:
        print_json(
            {"file": file, "built": kept, "sections": len(index.sections), "vectors": len(index.vectors), "s": took_s}
        )
    else:
        typer.echo(f"{len(index.sections)} sections of {file} in {took_s:.1f} s: {kept}")


@app.command()
def ask(
    question: Annotated[str, typer.Argument(help="A question, as it is said.")],
    file: Annotated[
        Path | None, typer.Option("--file", help="A manual (.md, or built: .npz); the one that ships by default.")
    ] = None,
    language: Annotated[
        Literal["auto", "en", "zh"],
        typer.Option("--language", help="Of the question.", autocompletion=language_values),
    ] = "auto",
    json: JsonFlag = False,
) -> None:
    """What a question finds: the section, its score, and what is said. A turn is answered so where it is sure to ask
    how something is done; see docs/manual.md."""
    said: Language = ("zh" if re.search("[㐀-鿿]", question) else "en") if language == "auto" else language
    store = Store.open()
    encoder: Future[SentenceEncoder] = Future()
    encoder.set_result(_encoder(store))
    index = index_of(file or SHIPPED, store.root / "manual", encoder_key(store.registry, ENCODER), encoder)
    start_s = time.perf_counter()
    result = ask_manual(index, encoder, question, said)
    result["ms"] = round((time.perf_counter() - start_s) * 1e3, 2)
    if json:
        print_json(result)
        return
    typer.echo(result["answer"])
    others = ", ".join(f"{near['section']} {near['score']:.2f}" for near in result["nearest"])
    score = "by its name" if result["by"] == "name" else f"score {result['score']:.2f}, needed {result['needed']:.2f}"
    typer.echo(f"({score}; {result['ms']:.0f} ms; nearest: {others})")


def ask_manual(
    index: ManualIndex, encoder: Future[SentenceEncoder], question: str, language: Language
) -> dict[str, Any]:
    """The answer as `ask --json` prints it. by: "name", "meaning", or null where the manual says nothing of it."""
    manual = Manual(index.sections, index, encoder)
    found = manual.find(question, language)
    hits = index.search(encoder.result().embed([question])[0], language, 3)
    least = THRESHOLDS[language].how_to
    if found is not None:
        answer = manual.answer(found, language)
    elif hits and hits[0].likeness >= least:
        answer = manual.by_meaning(question, language, how_to=True, question=True) or manual.absent(question, language)
    else:
        answer = manual.absent(question, language)
    best = hits[0].likeness if hits else None
    return {
        "question": question,
        "language": language,
        "section": answer.section or None,
        "by": "name" if found is not None else "meaning" if answer.section else None,
        "score": None if best is None else round(best, 3),
        "needed": least,
        "answer": answer.said,
        "nearest": [{"section": hit.section.heading, "score": round(hit.likeness, 3)} for hit in hits],
    }


def _encoder(store: Store) -> SentenceEncoder:
    return factory.ENCODERS[ENCODER](store.built(ENCODER), None)


def _notes(section: Section) -> list[str]:
    """What the author may want to change: nothing of it is a fault."""
    notes = []
    if len(section.passages[0]) > MOST_SPOKEN[section.language]:
        notes.append(f"{len(section.passages[0])} characters are long to listen to: begin with a shorter paragraph")
    elif len(quoted(section)) < sum(map(len, section.passages)):
        notes.append("more text than is read aloud at once: the first paragraphs are")
    if len(section.names) == 1:
        notes.append('no further names or questions: a line "Asked as: ..." makes it found more often')
    return notes
