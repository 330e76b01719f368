"""Finds the subject of the manual that a question names, by its words and by its sound.

A subject is found only where one of its names covers what was asked about: in a question everything but the words of
asking ("what does ... mean"), else the whole utterance. Small talk must be the whole utterance. So "I read about
airbags in a novel" finds nothing, and neither does any other talk.
"""

from __future__ import annotations

import re
from collections import defaultdict
from collections.abc import Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from rapidfuzz.distance import Levenshtein
from ruamel.yaml import YAML

from pipeline.frames import Language
from pipeline.nlu.phonetics import (
    Token,
    character_cost,
    english_code,
    english_likeness,
    is_cjk,
    tokens_of,
)

LEAST_COVERED = 0.72
"""Share of a question's own words that the name must cover."""
LEAST_COVERED_UNASKED = 0.95
"""The same without any word of asking."""
LEAST_LIKENESS = 0.86
"""English names by sound, from SOUND_LETTERS letters on: mean likeness of codes and letters."""
SOUND_LETTERS = 8
SOUND_WORDS, SOUND_CHARACTERS = 4, 8
"""Longer names, which are whole questions, are not compared by sound."""
_CODE_LIKENESS = 0.8
_NEAR_SOUND = 0.6
"""Mandarin characters that cost less are near in sound."""
MOST_COST = 0.2
"""Mandarin names of four characters or more: mean cost per character, and one character far off at most."""
MOST_COST_SHORT = 0.11
"""Shorter ones: nothing but characters of the same sound, and one character at least as it is written."""

_ASKING = """
what what's whats how why explain tell describe when meaning mean means define should does do is are can could would
which where difference purpose
"""
_SMALL = """
a an the of for in on at to and or with my your this that it its it's i me you we us please about just exactly work
works working use used using useful need happen happens happened get gets be been has have had come comes came stay
stays car car's vehicle system function feature light lamp warning dashboard display symbol icon yellow orange red mode
button if there so much really actually did was were by from now ok okay well know want hey say said between then often
fill put find got stand stands one good bad make makes not understand lit up today still some any
"""
_CALLING = frozenset([*["hey", "hi", "hello", "please", "well", "so", "oh", "car"], *"啊呀呢吧哦嗯嗨喂请"])
"""Around small talk these say nothing."""
_ASKING_WORDS = frozenset(_ASKING.split())
_SMALL_WORDS = _ASKING_WORDS | frozenset(_SMALL.split())
_EXPLAIN = re.compile(
    r"\b(?:what|what's|whats|how|why|explain|tell me (?:about|what|how|why)|describe|when|mean|means|meaning"
    r"|difference|should)\b|什么|怎么(?!走|去)|为什么|为啥|如何|意思|作用|原理|介绍|解释|说明|区别|干嘛|有啥",
    re.IGNORECASE,
)
_ASKING_ZH = re.compile(
    r"为什么|什么意思|[是时事]什么意思|什么时候|什么用|什么[是事时式]|[是时事]什么|什么叫|怎么回事|怎么办|怎么样|怎么[用使弄做开换]?|如何|为啥|干什么用?|干嘛|有什么[用区别]*"
    r"|作用|原理|介绍|解释|说明|讲讲|说说|讲一下|说一下|区别|该不该|多久|多少|在?哪[里儿]?|什么|能不能|可不可以|能[^\s]{0,4}吗|吗|会怎样|啥"
)
_SMALL_ZH = re.compile(
    _ASKING_ZH.pattern
    + r"|请问|请|一下|你知道|知道|我想|我|你|您|的|了|呢|啊|吧|呀|嘛|是|在|会|能|要|应该|需要|这个|那个|这辆|汽车|车里"
    r"|车上|车子|车|功能|系统|模式|亮|灯|一直|突然|出现|使用|用|工作|好|和|跟|与|有|到底|究竟|该|可以|给|帮|关于|仪表盘|仪表"
    r"|上面|上|啦|都|就|还|又|很|今天|"
    r"变[短低差慢少]?|这么|那么|加在|放在|意思|时候|而且|不一样|不同|着|那|快|掉|要紧|严重|电动车|电车"
)


@dataclass(frozen=True, slots=True)
class Entry:
    """One subject. `titles`: its names, as words. `headings`, `say`: of its section and its spoken text per language,
    without heading for small talk. `first`: a trouble or question that no command looks like, so it is certain also
    where nothing asks for an explanation."""

    name: str
    titles: tuple[tuple[str, ...], ...]
    say: dict[Language, str]
    headings: dict[Language, str]
    first: bool = False

    @property
    def talk(self) -> bool:
        """Small talk is nothing of the manual's."""
        return not self.headings


