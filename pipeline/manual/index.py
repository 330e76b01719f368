"""The sections of a manual with the vectors of their names, as they are kept in a file (`.npz`) once they are made.

A question is compared with every name of every section in its language: the cosine of their vectors, both taken from
the mean vector of such texts. (All vectors of multilingual-e5 lie close together: without this a question has a cosine
of 0.8 and more with everything.) A section without other names than its heading is found by what it says, too.
"""

from __future__ import annotations

import json
import zipfile
from collections.abc import Callable, Sequence
from dataclasses import asdict, dataclass
from pathlib import Path
from typing import Any, get_args

import numpy as np
from numpy.typing import NDArray

from models.errors import InputError
from pipeline.frames import Language
from pipeline.manual.file import Section

F32 = NDArray[np.float32]
LANGUAGES: tuple[Language, ...] = get_args(Language)
Embed = Callable[[Sequence[str]], F32]
"""Texts to (n, width) float32 of length 1: `models.engines.sentence_encoder.SentenceEncoder.embed`, as queries: names
of three words are found better so than as passages."""
FORM = 1
"""Of the kept file; another number is another form."""
FEW_NAMES = 3
"""A section with fewer names than this is found by its passages, too."""


@dataclass(frozen=True, slots=True)
class Hit:
    """A section for a question. likeness: cosine to the nearest of its names, or of its passages, in [-1, 1]. passage:
    the number of the one that was nearest, 0 for a name."""

    section: Section
    likeness: float
    passage: int = 0


@dataclass(frozen=True, slots=True)
class ManualIndex:
    """Read only; any thread may use it. source: sha256 of the manual's file; encoder: of the model (see
    `kept.encoder_key`); owners (n,): the section of each vector; passages (n,): the number of the passage, 0
    for a name; vectors (n, width): of length 1, from their centre; centre: language -> (width,).
    """

    sections: tuple[Section, ...]
    source: str
    encoder: str
    owners: NDArray[np.int32]
    passages: NDArray[np.int32]
    vectors: F32
    centre: dict[Language, F32]

    @classmethod
    def build(
        cls,
        sections: Sequence[Section],
        embed: Embed,
        *,
        source: str,
        encoder: str,
        centre: dict[Language, F32] | None = None,
    ) -> ManualIndex:
        """centre: of another index by the same encoder; None: the mean of these sections' own names."""
        names = [(number, name) for number, section in enumerate(sections) for name in section.names]
        passages = [
            (number, at, f"{section.heading}. {passage}")
            for number, section in enumerate(sections)
            if len(section.names) < FEW_NAMES
            for at, passage in enumerate(section.passages)
        ]
        rows = embed([name for _, name in names])
        if centre is None:
            of = np.array([sections[number].language for number, _ in names])
            centre = {language: rows[of == language].mean(axis=0) for language in LANGUAGES}
        if passages:
            rows = np.concatenate((rows, embed([passage for *_, passage in passages])))
        owners = np.array([number for number, *_ in (*names, *passages)], np.int32)
        at = np.array([*(0 for _ in names), *(number for _, number, _ in passages)], np.int32)
        vectors = np.stack(
            [_from_centre(row, centre[sections[owner].language]) for row, owner in zip(rows, owners, strict=True)]
        )
        return cls(tuple(sections), source, encoder, owners, at, vectors, centre)

    def search(self, question: F32, language: Language, count: int = 1) -> list[Hit]:
        """The nearest sections in `language`, the best first. question: (width,), embedded as a "query"."""
        likeness = self.vectors @ _from_centre(question, self.centre[language])
        hits: dict[int, Hit] = {}
        for row in np.argsort(-likeness, kind="stable").tolist():
            owner = int(self.owners[row])
            if owner not in hits and self.sections[owner].language == language:
                hits[owner] = Hit(self.sections[owner], float(likeness[row]), int(self.passages[row]))
                if len(hits) == count:
                    break
        return list(hits.values())

    def save(self, file: Path) -> None:
        """Keep it in `file`, whole or not at all: vectors as 8-bit numbers with a scale each. Raises OSError."""
        scales = np.abs(self.vectors).max(axis=1) / 127
        meta = {
            "form": FORM,
            "source": self.source,
            "encoder": self.encoder,
            "sections": [asdict(section) for section in self.sections],
        }
        file.parent.mkdir(parents=True, exist_ok=True)
        draft = file.with_name(f".{file.name}.part")
        with draft.open("wb") as stream:
            np.savez_compressed(
                stream,
                meta=np.frombuffer(json.dumps(meta, ensure_ascii=False).encode(), np.uint8),
                owners=self.owners,
                passages=self.passages,
                codes=np.rint(self.vectors / scales[:, None]).astype(np.int8),
                scales=scales.astype(np.float32),
                centre=np.stack([self.centre[language] for language in LANGUAGES]),
            )
        draft.replace(file)

    @classmethod
    def load(cls, file: Path) -> ManualIndex:
        """Read a kept file. Raises InputError for one that is missing, damaged or of another form."""
        try:
            with file.open("rb") as stream, np.load(stream, allow_pickle=False) as kept:
                meta: dict[str, Any] = json.loads(kept["meta"].tobytes())
                if meta["form"] != FORM:
                    raise InputError(f"{file} was built by another version; run: cockpit manual build")
                sections = tuple(_section(values) for values in meta["sections"])
                vectors = kept["codes"].astype(np.float32) * kept["scales"][:, None]
                centre = dict(zip(LANGUAGES, kept["centre"].astype(np.float32), strict=True))
                owners, passages = kept["owners"].astype(np.int32), kept["passages"].astype(np.int32)
            if not len(owners) == len(passages) == len(vectors) or not 0 <= owners.min() <= owners.max() < len(
                sections
            ):
                raise ValueError("sections and vectors do not belong together")
        except (OSError, KeyError, ValueError, TypeError, EOFError, zipfile.BadZipFile) as error:
            raise InputError(f"{file} cannot be read as a built manual ({error}); run: cockpit manual build") from error
        return cls(sections, str(meta["source"]), str(meta["encoder"]), owners, passages, vectors, centre)


def _section(values: dict[str, Any]) -> Section:
    return Section(**{**values, "names": tuple(values["names"]), "passages": tuple(values["passages"])})


def _from_centre(vector: F32, centre: F32) -> F32:
    away = vector - centre
    length = float(np.linalg.norm(away))
    result: F32 = away / length if length > 0 else away
    return result
