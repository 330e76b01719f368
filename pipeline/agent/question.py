"""Which questions need information, and what the person's own words let a call say.

Arguments come from here, from closed lists and from numbers under which places were found: never from a result's text.
"""

from __future__ import annotations

import re
from collections.abc import Iterator, Mapping
from dataclasses import dataclass
from typing import Any

from pipeline.agent.car_tools import CAR_TOOLS, HERE, VEHICLE_ITEMS
from pipeline.agent.tools import AgentTool, Toolset
from pipeline.frames import Language
from pipeline.nlu.evidence import Evidence, evidence_of, match_names
from pipeline.nlu.intents.questions import asked
from pipeline.nlu.lexicon import Lexicon
from pipeline.nlu.phonetics import is_cjk, tokens_of
from pipeline.vehicle.places import Places

_GO = re.compile(
    r"\b(?:take (?:me|us)|navigate|drive me|bring me|route|directions|guide me|go to|head to|let's go)\b"
    r"|带我|导航|导[过去到]|[过]去$|开[去到往]|前往|我[要想]去",
    re.IGNORECASE,
)
"""A trip is asked for: the parse decides."""
_LISTS = re.compile(
    r"\b(?:what|which|any|list|how many)\b|\b(?:are|is) there\b|\bshow me (?:all|the|some)\b"
    r"|\btell me (?:how far|where)\b"
    r"|有什么|有哪些|哪[个家些座]|几[个家座]|列出|有没有|有.{1,8}吗",
    re.IGNORECASE,
)
_NEAR_BEFORE = re.compile(
    r"\b(?:near|around|close to|next to|nearest (?:one )?to|closest (?:one )?to|nearest|beside|by|at)\s+"
    r"(?:the |my |our |a |an )?$"
    r"|[离靠]近?$",
    re.IGNORECASE,
)
_NEAR_AFTER = re.compile(r"\s*(?:的)?(?:附近|旁边|周围|周边|那边|那儿)")
_LOOKS = re.compile(r"\b(?:find|search|looking|look for|need|where)\b|找|搜|需要|哪里|[?？]$", re.IGNORECASE)
_CHARGE = re.compile(
    r"\b(?:battery|range|charge|charged|power|make it|reach|get (?:to|there))\b"
    r"|电量|续航|电池|够不够|够吗|能到|开到|开得到|能不能",
    re.IGNORECASE,
)
_REACH = re.compile(
    r"\b(?:enough|make it|reach|get (?:to|there)|without charging)\b|够|能到|开得到|能不能.{0,4}(?:到|开)|到得了",
    re.IGNORECASE,
)
_FAR = re.compile(r"\b(?:far|distance|how close|closer|nearer|kilometers?|km)\b|远|近|距离|公里", re.IGNORECASE)
_ITEMS: Mapping[str, re.Pattern[str]] = {
    "speed": re.compile(r"\b(?:speed|fast)\b|车速|速度", re.IGNORECASE),
    "outside_temperature": re.compile(r"\boutside\b|外面|车外|室外", re.IGNORECASE),
    "inside_temperature": re.compile(r"\b(?:inside|cabin)\b|车内|车里", re.IGNORECASE),
    "tyre_pressure": re.compile(r"\bty?i?res?\b|\bpressure\b|胎压|轮胎", re.IGNORECASE),
    "odometer": re.compile(r"\b(?:odometer|mileage)\b|里程", re.IGNORECASE),
    "destination": re.compile(r"\b(?:destination|arrive)\b|目的地", re.IGNORECASE),
    "time": re.compile(r"\b(?:time|clock)\b|几点|时间", re.IGNORECASE),
    "date": re.compile(r"\b(?:date|day)\b|几号|日期|星期几", re.IGNORECASE),
}
_BEFORE = re.compile(r"\b(?:it|there|that|them|those|one|first|second|third|last)\b|它|那|第|前面|刚才", re.IGNORECASE)
"""A place named in an earlier turn may be meant."""
_LONGEST_SPAN = {"en": 6, "zh": 10}
_MOST_SPANS = 160


@dataclass(frozen=True, slots=True)
class InfoQuestion:
    """A turn that tools may answer. kinds, places: keys that the words name. offered: name -> the JSON Schema of the
    arguments that this turn allows, places found before included. compared: places that are asked about together: a
    call about one of them is made about each.
    """

    text: str
    language: Language
    kinds: tuple[str, ...]
    places: tuple[str, ...]
    offered: Mapping[str, Mapping[str, Any]]
    compared: tuple[str, ...] = ()


def question_of(
    text: str, language: Language, lexicon: Lexicon, places: Places, tools: Toolset, refs: tuple[str, ...] = ()
) -> InfoQuestion | None:
    """The question, None where no tool could tell anything. refs: "#1" ... for places named in earlier turns."""
    said = _Said.of(text, language, lexicon, places)
    schemas = {tool.name: _allowed(tool, said, refs) for tool in tools}
    offered = {name: schema for name, schema in schemas.items() if schema is not None}
    compared = said.places if len(said.places) > 1 and "find_places" not in offered else ()
    return InfoQuestion(text, language, said.kinds, said.places, offered, compared) if offered else None


def lists_places(question: InfoQuestion) -> bool:
    """Whether the words ask which places there are, and ask for no trip: such a question starts none."""
    return "find_places" in question.offered and not _GO.search(question.text)