@dataclass(frozen=True, slots=True)
class Found:
    """An entry for an utterance. `text`: the utterance with a misheard name mended; `exact`: the name was heard as it
    is written. `certain`: the words ask for an explanation, so no command or question of state is meant."""

    entry: Entry
    text: str
    exact: bool
    certain: bool


@dataclass(frozen=True, slots=True)
class _Hit:
    start: int
    end: int
    cost: float
    entry: Entry
    title: tuple[str, ...]


class Names:
    """All subjects by their names, indexed once. Read only; any thread may use it."""

    def __init__(self, entries: Sequence[Entry]) -> None:
        self.entries = tuple(entries)
        self._exact: dict[tuple[str, ...], Entry] = {}
        # English titles with their codes, by the first letter of the code
        self._english: dict[str, list[tuple[tuple[str, ...], str, Entry]]] = defaultdict(list)
        # Mandarin ones by length, and the places of those that have a character at a position: by length and position
        self._chinese: dict[int, list[tuple[tuple[str, ...], Entry]]] = defaultdict(list)
        self._having: dict[tuple[int, int], dict[str, set[int]]] = defaultdict(lambda: defaultdict(set))
        for entry in entries:
            for title in entry.titles:
                self._exact.setdefault(title, entry)
                if all(map(is_cjk, title)):
                    if len(title) <= SOUND_CHARACTERS:
                        self._add_chinese(title, entry)
                elif not entry.talk and len(title) <= SOUND_WORDS and _by_letters(title):
                    code = english_code(title)
                    self._english[code[:1]].append((title, code, entry))
        self._longest = max(map(len, self._exact), default=0)
        self._near = lru_cache(maxsize=8192)(self._titles_near)

    def _add_chinese(self, title: tuple[str, ...], entry: Entry) -> None:
        titles = self._chinese[len(title)]
        for position, character in enumerate(title):
            self._having[len(title), position][character].add(len(titles))
        titles.append((title, entry))

    def find(self, text: str) -> Found | None:
        """The entry `text` is about; None where there is none or the text says more than to ask for it."""
        tokens = _letters_joined(tokens_of(text))
        if not tokens or len(tokens) > 40:
            return None
        words = tuple(token.text for token in tokens)
        small, asked = _small(words)
        for exact, hits in ((True, self._as_written), (False, self._by_sound)):
            ranked = [
                (_covered(hit, words, small), hit.end - hit.start, -hit.cost, i, hit)
                for i, hit in enumerate(hits(words))
            ]
            least = LEAST_COVERED if asked else LEAST_COVERED_UNASKED
            fit = [item for item in ranked if item[0] >= (LEAST_COVERED_UNASKED if item[4].entry.talk else least)]
            if fit:
                hit = max(fit, key=lambda item: (item[:3], -item[3]))[4]
                certain = hit.entry.talk or explains(text) or (hit.entry.first and exact)
                return Found(hit.entry, text if exact else _mended(text, tokens, hit), exact, certain)
        return None

    def _as_written(self, words: tuple[str, ...]) -> list[_Hit]:
        hits = []
        for start in range(len(words)):
            for end in range(start + 1, min(len(words), start + self._longest) + 1):
                entry = self._exact.get(words[start:end])
                if entry is not None:
                    hits.append(_Hit(start, end, 0.0, entry, words[start:end]))
        return hits

    def _by_sound(self, words: tuple[str, ...]) -> list[_Hit]:
        hits = []
        for start, word in enumerate(words):
            if is_cjk(word):
                hits += self._chinese_at(words, start)
            else:
                hits += self._english_at(words, start)
        return hits

    def _chinese_at(self, words: tuple[str, ...], start: int) -> list[_Hit]:
        hits = []
        for length, titles in self._chinese.items():
            heard = words[start : start + length]
            if length < 2 or len(heard) < length or not all(map(is_cjk, heard)):
                continue
            for place in self._worth_comparing(heard):
                title, entry = titles[place]
                costs = [character_cost(a, b) for a, b in zip(heard, title, strict=True)]
                if length >= 4:
                    near = sum(costs) <= MOST_COST * length and sum(cost >= 0.6 for cost in costs) <= 1
                else:
                    near = max(costs) <= MOST_COST_SHORT and 0.0 in costs
                if near and not (entry.talk and max(costs) > MOST_COST_SHORT):
                    hits.append(_Hit(start, start + length, sum(costs), entry, title))
        return hits

    def _worth_comparing(self, heard: tuple[str, ...]) -> list[int]:
        """Places of titles: a short one needs one character as written, a longer one a near sound in its first two."""
        length = len(heard)
        found: set[int] = set()
        for position in range(length if length < 4 else 2):
            found |= self._near(length, position, heard[position])
        return sorted(found)

    def _titles_near(self, length: int, position: int, heard: str) -> set[int]:
        """Places of the titles of `length` whose character at `position` is `heard`; for long ones, sounds near it."""
        having = self._having[length, position]
        if length < 4:
            return having.get(heard, set())
        near = (places for wanted, places in having.items() if character_cost(heard, wanted) < _NEAR_SOUND)
        return set().union(*near)

    def _english_at(self, words: tuple[str, ...], start: int) -> list[_Hit]:
        hits = []
        for end in range(start + 1, min(len(words), start + SOUND_WORDS + 1) + 1):
            heard = words[start:end]
            if any(map(is_cjk, heard)) or sum(map(len, heard)) < SOUND_LETTERS - 2:
                continue
            code = english_code(heard)
            for title, wanted, entry in self._english.get(code[:1], ()):
                if abs(len(title) - len(heard)) > 1:
                    continue
                if Levenshtein.normalized_similarity(code, wanted, score_cutoff=_CODE_LIKENESS) < _CODE_LIKENESS:
                    continue
                likeness = english_likeness(heard, title)
                if likeness >= LEAST_LIKENESS:
                    hits.append(_Hit(start, end, 1.0 - likeness, entry, title))
        return hits


