"""Free talk from its source to what may be spoken: pieces of text in, allowed pieces out."""

from __future__ import annotations

from collections.abc import Callable, Iterator

from models.engines.llm.tokenizer import TextTokenizer
from pipeline.dialogue.chat_guard import TalkFilter

Words = Callable[[Callable[[], bool]], Iterator[str]]
"""A source: called with a function that says whether to stop, it gives the pieces of an answer. Raises AnswerCut."""


class AnswerCut(Exception):
    """The answer ended before it was whole. failed: its source broke down, so that another one may answer instead."""

    def __init__(self, reason: str, *, failed: bool = False) -> None:
        super().__init__(reason)
        self.failed = failed


def model_words(tokens: Iterator[int], tokenizer: TextTokenizer, most: int) -> Iterator[str]:
    """Text of a model's tokens; a piece may be empty. Raises AnswerCut after `most` tokens."""
    stream, count = tokenizer.stream(), 0
    for token in tokens:
        count += 1
        yield stream.push(token)
    rest = stream.finish()
    if rest:
        yield rest
    if count == most:
        raise AnswerCut(f"{most} tokens")


def allowed(words: Iterator[str], talk: TalkFilter, over: Callable[[], bool]) -> Iterator[str]:
    """What of `words` may be spoken, to the end of the answer unless it is `over`.

    Raises AnswerCut where the source failed before anything was spoken.
    """
    cut = False
    try:
        for piece in words:
            spoken = talk.push(piece)
            if spoken:
                yield spoken
            if talk.done:
                break
    except AnswerCut as reason:
        if reason.failed and not talk.said.strip():
            raise
        cut = True
    if over():
        return
    rest = talk.close(cut=cut)
    if rest:
        yield rest
