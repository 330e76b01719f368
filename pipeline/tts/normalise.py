"""Display text to spoken text: markup, addresses and pictures go here, numbers and signs in each language."""

from __future__ import annotations

import re

from pipeline.frames import Language
from pipeline.tts import normalise_en as spoken_en
from pipeline.tts import normalise_zh as spoken_zh

_FULL_WIDTH = {code: code - 0xFEE0 for code in (*range(0xFF10, 0xFF1A), *range(0xFF21, 0xFF3B), *range(0xFF41, 0xFF5B))}
_SAME_SIGN = {
    ord(sign): to
    for to, signs in {
        "-": "‐‑‒−﹣－",
        "'": "’‘ʼ",
        '"': "“”",
        " ": "\u00a0\u2009\u202f\u3000\t",
        "%": "％",
        "~": "～〜∼",
        "/": "／∕⁄",
        "¥": "￥",
        "+": "＋",
        "=": "＝",
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
        (r"!\[([^\]]*)\]\([^)]*\)", ""),  # image
        (r"\[([^\]]+)\]\([^)]*\)", r"\1"),  # link
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
_ADDRESS = re.compile(
    r"(?:[a-z][a-z0-9+.-]*://|www\.)(?P<host>[a-z0-9-]+(?:\.[a-z0-9-]+)+|[a-z0-9-]+)(?::\d+)?(?:/[^\s，。！？；）)\u3400-\u9fff]*)?",
    re.I | re.A,
)
_MAIL = re.compile(r"\b(?P<user>[\w.+-]+)@(?P<host>[a-z0-9-]+(?:\.[a-z0-9-]+)+)", re.I | re.A)
_LINE_BREAKS = re.compile(r"\s*\n\s*")
_SPACES = re.compile(r"\s+")
_HAS_SOUND = re.compile(r"[^\W_]")


def spoken(text: str, language: Language) -> str:
    """What the voice should say for `text`: words and clause punctuation, no digits. Empty when that is nothing."""
    rules = spoken_zh if language == "zh" else spoken_en
    text = text.translate(_NORMALISE)
    for pattern, replacement in _MARKUP:
        text = pattern.sub(replacement, text)
    text = _MAIL.sub(lambda m: rules.address(m["user"]) + rules.AT + rules.address(m["host"]), text)
    text = _ADDRESS.sub(lambda m: rules.address(m["host"].lower().removeprefix("www.")), text)
    text = rules.before_pictures(text)
    text = _PICTURES.sub(" ", text)
    text = _LINE_BREAKS.sub(", ", text.strip())
    text = _SPACES.sub(" ", rules.normalise(_SPACES.sub(" ", text).strip())).strip()
    return text if _HAS_SOUND.search(text) else ""
