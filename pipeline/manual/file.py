"""The manual's file: Markdown (CommonMark), read whole and checked.

A heading with text below it is a section; one with nothing but further headings is a chapter. `{#id}` at the end of a
heading joins the English and the Mandarin section of one subject, `.trouble` marks one that no command looks like. A
first paragraph that begins with "Asked as:" or 问法： holds further names and questions, separated by semicolons. The
rest is what is said: every paragraph and every list is one passage. What cannot be read aloud (tables, code, HTML
other than comments, pictures) is a fault.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Sequence
from dataclasses import dataclass, field
from pathlib import Path

from markdown_it import MarkdownIt
from markdown_it.token import Token

from models.errors import InputError
from pipeline.frames import Language
from pipeline.nlu.phonetics import is_cjk, tokens_of

MOST_BYTES = 4 << 20
MOST_SECTIONS = 4_000
MOST_NAME = 120
"""Characters of a heading or of one question."""
_SHOWN_FAULTS = 5
_ASKED_AS = re.compile(r"(?:asked as|问法)\s*[:：]\s*", re.IGNORECASE)
_ATTRIBUTES = re.compile(r"\s*\{([^{}]*)\}\s*$")
_ATTRIBUTE = re.compile(r"#(?P<id>[A-Za-z][\w-]*)|\.(?P<trouble>trouble)")
_COMMENT = re.compile(r"\s*(?:<!--.*?-->\s*)+", re.DOTALL)
_UNSPEAKABLE = {
    "table_open": "a table",
    "fence": "code",
    "code_block": "code (or text indented by four spaces)",
    "html_block": "HTML",
    "html_inline": "HTML",
    "image": "a picture",
}


@dataclass(frozen=True, slots=True)
class Section:
    """One section in one language. id: shared by the sections of one subject; names: the heading, then what else it is
    asked by; passages: texts to be spoken, in order; line: of the heading, from 1. trouble: no command looks like it.
    """

    id: str
    language: Language
    names: tuple[str, ...]
    passages: tuple[str, ...]
    line: int
    trouble: bool = False

    @property
    def heading(self) -> str:
        return self.names[0]


def read_manual(file: Path) -> list[Section]:
    """Every section of `file`, in order.

    Raises InputError for a file that cannot be read and for one that is malformed: the first faults are named by line,
    and nothing is taken from such a file.
    """
    try:
        if file.stat().st_size > MOST_BYTES:
            raise InputError(f"{file}: larger than {MOST_BYTES >> 20} MiB: a manual is text")
        text = file.read_text("utf-8-sig")
    except (OSError, UnicodeDecodeError) as error:
        raise InputError(f"{file}: cannot be read as a manual ({error}): see docs/manual.md") from error
    return sections_of(text, str(file))


def sections_of(text: str, name: str) -> list[Section]:
    """The sections of a manual's text; name: of the file, for messages. Raises InputError, see `read_manual`."""
    drafts, faults = _drafts(text)
    sections: list[Section] = []
    seen: dict[tuple[str, Language], int] = {}
    for number, draft in enumerate(drafts):
        if not draft.paragraphs:
            below = drafts[number + 1].level if number + 1 < len(drafts) else 0
            if below <= draft.level and not draft.unspeakable:
                faults.append((draft.line, f"section {draft.heading!r} says nothing: write text below its heading"))
            continue
        made = _section(draft)
        if isinstance(made, str):
            faults.append((draft.line, made))
            continue
        before = seen.setdefault((made.id, made.language), made.line)
        if before != made.line:
            faults.append(
                (made.line, f"{made.id!r} stands twice in this language (line {before}): give one another {{#id}}")
            )
        sections.append(made)
    if faults:
        faults.sort()
        shown = "\n".join(f"{name}:{line}: {fault}" for line, fault in faults[:_SHOWN_FAULTS])
        more = f"\n... and {len(faults) - _SHOWN_FAULTS} more" if len(faults) > _SHOWN_FAULTS else ""
        raise InputError(shown + more)
    if not sections:
        raise InputError(f"{name}: holds no section: a heading (## ...) with text below it is one, see docs/manual.md")
    if len(sections) > MOST_SECTIONS:
        raise InputError(f"{name}: more than {MOST_SECTIONS} sections")
    return sections


@dataclass(slots=True)
class _Draft:
    level: int
    line: int
    heading: str
    attributes: str
    paragraphs: list[str] = field(default_factory=list)
    unspeakable: bool = False