@dataclass(frozen=True, slots=True)
class _Said:
    """Kinds and places that the words name, in order. near: the one that others are to be near, None for the car.
    asks: something is asked or looked for; what is only told needs no information.
    """

    text: str
    kinds: tuple[str, ...]
    places: tuple[str, ...]
    near: str | None
    asks: bool

    @classmethod
    def of(cls, text: str, language: Language, lexicon: Lexicon, places: Places) -> _Said:
        evidence = evidence_of(text, lexicon, language)
        spans = _mentions(text, evidence, places)
        near = next((span for span in spans if _stands_near(text, span)), None) if len(spans) > 1 else None
        others = [span for span in spans if span is not near]
        kinds = [key for span in others for key in span.kinds[:1]]
        named = [span.place for span in spans if span.place is not None]
        key = None if near is None else near.place or near.kinds[0]
        asks = asked(evidence).is_question or any(words.search(text) for words in (_LISTS, _LOOKS, _REACH))
        return cls(text, tuple(dict.fromkeys(kinds)), tuple(dict.fromkeys(named)), key, asks)


@dataclass(frozen=True, slots=True)
class _Mention:
    """Characters [start, end) name a kind of place, or a place, or either."""

    start: int
    end: int
    kinds: tuple[str, ...]
    place: str | None


def _mentions(text: str, evidence: Evidence, places: Places) -> list[_Mention]:
    """In the order of the text; of two that overlap the longer one. Plurals count, which the lexicon does not hold."""
    found: list[_Mention] = []
    for match in evidence.matches:
        kinds, named = match_names(match, "kind"), match_names(match, "place")
        if kinds or len(named) == 1:
            start, end = evidence.tokens[match.start].start, evidence.tokens[match.end - 1].end
            found.append(_Mention(start, end, tuple(kinds), named[0] if len(named) == 1 else None))
    for tag, phrases in places.phrases().items():
        group, _, key = tag.partition(".")
        for phrase in phrases:
            pattern = rf"\b{re.escape(phrase)}(?:s|es)?\b" if phrase.isascii() else re.escape(phrase)
            for hit in re.finditer(pattern, text, re.IGNORECASE):
                kinds = [key] if group == "kind" else []
                found.append(_Mention(hit.start(), hit.end(), tuple(kinds), key if group == "place" else None))
    kept: list[_Mention] = []
    for mention in sorted(found, key=lambda m: (m.start - m.end, m.place is None)):
        if not any(mention.start < other.end and other.start < mention.end for other in kept):
            kept.append(mention)
    return sorted(kept, key=lambda m: m.start)


def _stands_near(text: str, mention: _Mention) -> bool:
    """ "near the airport", "机场附近"."""
    before, after = text[: mention.start], text[mention.end :]
    return bool(_NEAR_BEFORE.search(before) or _NEAR_AFTER.match(after))


def _allowed(tool: AgentTool, said: _Said, refs: tuple[str, ...]) -> Mapping[str, Any] | None:
    """The schema of the arguments that the words support; None where the tool is not for them."""
    text = said.text
    if tool.name in CAR_TOOLS and not said.asks:
        return None
    where = [*said.places, *said.kinds] or (list(refs) if _BEFORE.search(text) else [])
    looks = _LISTS.search(text) or (said.near is not None and _LOOKS.search(text))
    lists = bool(said.kinds) and bool(looks)
    if tool.name == "find_places":
        return _closed(kind=list(said.kinds), near=[said.near or HERE]) if lists else None
    if tool.name == "distance":
        return _closed(place=where) if where and not lists and _FAR.search(text) else None
    if tool.name == "charge":
        return _closed() if _CHARGE.search(text) and not (where and _REACH.search(text)) else None
    if tool.name == "reach":
        return _closed(place=where) if where and _REACH.search(text) else None
    if tool.name == "vehicle":
        items = [item for item in VEHICLE_ITEMS if _ITEMS[item].search(text)]
        return _closed(item=items) if items else None
    return _with_own_words(tool.parameters, text) if tool.asked_for(text) else None


def _closed(**values: list[str]) -> dict[str, Any]:
    properties = {name: {"type": "string", "enum": list(dict.fromkeys(allowed))} for name, allowed in values.items()}
    return {"type": "object", "properties": properties, "required": list(values), "additionalProperties": False}


def _with_own_words(schema: Mapping[str, Any], text: str) -> dict[str, Any]:
    """The schema with every free text narrowed to words that were said, in one run."""
    made: dict[str, Any] = dict(schema)
    if schema.get("type") == "string" and not {"enum", "const"} & set(schema):
        return {"type": "string", "enum": list(spans_of(text))}
    for key in ("properties", "items"):
        inner = schema.get(key)
        if isinstance(inner, Mapping):
            made[key] = (
                {name: _with_own_words(part, text) for name, part in inner.items()}
                if key == "properties"
                else _with_own_words(inner, text)
            )
    for key in ("anyOf", "oneOf"):
        if key in schema:
            made[key] = [_with_own_words(part, text) for part in schema[key]]
    return made


def spans_of(text: str) -> Iterator[str]:
    """Runs of words (English) or characters (Mandarin) of the text, short ones first, each once."""
    tokens = tokens_of(text)
    longest = _LONGEST_SPAN["zh" if any(is_cjk(token.text) for token in tokens) else "en"]
    seen: dict[str, None] = {}
    for length in range(1, longest + 1):
        for start in range(len(tokens) - length + 1):
            seen.setdefault(text[tokens[start].start : tokens[start + length - 1].end])
            if len(seen) >= _MOST_SPANS:
                return (yield from seen)
    yield from seen
