"""Words by sound: Mandarin by pinyin without tones, English by a consonant code; both tolerant of what ASR mixes up."""

from __future__ import annotations

import re
from dataclasses import dataclass
from functools import lru_cache

from pypinyin import Style, pinyin
from rapidfuzz.distance import Levenshtein

_TOKEN = re.compile(r"[㐀-鿿]|\d+(?:[.,]\d+)?|[A-Za-z]+(?:['’][A-Za-z]+)*|[%°℃℉½¼¾]")
_CJK = re.compile(r"[㐀-鿿]")

SIMPLE_FORM = str.maketrans(
    "導航調溫駕駛開關閉窗門燈聲樂雲電話陽點兩個萬億車熱風氣備動駐檔擋剎車橋機場館飯廳藥銀東廣門樓灣歲樣這還裡裏麼嗎幾遠時間擇選轉換過"
    "鐘鎖後備箱儀錶幫請給讓為與從來對錯關於無霧掛倫傑減頻響隨雙適涼悶難聽說頭髮臺臟髒亂導員產業兒憂濕乾淨衝沖準確實",
    "导航调温驾驶开关闭窗门灯声乐云电话阳点两个万亿车热风气备动驻档挡刹车桥机场馆饭厅药银东广门楼湾岁样这还里里么吗几远时间择选转换过"
    "钟锁后备箱仪表帮请给让为与从来对错关于无雾挂伦杰减频响随双适凉闷难听说头发台脏脏乱导员产业儿忧湿干净冲冲准确实",
)
"""The traditional characters that car commands use. Whatever is missing still matches by sound."""


@lru_cache(maxsize=16384)
def is_cjk(token: str) -> bool:
    """True for one Chinese character."""
    return _CJK.match(token) is not None


@dataclass(frozen=True, slots=True)
class Token:
    """One word as matched (`text`), and where it stands in the text it came from."""

    text: str
    start: int
    end: int


def simple_form(text: str) -> str:
    """The text with traditional characters in their simple form; same length."""
    return text.translate(SIMPLE_FORM)


def tokens_of(text: str) -> list[Token]:
    """Lower-case English words, numbers, single Chinese characters (simple forms), % and degree signs; the rest
    is dropped.
    """
    plain = simple_form(text).replace("’", "'").replace("º", "°")
    return [Token(hit.group().lower(), hit.start(), hit.end()) for hit in _TOKEN.finditer(plain)]


# --- Mandarin ------------------------------------------------------------------------------------------------------
_INITIALS = (("zh", "z"), ("ch", "c"), ("sh", "s"))
_FINALS = (("iang", "ian"), ("uang", "uan"), ("ang", "an"), ("eng", "en"), ("ing", "in"))


def fold_syllable(syllable: str) -> str:
    """One spelling for syllables that speakers and ASR mix up."""
    for long, short in _INITIALS:
        if syllable.startswith(long):
            syllable = short + syllable[len(long) :]
            break
    for long, short in _FINALS:
        if syllable.endswith(long):
            syllable = syllable[: -len(long)] + short
            break
    if syllable.startswith("n"):
        syllable = "l" + syllable[1:]
    return syllable


@lru_cache(maxsize=8192)
def readings(character: str) -> tuple[frozenset[str], frozenset[str]]:
    """Every toneless reading of a character, exact and folded."""
    exact = frozenset(pinyin(character, style=Style.NORMAL, heteronym=True)[0])
    return exact, frozenset(fold_syllable(syllable) for syllable in exact)


@lru_cache(maxsize=65536)
def character_cost(heard: str, wanted: str) -> float:
    """0 for the same character, 0.1 for the same sound, 0.3 for a sound often mixed up, 0.6 for one near it,
    0.7 for the same initial, else 1."""
    if heard == wanted:
        return 0.0
    if not is_cjk(heard):
        return 1.0
    heard_exact, heard_folded = readings(heard)
    wanted_exact, wanted_folded = readings(wanted)
    if heard_exact & wanted_exact:
        return 0.1
    if heard_folded & wanted_folded:
        return 0.3
    if any(Levenshtein.distance(a, b) == 1 and len(a) > 2 and len(b) > 2 for a in heard_folded for b in wanted_folded):
        return 0.6
    if {_initial(syllable) for syllable in heard_folded} & {_initial(syllable) for syllable in wanted_folded}:
        return 0.7
    return 1.0


def _initial(syllable: str) -> str:
    return syllable[:1] if syllable[:1] not in "aeo" else ""


# --- English -------------------------------------------------------------------------------------------------------
_LETTER_NAMES = {
    "b": "bee",
    "c": "see",
    "d": "dee",
    "e": "ee",
    "g": "jee",
    "p": "pee",
    "t": "tee",
    "v": "vee",
    "z": "zee",
}
_RULES = (
    (r"^kn|^gn", "n"),
    (r"^wr", "r"),
    (r"ph", "f"),
    (r"tch|ch|sh|tion|sion", "x"),
    (r"th", "t"),
    (r"ck|q", "k"),
    (r"c(?=[eiy])", "s"),
    (r"c", "k"),
    (r"g(?=[ei])", "j"),
    (r"gh", ""),
    (r"dge", "j"),
    (r"x", "ks"),
    (r"z", "s"),
    (r"v", "f"),
    (r"d", "t"),
    (r"b", "p"),
    (r"g", "k"),
    (r"ng|nk", "n"),
)


def spelled_out(words: tuple[str, ...]) -> str:
    """The words run together, a lone letter written as its name sounds."""
    return "".join(_LETTER_NAMES.get(word, word) for word in words)


@lru_cache(maxsize=8192)
def english_code(words: tuple[str, ...]) -> str:
    """Consonants of the words run together, voiced and voiceless alike, the first vowel kept as 'a'."""
    joined = re.sub(r"[^a-z]", "", spelled_out(words))
    for pattern, replacement in _RULES:
        joined = re.sub(pattern, replacement, joined)
    head = "a" if joined[:1] in "aeiou" else joined[:1]
    rest = re.sub(r"[aeiouyhw]", "", joined[1:])
    return re.sub(r"(.)\1+", r"\1", head + rest)


@lru_cache(maxsize=65536)
def english_likeness(heard: tuple[str, ...], wanted: tuple[str, ...]) -> float:
    """0..1: the mean of the likeness of sound codes and of letters."""
    code_a, code_b = english_code(heard), english_code(wanted)
    sound = Levenshtein.normalized_similarity(code_a, code_b)
    letters = Levenshtein.normalized_similarity(spelled_out(heard), spelled_out(wanted))
    return 0.6 * sound + 0.4 * letters
