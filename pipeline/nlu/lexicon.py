"""Finds the words of `lexicon.yaml` and of the place list in a transcript, by spelling and by sound.

A phrase with Chinese characters is compared character by character by pinyin; an English phrase word by word, and
where no word of a stretch is known, by sound. Nothing here ever adds a word: a match always covers words that were
heard.
"""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Iterable, Sequence
from dataclasses import dataclass
from functools import cache, lru_cache
from pathlib import Path

from ruamel.yaml import YAML

from pipeline.nlu.numbers import NUMBER_WORDS, find_numbers, number_span
from pipeline.nlu.phonetics import Token, character_cost, english_likeness, is_cjk, readings, tokens_of
from pipeline.vehicle.places import Places

FUZZY_GROUPS = ("device", "ask", "place", "kind", "feel", "forbid", "music", "unsupported", "option")
"""Groups whose English phrases are also looked for by sound."""
SPELT_ONLY = frozenset(
    f"device.{name}"
    for name in (
        "rapid_cooling",
        "rapid_heating",
        "climate_auto",
        "climate_eco",
        "natural_wind",
        "air_face",
        "air_feet",
        "air_windscreen",
        "high_beam",
        "position_light",
        "page",
        "shuffle",
        "repeat",
        "favourites",
        "add_favourite",
        "seat_position",
    )
)
"""Things that are not looked for by sound: their words sound like common ones ("repeating", 阳光)."""
SPELT_WORDS = frozenset(map(tuple, ("息屏", "熄屏", "黑屏", "灭屏", "关屏", "亮屏", "小灯")))
"""Phrases of two characters that sound like too much: 哨兵 is no 亮屏."""
FUZZY_LIKENESS = 0.78
FUZZY_LETTERS = 6
LONGEST_PHRASE_WORDS = 8
NEAR_COST = 0.6
"""No character of a match may be further off than this; only a whole utterance is judged more loosely."""
KEPT_SEARCHES = 64
"""One transcript is searched whole and in pieces, some of them several times."""
FUNCTION_WORDS = frozenset(
    ("a", "an", "the", "my", "of", "and", "in", "out", "i", "you", "it", "is", "can't", "too", "so", "very", "way")
)
"""Never part of a misheard word."""
WHOLE_COST = {"command": 1.55, "music": 1.65}
"""Total cost up to which a whole short stretch still counts as a phrase of the group."""


@dataclass(frozen=True, slots=True)
class Match:
    """Words [start, end) carry these tags ("group.name"). `cost`: 0 exact, up to about 0.4 per word for a likeness."""

    start: int
    end: int
    tags: frozenset[str]
    cost: float

    def has(self, group: str) -> bool:
        """True when one tag is of `group`."""
        return any(tag.startswith(group + ".") for tag in self.tags)


