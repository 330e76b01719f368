"""That a tokenizer cuts text as the checkpoint was trained on: a fixed corpus, compared at build and at every load.

A space too many before a text, another pre-tokenizer or a library that changed gives ids that are valid and wrong: the
model still talks, only worse. The builder writes the ids of its own reference (models/build/tokens/reference.py).
"""

from __future__ import annotations

import json
from collections.abc import Sequence
from pathlib import Path
from typing import Final

from models.engines.llm.tokenizer import TextTokenizer
from models.errors import ModelMissing, TokenizerMismatch, fetch_command

FILE_NAME = "tokenizer_check.json"

CORPUS: Final = (
    "Set the driver temperature to 22 degrees, please!",
    " leading space, it's we'll I'M they've",
    "two  spaces   three    four\ttab\t\ttwo",
    "trailing space ",
    "line\nline\n\nparagraph\r\nwindows \n indented\n    four\n\t\ttabs\n",
    " ",
    "\n",
    "把主驾温度调到二十二度。",
    "打开车窗,然后导航去北京西站;别走高速!",
    "今天天气很好,我们去公园吧?\u3000全角空格(括号)《书名》",
    "混合 mixed 文本 with 中文 and English,温度 22.5°C",
    "𠮷野家 龘 㐀 繁體中文:請關閉車窗",
    "🚗🔋 👍🏽 👨‍👩‍👧‍👦 🇩🇪 ❤️ ok🙂",
    "naïve café Straße Ελληνικά Кириллица العربية עברית हिन्दी 한국어 日本語ひらがな",
    "zero\u200bwidth no\u00a0break \ufeffbom",
    "1234567890 3.14 1e-9 0x1F 192.168.0.1 12:30 ¥99 50%",
    "def f(x: int) -> int:\n    return x**2  # 注释\n\n\nclass A(B):\n\tpass\n",
    '{"name": "set_window", "arguments": {"percent": 50, "zone": "driver"}}',
    '{"name":"set_window","arguments":{"percent":50,"open":true,"list":[1,2,null]}}',
    "https://example.org/a?b=c&d=%20 __init__ CamelCaseWord snake_case a/b\\c <tag/> && ||",
    "SELECT * FROM t WHERE a >= 1; -- ok\nfor (int i = 0; i < n; ++i) { a[i] += 1; }",
    "!!! ... --- ??? ,,, ###",
    "<|im_start|>user\nhi<|im_end|>\n",
    "<start_of_turn>user\nhi<end_of_turn>\n",
    "a" * 50,
)
"""Mandarin, English, emoji, whitespace, code and JSON, and texts that look like control marks."""


def ids_of(tokenizer: TextTokenizer) -> list[list[int]]:
    """The ids of every text of CORPUS."""
    return [tokenizer.encode(text) for text in CORPUS]


def first_difference(tokenizer: TextTokenizer, expected: Sequence[Sequence[int]]) -> str:
    """What the first text of CORPUS is cut into instead of `expected`, or what it becomes on the way back; "" when all
    are as they should be.
    """
    for text, wanted, got in zip(CORPUS, expected, ids_of(tokenizer), strict=True):
        if got != list(wanted):
            return f"{text!r} gives {got}, the checkpoint's ids are {list(wanted)}"
        back = tokenizer.inner.decode(got, skip_special_tokens=False)
        if back != text:
            return f"{text!r} comes back from its ids {got} as {back!r}"
    return ""


def write(folder: Path, expected: Sequence[Sequence[int]]) -> None:
    """Keep `expected`, the ids of CORPUS, beside a build."""
    rows = [{"text": text, "ids": list(ids)} for text, ids in zip(CORPUS, expected, strict=True)]
    text = json.dumps({"format": 1, "corpus": rows}, ensure_ascii=False, indent=None)
    (folder / FILE_NAME).write_text(text + "\n", encoding="utf-8")


def check(folder: Path, tokenizer: TextTokenizer) -> None:
    """Compare with what the build in `folder` says; 1 to 3 ms.

    Raises ModelMissing where it says nothing readable, TokenizerMismatch with the first difference.
    """
    again = f"run: {fetch_command(folder.name)}"
    try:
        rows = json.loads((folder / FILE_NAME).read_text(encoding="utf-8"))["corpus"]
        texts, expected = [row["text"] for row in rows], [row["ids"] for row in rows]
    except (OSError, ValueError, TypeError, KeyError) as error:
        raise ModelMissing(f"{folder / FILE_NAME} is missing or not readable; {again}") from error
    if texts != list(CORPUS):
        raise TokenizerMismatch(f"{folder.name}: its tokenizer was checked with other texts; {again}")
    if difference := first_difference(tokenizer, expected):
        raise TokenizerMismatch(
            f"{folder.name}: its tokenizer does not cut text as the checkpoint's does: {difference}; "
            f"run: cockpit models build --force {folder.name}"
        )
