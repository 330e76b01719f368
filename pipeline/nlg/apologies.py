"""What is said when the car's own software failed."""

from __future__ import annotations

from pipeline.frames import Language

SAY_AGAIN: dict[Language, str] = {
    "en": "Sorry, something went wrong. Please say that again.",
    "zh": "抱歉，出了点问题，请再说一遍。",
}
"""Nothing was done, or it was taken back."""

NOT_TAKEN_BACK: dict[Language, str] = {
    "en": "Sorry, something went wrong, and I could not take back what I had begun. Please check it.",
    "zh": "抱歉，出了点问题，已经开始的操作没能撤回，请您检查一下。",
}
"""Part of the turn may have been done."""

UNCLEAR: dict[Language, str] = {
    "en": "Please say that again.",
    "zh": "请再说一遍。",
}
"""Something was said, and the recogniser could not tell what."""

NO_WORDS: dict[Language, str] = {
    "en": "I have no answer to that.",
    "zh": "这个我答不上来。",
}
"""A reply held nothing that can be spoken: a picture, a rule, signs."""

ANSWER_LOST: dict[Language, str] = {
    "en": "Sorry, my answer was lost.",
    "zh": "抱歉，我没能把回答说完。",
}
"""The turn was carried out, and its answer could not be spoken."""
