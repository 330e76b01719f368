"""The owner's manual as a turn asks it: by the names of its subjects, then by meaning; what is said quotes the section.

The manual's own text is the answer, word for word. Told the same fact in its prompt, Qwen2.5-Coder-0.5B spoiled 10
of 20 English and 4 of 20 Mandarin answers ("ABS stands for Automatic Brake System", one pedal "to accelerate and the
other to brake") and left out safety advice in more; each took 0.3 to 1 s that the text itself does not.
"""

from __future__ import annotations

import hashlib
from collections.abc import Sequence
from concurrent.futures import Future
from dataclasses import dataclass
from functools import cache
from pathlib import Path
from typing import TYPE_CHECKING

from pipeline.frames import Language
from pipeline.manual.file import Section, read_manual
from pipeline.manual.index import Hit, ManualIndex
from pipeline.manual.names import Entry, Found, Names, small_talk, title_of

if TYPE_CHECKING:
    from models.engines.sentence_encoder import SentenceEncoder

SHIPPED = Path(__file__).with_name("owner_manual.md")
SHIPPED_INDEX = SHIPPED.with_suffix(".npz")
"""The vectors of the one that ships, made by `cockpit manual build`."""
MOST_SPOKEN: dict[Language, int] = {"en": 320, "zh": 110}
"""Characters of a section's text that are read aloud: about 20 s."""
MOST_ASKED = 200
"""Characters of a question that are read."""
_QUOTED: dict[Language, str] = {"en": 'From the manual, "{}": {}', "zh": "手册“{}”一节说：{}"}
_ABSENT: dict[Language, str] = {"en": "That is not in the manual.", "zh": "手册里没有。"}


@dataclass(frozen=True, slots=True)
class Thresholds:
    """Likeness from which a section answers. how_to: a question how something is done or what it is; talk: any other
    question; trouble: what is told and not asked, answered by a section of a trouble only. Chosen on the dev questions
    (docs/results/manual-cpu.md); Mandarin sentences lie closer together than English ones."""

    how_to: float
    talk: float
    trouble: float


THRESHOLDS: dict[Language, Thresholds] = {"en": Thresholds(0.46, 0.53, 0.6), "zh": Thresholds(0.48, 0.55, 0.62)}


@dataclass(frozen=True, slots=True)
class ManualAnswer:
    """What the manual says to an utterance. section: its heading, empty for small talk and where the manual says
    nothing. likeness: None where a name was found. text: the utterance, with a misheard name mended.
    """

    said: str
    text: str
    section: str = ""
    likeness: float | None = None


class Manual:
    """One manual. `by_meaning` is for one thread, the rest for any.

    Subjects come from its sections, small talk from the product. With `index` and `encoder` (a future, so that it may
    load meanwhile) questions are also answered by meaning; without them only where they name a subject.
    """

    def __init__(
        self,
        sections: Sequence[Section],
        index: ManualIndex | None = None,
        encoder: Future[SentenceEncoder] | None = None,
    ) -> None:
        self.names = Names((*_entries(sections), *small_talk()))
        self.index = index
        self._encoder = encoder

    @property
    def entries(self) -> tuple[Entry, ...]:
        return self.names.entries

    @property
    def knows_meaning(self) -> bool:
        """Whether questions are answered by meaning, so that what is not found is not there."""
        return self.index is not None and self._encoder is not None

    def find(self, text: str, language: Language) -> Found | None:
        """The subject that `text` names, if there is a section of it in `language`."""
        found = self.names.find(text)
        return found if found is not None and language in found.entry.say else None

    def answer(self, found: Found, language: Language) -> ManualAnswer:
        """What is said about a subject that was named."""
        said, heading = found.entry.say[language], found.entry.headings.get(language, "")
        return ManualAnswer(_QUOTED[language].format(heading, said) if heading else said, found.text, heading)

    def by_meaning(self, text: str, language: Language, *, how_to: bool, question: bool) -> ManualAnswer | None:
        """The section whose names mean the same as `text`; None where none is near enough. Takes about 10 ms of one
        core. Waits for the encoder where it still loads, and raises what its loading raised.

        how_to: it is sure to ask how something is done. question: it asks, whatever for.
        """
        hit = self.nearest(text, language)
        if hit is None:
            return None
        limits = THRESHOLDS[language]
        least = limits.how_to if how_to else limits.talk if question else limits.trouble
        if hit.likeness < least or not (how_to or question or hit.section.trouble):
            return None
        section = hit.section
        return ManualAnswer(quoted(section, hit.passage), text, section.heading, hit.likeness)

    def nearest(self, text: str, language: Language) -> Hit | None:
        """The section whose names mean most the same, however far it is; None without sections in the language."""
        if self.index is None or self._encoder is None:
            return None
        hits = self.index.search(self._encoder.result().embed([text[:MOST_ASKED]])[0], language)
        return hits[0] if hits else None

    def absent(self, text: str, language: Language) -> ManualAnswer:
        """What is said to a question that the manual does not answer."""
        return ManualAnswer(_ABSENT[language], text)


def quoted(section: Section, first: int = 0) -> str:
    """What is said of a section: its heading and its text from the passage `first` on, as far as one listens to."""
    return _QUOTED[section.language].format(section.heading, _told(section, first))


def _told(section: Section, first: int = 0) -> str:
    """Whole passages, at least one, up to MOST_SPOKEN characters."""
    told = section.passages[first]
    for passage in section.passages[first + 1 :]:
        longer = told + ("" if section.language == "zh" else " ") + passage
        if len(longer) > MOST_SPOKEN[section.language]:
            break
        told = longer
    return told


def _entries(sections: Sequence[Section]) -> list[Entry]:
    """The sections by subject."""
    by_id: dict[str, list[Section]] = {}
    for section in sections:
        by_id.setdefault(section.id, []).append(section)
    return [
        Entry(
            name,
            tuple(dict.fromkeys(title_of(title) for section in of for title in section.names)),
            {section.language: _told(section) for section in of},
            {section.language: section.heading for section in of},
            any(section.trouble for section in of),
        )
        for name, of in by_id.items()
    ]


@cache
def shipped_manual() -> Manual:
    """The manual that ships, by the names of its subjects only."""
    index = ManualIndex.load(SHIPPED_INDEX)
    fresh = index.source == hashlib.sha256(SHIPPED.read_bytes()).hexdigest()
    return Manual(index.sections if fresh else read_manual(SHIPPED))
