"""Grammars over token ids with llguidance: what a model may say next, without touching the whole vocabulary."""

from __future__ import annotations

import json
from collections.abc import Mapping, Sequence
from functools import lru_cache
from typing import Any

import numpy as np
from llguidance import LLMatcher, LLTokenizer
from numpy.typing import NDArray

from models.engines.llm.tokenizer import TextTokenizer
from models.errors import InputError

JSON_STYLE = {"whitespace_flexible": False, "item_separator": ", ", "key_separator": ": "}
"""One way to write each JSON text, the way models write it: most of its punctuation is then forced, so free."""
ALL_BITS = np.uint64(0xFFFFFFFFFFFFFFFF)
CACHED_GRAMMARS = 64


class Grammar:
    """A compiled grammar. Immutable; `start` gives each generation its own state."""

    def __init__(self, prototype: LLMatcher, vocab_size: int) -> None:
        self._prototype = prototype
        self._vocab_size = vocab_size

    @classmethod
    def compile(cls, source: Mapping[str, Any] | str, tokenizer: TextTokenizer) -> Grammar:
        """source: a JSON schema as a mapping, or a grammar in llguidance's Lark dialect as text. Cached by its text.

        Raises InputError with llguidance's words when the grammar is wrong.
        """
        if isinstance(source, str):
            return _compile("lark", source, tokenizer)
        return _compile("json", json.dumps(source, ensure_ascii=False, sort_keys=False), tokenizer)

    def start(self) -> GrammarConstraint:
        """A fresh state at the beginning of the text."""
        words = (self._vocab_size + 63) // 64
        return GrammarConstraint(self._prototype.deep_copy(), np.zeros(words, np.uint64), self._vocab_size)


@lru_cache(maxsize=CACHED_GRAMMARS)
def _compile(kind: str, text: str, tokenizer: TextTokenizer) -> Grammar:
    try:
        if kind == "json":
            grammar = LLMatcher.grammar_from_json_schema(text, overrides=JSON_STYLE)
        else:
            grammar = LLMatcher.grammar_from_lark(text)
    except ValueError as error:
        raise InputError(f"the grammar cannot be read: {error}") from error
    matcher = LLMatcher(_ll_tokenizer(tokenizer), grammar, log_level=0)
    if matcher.is_error():
        raise InputError(f"the grammar cannot be compiled: {matcher.get_error()}")
    return Grammar(matcher, tokenizer.vocab_size)


@lru_cache(maxsize=4)
def _ll_tokenizer(tokenizer: TextTokenizer) -> LLTokenizer:
    return LLTokenizer(tokenizer.inner.to_str(), n_vocab=tokenizer.vocab_size, eos_token=sorted(tokenizer.stop_ids))


class GrammarConstraint:
    """The state of one generation; implements TokenConstraint."""

    def __init__(self, matcher: LLMatcher, mask: NDArray[np.uint64], vocab_size: int) -> None:
        self._matcher = matcher
        self._mask = mask
        self._vocab_size = vocab_size

    def allowed(self) -> NDArray[np.int64] | None:
        """Ids that may come next, ascending. Work grows with their number, not with the vocabulary."""
        size_bytes = (self._vocab_size + 31) // 32 * 4  # llguidance takes words of 32 bits, and no byte more
        self._matcher.unsafe_compute_mask_ptr(self._mask.ctypes.data, size_bytes)
        self._check()
        used = np.flatnonzero(self._mask)
        if used.size == self._mask.size and bool((self._mask[:-1] == ALL_BITS).all()):
            return None
        bits = np.unpackbits(self._mask[used].view(np.uint8).reshape(-1, 8), axis=1, bitorder="little")
        rows, columns = np.nonzero(bits)
        ids = used[rows] * 64 + columns
        return ids[ids < self._vocab_size].astype(np.int64, copy=False)

    def forced(self) -> list[int]:
        """Ids that must come next; may be empty."""
        return list(self._matcher.compute_ff_tokens())

    def possible(self, tokens: Sequence[int]) -> int:
        """How many of `tokens`, from the first on, may come. Changes nothing."""
        return int(self._matcher.validate_tokens(list(tokens)))

    def advance(self, token: int) -> None:
        """Take `token`. Raises ValueError if it is not allowed."""
        if self._matcher.try_consume_tokens([token]) != 1:
            raise ValueError(f"token {token} is not allowed here")

    @property
    def done(self) -> bool:
        """True when nothing more may follow."""
        return bool(self._matcher.is_stopped())

    def _check(self) -> None:
        if self._matcher.is_error():
            raise InputError(f"the grammar failed while generating: {self._matcher.get_error()}")
