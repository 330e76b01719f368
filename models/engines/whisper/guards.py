"""What keeps Whisper's inventions over silence and noise out of the transcript."""

from __future__ import annotations

import zlib
from collections.abc import Sequence

NO_SPEECH_LIMIT = 0.5
LOGPROB_LIMIT = -1.0
NO_SPEECH_LOGPROB_LIMIT = -0.8
"""Noise, music, clicks and hums measured no_speech >= 0.45 with avg_logprob <= -1.1; the recorded commands, clean and
in noise down to 5 dB, no_speech <= 0.4 or avg_logprob >= -0.8."""
UNCLEAR_NO_SPEECH_LIMIT = 0.5
"""What is not believable below it was speech all the same. Single words that were dropped measured 0.04 to 0.67, two
thirds of them below 0.45; noise, tones, clicks, sirens and chords of hil/noise.py's kind 0.59 and more."""
COMPRESSION_LIMIT = 2.4
HALLUCINATIONS = frozenset(
    {"you", "thank you", "thanks for watching", "bye", "谢谢", "谢谢观看", "请不吝点赞订阅转发打赏"}
)
"""What Whisper writes over noise from habit. They count as heard only when there was hardly any doubt."""
HALLUCINATION_NO_SPEECH_LIMIT = 0.4
HALLUCINATION_LOGPROB_LIMIT = -0.6
MAX_REPEATS = 6


def believable(text: str, avg_logprob: float, no_speech: float) -> bool:
    """False for what Whisper writes over noise: unsure text, no word at all, its habits, text that repeats itself."""
    if avg_logprob < LOGPROB_LIMIT or (no_speech > NO_SPEECH_LIMIT and avg_logprob < NO_SPEECH_LOGPROB_LIMIT):
        return False
    words = "".join(c for c in text.lower() if c.isalnum() or c == " ").strip()
    if words in HALLUCINATIONS:
        return no_speech < HALLUCINATION_NO_SPEECH_LIMIT and avg_logprob > HALLUCINATION_LOGPROB_LIMIT
    if not words:
        return False
    raw = text.encode("utf-8")
    return len(raw) < 40 or len(raw) / len(zlib.compress(raw)) < COMPRESSION_LIMIT


def repeats(tokens: Sequence[int], times: int) -> bool:
    """True when `tokens` ends in one to four tokens said `times` times over."""
    for period in range(1, 5):
        tail = tokens[-period * times :]
        if len(tail) == period * times and list(tail) == list(tail[:period]) * times:
            return True
    return False
