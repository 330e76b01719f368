"""Text to token ids and back, with the checkpoint's own tokenizer.json."""

from __future__ import annotations

from collections.abc import Sequence
from functools import cached_property
from pathlib import Path

from tokenizers import Tokenizer

from models.errors import ModelMissing, fetch_command

REPLACEMENT = "�"


class TextTokenizer:
    """Wraps a `tokenizers.Tokenizer`. Thread-safe for reading."""

    def __init__(self, inner: Tokenizer, bos_id: int | None, vocab_size: int, stop_ids: frozenset[int]) -> None:
        self.inner = inner
        self.vocab_size = vocab_size
        self.stop_ids = stop_ids
        self._bos_id = bos_id

    @classmethod
    def load(cls, model_dir: Path, *, bos_id: int | None, vocab_size: int, stop_ids: frozenset[int]) -> TextTokenizer:
        """bos_id: the id that `add_special` puts first, None where the checkpoint wants none.

        vocab_size: ids the model scores (the text vocabulary may be smaller). Raises ModelMissing.
        """
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            raise ModelMissing(f"{path} is missing; run: {fetch_command(model_dir.name)}")
        return cls(Tokenizer.from_file(str(path)), bos_id, vocab_size, stop_ids)

    def encode(self, text: str, add_special: bool = False) -> list[int]:
        """Token ids of `text`; special tokens written in it are recognised. add_special: put the start token first."""
        ids = list(self.inner.encode(text, add_special_tokens=False).ids)
        return [self._bos_id, *ids] if add_special and self._bos_id is not None else ids

    def encode_plain(self, text: str, add_special: bool = False) -> list[int]:
        """Token ids of `text` as data: whatever stands in it, no control token comes out. For words from outside.

        add_special: put the start token first.
        """
        ids = list(self._plain.encode(text, add_special_tokens=False).ids)
        return [self._bos_id, *ids] if add_special and self._bos_id is not None else ids

    @cached_property
    def _plain(self) -> Tokenizer:
        """The same vocabulary and steps without its added tokens, so that none of them can be written."""
        plain = Tokenizer(self.inner.model)  # shared, not copied: a large vocabulary takes seconds to read again
        for step in ("normalizer", "pre_tokenizer", "decoder"):
            if getattr(self.inner, step) is not None:
                setattr(plain, step, getattr(self.inner, step))
        return plain

    def decode(self, ids: Sequence[int]) -> str:
        """Text of `ids`; special tokens are left out, bytes that are no UTF-8 become U+FFFD."""
        text: str = self.inner.decode(list(ids), skip_special_tokens=True)
        return text

    def stream(self) -> TextStream:
        """A new incremental decoder."""
        return TextStream(self)


class TextStream:
    """Turns tokens into text one by one and never shows half a UTF-8 character.

    Keeps only the tokens of the unfinished tail plus the last finished ones, so its cost does not grow with the text.
    """

    def __init__(self, tokenizer: TextTokenizer) -> None:
        self._tokenizer = tokenizer
        self._context: list[int] = []
        self._pending: list[int] = []

    def push(self, token: int) -> str:
        """Add one token; returns the text it completes, "" while a character is unfinished."""
        self._pending.append(token)
        text = self._new_text()
        if text.endswith(REPLACEMENT) and len(self._pending) < MAX_PENDING:
            return ""
        self._context, self._pending = self._pending, []
        return text

    def finish(self) -> str:
        """What is left at the end of the text, with U+FFFD for a character that never became whole."""
        text = self._new_text() if self._pending else ""
        self._context, self._pending = [], []
        return text

    def _new_text(self) -> str:
        before = self._tokenizer.decode(self._context)
        return self._tokenizer.decode([*self._context, *self._pending])[len(before) :]


MAX_PENDING = 8
"""More byte tokens than any UTF-8 character has: a longer tail is not going to become whole."""