def _drafts(text: str) -> tuple[list[_Draft], list[tuple[int, str]]]:
    """Headings with what stands below them, and what is wrong by line."""
    drafts: list[_Draft] = []
    faults: list[tuple[int, str]] = []
    tokens = MarkdownIt("commonmark").enable("table").parse(text)
    for token, content in _blocks(tokens):
        line = (token.map or [0])[0] + 1
        fault = _unspeakable(token, content)
        if fault is not None:
            faults.append((line, f"{fault} cannot be read aloud: write it as sentences"))
            if drafts:
                drafts[-1].unspeakable = True
        elif token.type == "heading_open":
            attributes = _ATTRIBUTES.search(content[0])
            heading = _ATTRIBUTES.sub("", content[0])
            drafts.append(_Draft(int(token.tag[1]), line, heading, attributes[1] if attributes else ""))
        elif content and not drafts:
            faults.append((line, "text before the first heading belongs to no section (a header of --- is not read)"))
        elif content:
            drafts[-1].paragraphs.append(_joined(content))
    return drafts, faults


def _blocks(tokens: Sequence[Token]) -> Iterator[tuple[Token, list[str]]]:
    """Each heading, paragraph and list (whole) with its texts; other blocks with what they hold, or nothing."""
    at = 0
    while at < len(tokens):
        token = tokens[at]
        end = at
        if token.nesting == 1:
            while tokens[end].level > token.level or tokens[end].nesting != -1:
                end += 1
        inside = tokens[at : end + 1]
        bad = next((one for one in _with_children(inside) if _is_unspeakable(one)), None)
        texts = [_plain(one) for one in inside if one.type == "inline"]
        yield (token if bad is None else _placed(bad, token)), [one for one in texts if one]
        at = end + 1


def _with_children(tokens: Sequence[Token]) -> Iterator[Token]:
    for token in tokens:
        yield token
        yield from token.children or ()


def _placed(bad: Token, block: Token) -> Token:
    """`bad` with the lines of its block, where it has none of its own."""
    bad.map = bad.map or block.map
    return bad


def _is_unspeakable(token: Token) -> bool:
    if token.type not in _UNSPEAKABLE:
        return False
    return not (token.type in ("html_block", "html_inline") and _COMMENT.fullmatch(token.content))


def _unspeakable(token: Token, content: list[str]) -> str | None:
    return _UNSPEAKABLE[token.type] if _is_unspeakable(token) else None


def _plain(inline: Token) -> str:
    """The text without marks: emphasis, links and code keep their words."""
    parts = []
    for child in inline.children or ():
        if child.type in ("text", "code_inline"):
            parts.append(child.content)
        elif child.type in ("softbreak", "hardbreak"):
            parts.append("\n")
    lines = [" ".join(line.split()) for line in "".join(parts).split("\n")]
    joined = ""
    for line in filter(None, lines):
        chinese = joined and (is_cjk(joined[-1]) or joined[-1] in "，。！？；：、") and not line[0].isascii()
        gap = "" if not joined or chinese else " "
        joined += gap + line
    return joined


def _joined(texts: list[str]) -> str:
    """The items of a list as sentences; a paragraph as it is."""
    if len(texts) == 1:
        return texts[0]
    zh = _language("".join(texts)) == "zh"
    ended = [text if text[-1] in ".!?:。！？：" else text.rstrip(",;，；") + ("。" if zh else ".") for text in texts]
    return ("" if zh else " ").join(ended)


def _language(text: str) -> Language:
    return "zh" if any(map(is_cjk, text)) else "en"


def _section(draft: _Draft) -> Section | str:
    """The section, or what is wrong with it."""
    given = _ATTRIBUTE.sub("", draft.attributes).split()
    if given:
        return (
            f"{{{draft.attributes}}} is not understood: {{#id}} or {{#id .trouble}}, an id of letters, digits, _ and -"
        )
    first, *rest = draft.paragraphs
    asked = _ASKED_AS.match(first)
    others = [] if asked is None else [name.strip() for name in re.split(r"[;；]", first[asked.end() :].rstrip(".。"))]
    if asked is not None and not any(others):
        return "the line of questions is empty: write them after the colon, separated by semicolons, or leave it out"
    passages = draft.paragraphs if asked is None else rest
    if not passages:
        return f"section {draft.heading!r} holds questions, but says nothing: write text below them"
    if any(_ASKED_AS.match(passage) for passage in passages):
        return "the line of questions stands once, first below the heading"
    names = tuple(dict.fromkeys(name for name in (draft.heading, *others) if name))
    for name in names:
        if len(name) > MOST_NAME:
            return f"{name[:40]!r}... is longer than {MOST_NAME} characters"
        if not tokens_of(name):
            return f"{name!r} holds no word"
    found = list(_ATTRIBUTE.finditer(draft.attributes))
    ids = [match["id"] for match in found if match["id"]]
    own = ids[0] if ids else "-".join(token.text for token in tokens_of(draft.heading))
    # A heading may be a name in Latin letters in both languages ("ABS"): what is said tells which one it is.
    return Section(own, _language(passages[0]), names, tuple(passages), draft.line, any(m["trouble"] for m in found))