class Lexicon:
    """All phrases, indexed once. Read only after construction; any thread may use it."""

    def __init__(self, phrases: dict[str, list[str]], *, by_sound: bool = True) -> None:
        self.by_sound = by_sound
        self._english: dict[tuple[str, ...], set[str]] = defaultdict(set)
        self._chinese: dict[str, list[tuple[tuple[str, ...], str]]] = defaultdict(list)
        self._fuzzy: list[tuple[tuple[str, ...], str]] = []
        for tag, texts in phrases.items():
            for text in texts:
                self._add(tag, tuple(token.text for token in tokens_of(text)))
        self._known_words = {word for phrase in self._english for word in phrase} | NUMBER_WORDS
        self._found = lru_cache(maxsize=KEPT_SEARCHES)(self._search)

    def _add(self, tag: str, words: tuple[str, ...]) -> None:
        if not words:
            raise ValueError(f"a phrase of {tag} holds no word")
        if any(is_cjk(word) for word in words):
            keys = readings(words[0])[1] if is_cjk(words[0]) else {words[0]}
            for key in keys:
                self._chinese[key].append((words, tag))
            return
        self._english[words].add(tag)
        if (
            tag.split(".", maxsplit=1)[0] in FUZZY_GROUPS
            and tag not in SPELT_ONLY
            and sum(map(len, words)) >= FUZZY_LETTERS
        ):
            self._fuzzy.append((words, tag))

    def find(self, tokens: Sequence[Token]) -> list[Match]:
        """Non-overlapping matches in order of the text; of those that overlap, the longest and then the closest
        stays.
        """
        return list(self._found(tuple(token.text for token in tokens)))

    def _search(self, words: tuple[str, ...]) -> tuple[Match, ...]:
        found: dict[tuple[int, int], dict[str, float]] = defaultdict(dict)
        numeral = _numerals(words)
        for start in range(len(words)):
            self._find_chinese(words, start, numeral, found)
            self._find_english(words, start, found)
        chosen = _best(found)
        stretches = _free_stretches(words, chosen, self._known_words) if self.by_sound else []
        if stretches:
            for low, high in stretches:
                self._find_by_sound(words, low, high, numeral, found)
            chosen = _best(found)
        return tuple(sorted(chosen, key=lambda match: match.start))

    def whole(self, tokens: Sequence[Token], group: str) -> str | None:
        """The name in `group` whose Chinese phrase the whole of a short text sounds most like; None when none is
        near.
        """
        words = tuple(token.text for token in tokens)
        if not self.by_sound or not 3 <= len(words) <= 6 or not all(map(is_cjk, words)) or _numerals(words):
            return None
        near: list[tuple[float, str]] = []
        for phrases in self._chinese.values():
            for phrase, tag in phrases:
                if tag.startswith(group + ".") and len(phrase) == len(words):
                    cost = sum(map(character_cost, words, phrase))
                    near.append((cost, tag[len(group) + 1 :]))
        cost, name = min(near, default=(9.0, ""))
        return name if cost <= WHOLE_COST[group] else None

    def _find_chinese(
        self, words: tuple[str, ...], start: int, numeral: set[int], found: dict[tuple[int, int], dict[str, float]]
    ) -> None:
        first = words[start]
        keys: Iterable[str] = readings(first)[1] if is_cjk(first) else (first,)
        for key in keys:
            for phrase, tag in self._chinese.get(key, ()):
                end = start + len(phrase)
                if end > len(words):
                    continue
                spelt = tag in SPELT_ONLY or phrase in SPELT_WORDS
                if words[start:end] != phrase and (spelt or not numeral.isdisjoint(range(start, end))):
                    continue
                loose = not tag.startswith(("verb.", "mark."))
                cost = self._chinese_cost(words[start:end], phrase, 0.3 if loose else 0.2)
                if cost is None and tag.startswith("device."):
                    cost = self._one_wrong(words[start:end], phrase)
                if cost is not None:
                    spans = found[(start, end)]
                    spans[tag] = min(cost, spans.get(tag, 9.0))

    def _chinese_cost(self, heard: tuple[str, ...], phrase: tuple[str, ...], per_character: float) -> float | None:
        if heard == phrase:
            return 0.0
        if len(phrase) == 1 or not self.by_sound:
            return None
        limit = 0.3 * len(phrase) - 0.2 if len(phrase) == 2 else per_character * len(phrase)
        total = 0.0
        for a, b in zip(heard, phrase, strict=True):
            cost = character_cost(a, b) if a != b else 0.0
            total += cost
            if total > limit or cost > NEAR_COST:
                return None
        return total

    def _one_wrong(self, heard: tuple[str, ...], phrase: tuple[str, ...]) -> float | None:
        """1.0 for a device of four characters or more of which exactly one was heard as something else entirely."""
        if not self.by_sound or len(phrase) < 4 or not all(map(is_cjk, heard)):
            return None
        return 1.0 if sum(a != b for a, b in zip(heard, phrase, strict=True)) == 1 else None

    def _find_english(self, words: tuple[str, ...], start: int, found: dict[tuple[int, int], dict[str, float]]) -> None:
        for length in range(1, min(LONGEST_PHRASE_WORDS, len(words) - start) + 1):
            for tag in self._english.get(words[start : start + length], ()):
                found[(start, start + length)][tag] = 0.0

    def _find_by_sound(
        self,
        words: tuple[str, ...],
        low: int,
        high: int,
        numeral: set[int],
        found: dict[tuple[int, int], dict[str, float]],
    ) -> None:
        for start in range(low, high):
            for end in range(start + 1, min(start + 4, high) + 1):
                heard = words[start:end]
                if all(word in self._known_words for word in heard) or not FUNCTION_WORDS.isdisjoint(heard):
                    continue
                if not numeral.isdisjoint(range(start, end)):
                    continue
                letters = sum(map(len, heard))
                for phrase, tag in self._fuzzy:
                    size = sum(map(len, phrase))
                    if abs(size - letters) > 3 or abs(len(phrase) - len(heard)) > 1 or heard == phrase:
                        continue
                    likeness = english_likeness(heard, phrase)
                    if likeness >= FUZZY_LIKENESS and not (tag.startswith("place.") and _another_name(heard, phrase)):
                        found[(start, end)][tag] = (1.0 - likeness) * len(heard)


