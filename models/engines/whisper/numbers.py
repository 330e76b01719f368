"""Numbers that are easily mistaken for each other by ear: nineteen and ninety, 十四 and 四十."""

from __future__ import annotations

from collections import defaultdict
from collections.abc import Mapping

from tokenizers import Tokenizer

from models.engines.whisper.decoder import Step

_WORDS = ("thir", "four", "fif", "six", "seven", "eigh", "nine")
_PAIRS = (
    *((f"{10 + unit}", f"{10 * unit}") for unit in range(3, 10)),
    *((f"{word}teen", "forty" if word == "four" else f"{word}ty") for word in _WORDS),
    ("四", "十"),
)


def confusable(tokenizer: Tokenizer) -> dict[int, frozenset[int]]:
    """Of each token that writes such a number, those that write the other one."""
    found: dict[int, set[int]] = defaultdict(set)
    for one, other in _PAIRS:
        first, second = _written(tokenizer, one), _written(tokenizer, other)
        for token in first:
            found[token] |= second
        for token in second:
            found[token] |= first
    return {token: frozenset(others) for token, others in found.items()}


def _written(tokenizer: Tokenizer, text: str) -> set[int]:
    """The single tokens that stand for `text`."""
    encoded = [
        tokenizer.encode(f"{lead}{form}", add_special_tokens=False).ids
        for lead in ("", " ")
        for form in (text, text.capitalize())
    ]
    return {ids[0] for ids in encoded if len(ids) == 1}


def margin_of(step: Step, token: int, others: Mapping[int, frozenset[int]]) -> float:
    """Nats by which `token` is likelier than the number it may be mistaken for; infinite where that is none of the
    best.
    """
    mistaken = others.get(token)
    if mistaken is None:  # nearly every token
        return float("inf")
    near = [
        float(step.values[0]) - float(value)
        for other, value in zip(step.ids[1:], step.values[1:], strict=True)
        if int(other) in mistaken
    ]
    return min(near, default=float("inf"))
