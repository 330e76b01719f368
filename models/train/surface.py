"""How a sentence reaches the parser: politeness, hesitation, and what a recogniser makes of it."""

from __future__ import annotations

import random
import re
from functools import cache

from pypinyin import Style, lazy_pinyin

from models.train.bank import bank_of
from models.train.grammar import Chunk, Chunks, text_of
from models.train.wishes import Maker, Wish

_NEAR_EN = {
    "seat": ["sea", "seed", "c"],
    "heating": ["hitting", "eating", "heeding"],
    "heater": ["eater", "hitter"],
    "fan": ["van", "fun"],
    "sunroof": ["sun roof", "son roof", "some roof"],
    "defroster": ["de froster", "the froster", "de-froster"],
    "windshield": ["wind shield", "windfield"],
    "windscreen": ["wind screen", "when screen"],
    "wipers": ["vipers", "wipes"],
    "trunk": ["drunk", "truck"],
    "tailgate": ["tail gate", "tailgaid"],
    "volume": ["volumes", "valium"],
    "recirculation": ["re circulation", "recycling", "re-circulation"],
    "conditioning": ["condition", "conditioner"],
    "passenger": ["passengers", "passion jar"],
    "driver's": ["drivers", "driver"],
    "brightness": ["bright ness", "right ness"],
    "ventilation": ["ventilations", "vantilation"],
    "blower": ["blow her", "lower"],
    "navigation": ["navigations", "navigating"],
    "sunshade": ["sun shade", "sand shade"],
    "headlights": ["head lights", "headlight"],
    "degrees": ["degree", "the grease"],
    "ac": ["a c", "a/c", "a.c."],
    "defrost": ["the frost", "de frost"],
    "playlist": ["play list"],
    "windows": ["window's", "windows'"],
    "steering": ["staring", "steaming"],
}
_GLUE = frozenset("，。！？,.!? ")


@cache
def homophones() -> dict[str, tuple[str, ...]]:
    """Characters of the bank that sound alike without their tone, numerals left out."""
    numerals = set("零一二三四五六七八九十百千两半点度不没别非关开升降大小高低分之")
    signs = {c for templates in bank_of("zh").values() for t in templates for c in t if "\u4e00" <= c <= "\u9fff"}
    groups: dict[str, list[str]] = {}
    for sign in sorted(signs - numerals):
        groups.setdefault(lazy_pinyin(sign, style=Style.NORMAL)[0], []).append(sign)
    return {sign: tuple(o for o in group if o != sign) for group in groups.values() for sign in group if len(group) > 1}


def dressed(maker: Maker, wish: Wish) -> Chunks:
    """Politeness before and behind, hesitation inside."""
    rng = maker.rng
    chunks = smoothed(wish.chunks)
    text = text_of(chunks)
    space = " " if maker.english else ""
    asks = wish.question or text.endswith("吗")
    polite_end = text.endswith(("please", "吧", "了", "吗", "呢"))
    if rng.random() < 0.3:
        lead = "polite.verb" if wish.verbal and not asks and rng.random() < 0.75 else "polite.any"
        comma = rng.choice(["", ", "]) if maker.english and lead == "polite.any" else ""
        if not (maker.english and text.startswith(("can ", "could ", "would ", "please "))):
            chunks = (*maker.writer.phrase(lead), (comma or space, ""), *chunks)
    if not asks and not polite_end and rng.random() < 0.16:
        chunks = (*chunks, (space, ""), *maker.writer.phrase("polite.after"))
    if rng.random() < 0.09:
        chunks = _hesitating(maker, chunks)
    return chunks


_NO_ARTICLE = re.compile(
    r"\b(more|less|maximum|minimum|max|lowest|highest|full|half|intermittent|enough|no) (?:the|my|our) "
)


def smoothed(chunks: Chunks) -> Chunks:
    """Without the seams of templates: "more the volume", 我后面的的窗."""
    done: list[Chunk] = []
    for text, tag in chunks:
        if done and not tag and not done[-1][1]:
            done[-1] = (done[-1][0] + text, "")
        else:
            done.append((text, tag))
    for i, (text, tag) in enumerate(done):
        if not tag:
            done[i] = (_NO_ARTICLE.sub(r"\1 ", text).replace("的的", "的"), "")
        elif i and tag == "what" and _NO_ARTICLE.search(done[i - 1][0][-10:] + text[:4]):
            done[i] = (re.sub("^(?:the|my|our) ", "", text), tag)
    return tuple(done)


def _hesitating(maker: Maker, chunks: Chunks) -> Chunks:
    """A filler or a repeated word in one of the parts that mean nothing by themselves."""
    rng = maker.rng
    places = [i for i, (text, tag) in enumerate(chunks) if not tag and len(text.strip()) > 1]
    if not places:
        return chunks
    i = rng.choice(places)
    text = chunks[i][0]
    if maker.english:
        words = text.split(" ")
        first = 1 if not words[0] or (i and not chunks[i - 1][0].endswith(" ")) else 0
        last = len(words) - (0 if words[-1] and (i + 1 == len(chunks) or chunks[i + 1][0].startswith(" ")) else 1)
        if chunks[i + 1 : i + 2] and chunks[i + 1][1].endswith("value") and chunks[i + 1][0] == "one":
            last -= 1  # "level one": without its word beside it this is no number
        if last < first:
            return chunks
        at = rng.randint(first, last)
        again = (
            words[at - 1]
            if at and words[at - 1].isalpha() and rng.random() < 0.5
            else text_of(maker.writer.phrase("filler"))
        )
        words.insert(at, again)
        return (*chunks[:i], (" ".join(words), ""), *chunks[i + 1 :])
    at = rng.choice([0, 0, 0, len(text), 2])
    if i and chunks[i - 1][1].endswith("value"):
        at = len(text)  # a number and its unit stay together
    if text.endswith("百分之") and at == len(text):
        return chunks
    filler = (
        text[:1]
        if rng.random() < 0.3 and text[0] in "把打关开调我放播" and not at
        else text_of(maker.writer.phrase("filler"))
    )
    return (*chunks[:i], (text[:at] + filler + text[at:], ""), *chunks[i + 1 :])