def _another_name(heard: tuple[str, ...], phrase: tuple[str, ...]) -> bool:
    """True where only the common words are shared: "good restaurant" is not "noodle restaurant"."""
    own = tuple(word for word in heard if word not in phrase)
    wanted = tuple(word for word in phrase if word not in heard)
    return not own or not wanted or english_likeness(own, wanted) < FUZZY_LIKENESS


def _numerals(words: tuple[str, ...]) -> set[int]:
    """Positions of words that say a number: they are heard as they are written and never as something that sounds
    alike.
    """
    return {i for number in find_numbers(words) for i in range(*number_span(words, number))}


def _content(match: Match) -> bool:
    return not all(tag.startswith(("filler.", "mark.")) for tag in match.tags)


MATCH_PRICE = 0.35
COST_PRICE = 1.5
LIKENESS_PRICE = 0.25
"""What words only alike cost at all: exact ones are preferred to more of them."""


def _best(found: dict[tuple[int, int], dict[str, float]]) -> list[Match]:
    """The set of non-overlapping matches that covers most words with fewest, closest matches."""
    matches: list[Match] = []
    for (start, end), tags in found.items():
        cost = min(tags.values())
        matches.append(Match(start, end, frozenset(tag for tag, own in tags.items() if own <= cost + 0.05), cost))
    matches.sort(key=lambda match: match.end)
    ends = max((match.end for match in matches), default=0)
    best: list[tuple[float, Match | None, int]] = [(0.0, None, 0)] * (ends + 1)
    by_end: dict[int, list[Match]] = defaultdict(list)
    for match in matches:
        by_end[match.end].append(match)
    for end in range(1, ends + 1):
        best[end] = (best[end - 1][0], None, end - 1)
        for match in by_end[end]:
            score = best[match.start][0] + _weight(match)
            if score > best[end][0]:
                best[end] = (score, match, match.start)
    chosen: list[Match] = []
    at = ends
    while at > 0:
        _, picked, before = best[at]
        if picked is not None:
            chosen.append(picked)
        at = before
    return chosen


def _weight(match: Match) -> float:
    length = float(match.end - match.start)
    if not _content(match):
        length *= 0.7
    likeness_price = COST_PRICE * match.cost + (LIKENESS_PRICE if match.cost else 0.0)
    return length - likeness_price - MATCH_PRICE


def _free_stretches(words: tuple[str, ...], chosen: list[Match], known: set[str]) -> list[tuple[int, int]]:
    """Runs of Latin words that hold at least one word no phrase knows: only there may a likeness speak."""
    covered = {
        i for match in chosen if _content(match) and match.end - match.start > 1 for i in range(match.start, match.end)
    }
    runs: list[tuple[int, int]] = []
    start = None
    for i in range(len(words) + 1):
        usable = i < len(words) and i not in covered and words[i][0].isalpha() and not is_cjk(words[i])
        if usable and start is None:
            start = i
        elif not usable and start is not None:
            if any(words[j] not in known for j in range(start, i)):
                runs.append((start, i))
            start = None
    return runs


@cache
def phrase_table() -> dict[str, list[str]]:
    """`lexicon.yaml` as "group.name" -> phrases. Callers must not change it."""
    raw = YAML(typ="safe").load(Path(__file__).with_name("lexicon.yaml").read_text(encoding="utf-8"))
    return {f"{group}.{name}": phrases for group, names in raw.items() for name, phrases in names.items()}


def build_lexicon(places: Places, *, by_sound: bool = True) -> Lexicon:
    """The car's words and the places' names in one index."""
    return Lexicon(phrase_table() | places.phrases(), by_sound=by_sound)


HOTWORDS: dict[str, str] = {
    "zh": "调到 主驾 副驾驶 车窗 天窗 座椅加热 除雾 内循环 风量 音量 百分之 导航 充电站 挂倒挡 温度 度 空调 "
    "后窗 打开 关上 取消导航 机场 火车站 酒店 静音 周杰伦 动能回收 车速 还剩多少电 "
    "后窗除雾 打开后窗除雾 导航静音 关上所有车窗",
    "en": "seat heating, defroster, sunroof, recirculate, driver window, passenger, temperature, degrees, "
    "charging station, navigate, volume, percent, fan, air conditioning, motorway, railway station, "
    "windshield, mute, reverse",
}


def hotwords(language: str) -> list[str]:
    """The words an ASR should prefer, most telling first, in "en" or "zh". Raises ValueError for another language."""
    if language not in HOTWORDS:
        raise ValueError(f"no hot words for language {language!r}; known: en, zh")
    words = HOTWORDS[language]
    return [word.strip() for word in (words.split(",") if language == "en" else words.split())]
