"""Display text to spoken text: markup, addresses and pictures go here, numbers and signs in each language."""

from __future__ import annotations

import re

from pipeline.frames import Language
from pipeline.tts import normalise_en as spoken_en
from pipeline.tts import normalise_zh as spoken_zh
from pipeline.tts import units_en, units_zh

_PUNCTUATION = frozenset("！（），：；？")
"""Full-width signs that stay: they mark clauses in Chinese."""
_FULL_WIDTH = {code: code - 0xFEE0 for code in range(0xFF01, 0xFF5F) if chr(code) not in _PUNCTUATION}
_SAME_SIGN = {
    ord(sign): to
    for to, signs in {
        "-": "‐‑‒−﹣",
        "'": "’‘ʼ",
        '"': "“”",
        " ": "\u00a0\u2009\u202f\u3000\t",
        "~": "〜∼",
        "/": "∕⁄",
        "¥": "￥",
        "°": "º˚",
    }.items()
    for sign in signs
}
_NORMALISE = _FULL_WIDTH | _SAME_SIGN | {ord("℃"): "°C", ord("℉"): "°F", ord("…"): "...", ord("№"): "No. "}

# Pictures, arrows' emoji forms, flags, skin tones, joiners, variation selectors, keycap, dingbats, private use.
_PICTURES = re.compile(
    "[\U0001f000-\U0001faff\U000e0000-\U000e007f\u2190-\u21ff\u2300-\u23ff\u2460-\u24ff\u2500-\u27bf\u2900-\u297f"
    "\u2b00-\u2bff\u20e3\u200b-\u200f\u2028-\u202e\u2060-\u206f\ufe00-\ufe0f\ufeff\ue000-\uf8ff\x00-\x08\x0b-\x1f\x7f]+"
)
_MARKUP: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern, re.MULTILINE), replacement)
    for pattern, replacement in (
        (r"!\[([^\]]{0,200})\]\([^)]*\)", ""),  # image
        (r"\[([^\]]{1,200})\]\([^)]*\)", r"\1"),  # link
        (r"\[\^?\d+\]", ""),  # footnote, citation
        (r"<(https?://[^>\s]+)>", r"\1"),
        (r"</?[A-Za-z][^<>]{0,80}>", " "),  # tags
        (r"<\|[^|<>]{0,40}\|>", " "),
        (r"^\s{0,3}(?:[-*_]\s*){3,}$", ""),  # rule
        (r"^\s{0,3}\|?(?:\s*:?-{2,}:?\s*\|)+\s*:?-*:?\s*$", ""),  # the line below a table's head
        (r"^\s{0,3}#{1,6}\s+", ""),
        (r"^\s*>+\s?", ""),
        (r"^\s*[-*+•·]\s+", ""),
        (r"^\s*(\d{1,2})[.)]\s+", r"\1, "),
        (r"\*{1,3}(?=\S)([^*\n]+?)(?<=\S)\*{1,3}", r"\1"),
        (r"(?<!\w)_{1,3}(?=\S)([^_\n]+?)(?<=\S)_{1,3}(?!\w)", r"\1"),
        (r"~~(.+?)~~", r"\1"),
        (r"`+([^`\n]*)`+", r"\1"),
        (r"\*{2,3}|`+", ""),
        (r"\s*\|\s*", ", "),
        (r"\\([\\`*_{}\[\]()#+.!-])", r"\1"),
    )
)
_MEASURED = sorted(
    {*units_en.UNITS, *(word for names in units_en.UNITS.values() for word in names), *units_en.CURRENCIES}
    | {*units_zh.UNITS, *units_zh.UNITS.values(), *units_zh.CURRENCIES, "%", "度"},
    key=len,
    reverse=True,
)
_WRITTEN: tuple[tuple[re.Pattern[str], str], ...] = tuple(
    (re.compile(pattern), replacement)
    for pattern, replacement in (
        (r"(?<=\d)：(?=\d)", ":"),
        (r"(?<=[０-９])，(?=[０-９]{3}(?!\d))", ","),
        # a decimal comma: a quantity of any number of decimals but three, or less than one
        (
            r"(?<![\d.,])(?:(\d+),(?=\d{1,2}(?!\d)|\d{4})|(0),(?=\d))"
            rf"(?=\d+\s?(?:[-–~至到]\s?\d+,\d+\s?)?(?:{'|'.join(map(re.escape, _MEASURED))})(?![A-Za-z]))",
            r"\1\2.",
        ),
    )
)
"""How numbers are written in other places, before markup is taken out."""
_POWER = re.compile(r"(?<=\d)\s*(?:\*\*|\^)\s*(\d+)")
_TIMES = re.compile(r"(?<=[\d)])(\s?[A-Za-z°%]{0,3})\s*\*\s*(?=[\d(])")
_ADDRESS = re.compile(
    r"(?:[a-z][a-z0-9+.-]{0,20}://|www\.)(?P<host>[a-z0-9-]+(?:\.[a-z0-9-]+)+|[a-z0-9-]+)(?::\d+)?(?:/[^\s，。！？；）)\u3400-\u9fff]*)?",
    re.I | re.A,
)
_MAIL = re.compile(r"\b(?P<user>[\w.+-]{1,64})@(?P<host>[a-z0-9-]+(?:\.[a-z0-9-]+)+)", re.I | re.A)
_LINE_BREAKS = re.compile(r"\s*\n\s*")
_SPACE_RUNS = re.compile(r" {2,}")
_SPACES = re.compile(r"\s+")
_HAS_SOUND = re.compile(r"[^\W_]")


def spoken(text: str, language: Language) -> str:
    """What the voice should say for `text`: words and clause punctuation, no digits. Empty when that is nothing."""
    rules = spoken_zh if language == "zh" else spoken_en
    for pattern, replacement in _WRITTEN:
        text = pattern.sub(replacement, text)
    text = text.translate(_NORMALISE)
    # the rules of markup look for the beginning of a line: each of many blank ones would be tried against all behind it
    text = "\n".join(line for line in _SPACE_RUNS.sub(" ", text).split("\n") if line.strip())
    text = _TIMES.sub(r"\1 × ", _POWER.sub(rules.POWER, text))
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    text = _MAIL.sub(lambda m: rules.address(m["user"]) + rules.AT + rules.address(m["host"]), text)
    text = _ADDRESS.sub(lambda m: rules.address(m["host"].lower().removeprefix("www.")), text)
    text = rules.before_pictures(text)
    text = _PICTURES.sub(" ", text)
    text = _LINE_BREAKS.sub(", ", text.strip())
    text = _SPACES.sub(" ", rules.normalise(_SPACES.sub(" ", text).strip())).strip()
    return text if _HAS_SOUND.search(text) else ""