def _by_letters(title: tuple[str, ...]) -> bool:
    """English, without figures, and long enough to be told by its sound."""
    letters = "".join(title).replace("'", "")
    return letters.isascii() and letters.isalpha() and len(letters) >= SOUND_LETTERS


def _letters_joined(tokens: list[Token]) -> list[Token]:
    """ "a b s" and "A.B.S." as the one word "abs"."""
    joined: list[Token] = []
    spelling = False
    for token in tokens:
        letter = len(token.text) == 1 and token.text.isascii() and token.text.isalnum()
        if letter and spelling and token.start - joined[-1].end <= 2:
            joined[-1] = Token(joined[-1].text + token.text, joined[-1].start, token.end)
        else:
            joined.append(token)
        spelling = letter
    return joined


def _small(words: tuple[str, ...]) -> tuple[list[bool], bool]:
    """Which words only ask or fill, and whether there is one that asks."""
    small = [word in _SMALL_WORDS for word in words]
    asked = any(word in _ASKING_WORDS for word in words)
    # Latin words stand for one placeholder each, so that positions in the text are positions of words.
    line = "".join(word if is_cjk(word) else " " for word in words)
    for match in _SMALL_ZH.finditer(line):
        for index in range(*match.span()):
            small[index] = True
    return small, asked or _ASKING_ZH.search(line) is not None


def _covered(hit: _Hit, words: tuple[str, ...], small: list[bool]) -> float:
    inside = hit.end - hit.start
    if hit.entry.talk:
        return inside / (inside + sum(word not in _CALLING for word in words[: hit.start] + words[hit.end :]))
    outside = sum(not is_small for i, is_small in enumerate(small) if not hit.start <= i < hit.end)
    return inside / (inside + outside)


def _mended(text: str, tokens: list[Token], hit: _Hit) -> str:
    title = "".join(hit.title) if any(map(is_cjk, hit.title)) else " ".join(hit.title)
    return text[: tokens[hit.start].start] + title + text[tokens[hit.end - 1].end :]


def explains(text: str) -> bool:
    """Whether words ask for an explanation ("what is", "how do I", 怎么), not for a deed ("can you")."""
    return _EXPLAIN.search(text) is not None


def title_of(name: str) -> tuple[str, ...]:
    """The words of a name, as they are looked for."""
    return tuple(token.text for token in _letters_joined(tokens_of(name)))


@cache
def small_talk() -> tuple[Entry, ...]:
    """Greetings and the like. Raises ValueError where one is incomplete."""
    path = Path(__file__).with_name("small_talk.yaml")
    return tuple(_entry(name, values) for name, values in YAML(typ="safe").load(path.read_text("utf-8")).items())


def _entry(name: str, values: dict[str, object]) -> Entry:
    english, chinese = values["en"], values["zh"]
    if not isinstance(english, list) or not isinstance(chinese, list):
        raise ValueError(f"small_talk.yaml: {name} needs lists of phrases under en and zh")
    titles = tuple(title_of(str(phrase)) for phrase in english + chinese)
    if not all(titles):
        raise ValueError(f"small_talk.yaml: a phrase of {name} holds no word")
    return Entry(name, titles, {"en": str(values["say_en"]), "zh": str(values["say_zh"])}, {})