def heard(maker: Maker, chunks: Chunks, *, question: bool, spoiled: bool) -> Chunks:
    """As a recogniser writes it: case, punctuation, pauses, words that sound alike. spoiled: whether sounds may be
    confused here.
    """
    rng = maker.rng
    if maker.english:
        done = [_near(rng, chunk) for chunk in chunks] if spoiled and rng.random() < 0.06 else list(chunks)
        if spoiled and rng.random() < 0.08:
            done = _terse(done)
        if rng.random() < 0.04:
            done = _pause(rng, done)
        return _english_case(rng, done, question)
    done = list(chunks)
    if spoiled and rng.random() < 0.1:
        done = _misheard(rng, done)
    if rng.random() < 0.5:
        done = [
            (text if tag else _PAUSE_ZH.sub("", text) if _follows_text(done, i) else _INNER_PAUSE_ZH.sub("", text), tag)
            for i, (text, tag) in enumerate(done)
        ]
    if rng.random() < 0.2:
        done.append(("？" if question else "。", ""))
    return tuple(done)


_PAUSE_ZH = re.compile("[，。](?![0-9零一二三四五六七八九十百两])")
_INNER_PAUSE_ZH = re.compile("[，。](?![0-9零一二三四五六七八九十百两]|$)")


def _follows_text(chunks: list[Chunk], i: int) -> bool:
    """False where a number comes next: without a pause it would run together with one before."""
    return i + 1 == len(chunks) or not chunks[i + 1][1].endswith("value")


def _near(rng: random.Random, chunk: Chunk) -> Chunk:
    text, tag = chunk
    if tag:
        return chunk
    words = [
        rng.choice(_NEAR_EN[word]) if word in _NEAR_EN and rng.random() < 0.7 else word for word in text.split(" ")
    ]
    return " ".join(words), tag


_ARTICLE = re.compile(r"(?<![\w'])(?:the|a|an) (?=[a-z])(?!c\b)", re.IGNORECASE)


def _terse(chunks: list[Chunk]) -> list[Chunk]:
    """Without articles, as one speaks to a machine: "open driver's window". What names a thing keeps its words."""
    return [(text if tag else _ARTICLE.sub("", text), tag) for text, tag in chunks]


def _misheard(rng: random.Random, chunks: list[Chunk]) -> list[Chunk]:
    places = [
        (i, k)
        for i, (text, tag) in enumerate(chunks)
        if not tag
        for k, sign in enumerate(text)
        if sign in homophones() and not (i and k < 2 and chunks[i - 1][1].endswith("value"))
    ]
    if not places:
        return chunks
    i, k = rng.choice(places)
    text = chunks[i][0]
    chunks[i] = (text[:k] + rng.choice(homophones()[text[k]]) + text[k + 1 :], "")
    return chunks


def _pause(rng: random.Random, chunks: list[Chunk]) -> list[Chunk]:
    places = [i for i, (text, tag) in enumerate(chunks) if not tag and len(text.split()) > 2]
    if not places:
        return chunks
    i = rng.choice(places)
    words = chunks[i][0].split(" ")
    at = rng.randrange(1, len(words))
    if words[at - 1] and words[at - 1][-1:].isalpha():
        words[at - 1] += ","
    chunks[i] = (" ".join(words), "")
    return chunks


def _english_case(rng: random.Random, chunks: list[Chunk], question: bool) -> Chunks:
    if rng.random() < 0.5:
        bare = rng.random() < 0.6
        done = [(text.lower(), tag) for text, tag in chunks]
        return tuple((re.sub("[,.!?](?= |$)", "", text) if bare and not tag else text, tag) for text, tag in done)
    lower_titles = rng.random() < 0.3
    done = []
    for text, tag in chunks:
        kept = text.lower() if tag.endswith(("query", "place")) and lower_titles else text
        if not tag.endswith(("query", "place")):
            kept = re.sub(r"\bi\b(?!\.)", "I", kept)
            kept = re.sub(r"\b(?:ac|fm|am radio|dab|usb|cd|tv|hud|abs|esp)\b", lambda hit: hit.group().upper(), kept)
        done.append((kept, tag))
    for i, (text, tag) in enumerate(done):
        if text.strip():
            first = len(text) - len(text.lstrip())
            done[i] = (text[:first] + text[first].upper() + text[first + 1 :], tag)
            break
    if rng.random() < 0.75 and text_of(tuple(done)).rstrip()[-1:].isalnum():
        done.append(("?" if question else ".", ""))
    return tuple(done)
