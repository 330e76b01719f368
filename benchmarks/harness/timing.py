"""Times of token streams."""

from __future__ import annotations

import time
from collections.abc import Iterator
from typing import Any


def tokens_per_s(stream: Iterator[Any], start_s: float, prompt_tokens: int, decode_tokens: int) -> tuple[float, float]:
    """(prefill, decode) tokens per second of a stream whose first token ends prefill. start_s: of `perf_counter`."""
    next(stream)
    first_s = time.perf_counter()
    count = 0
    for count, _ in enumerate(stream, start=1):
        if count == decode_tokens - 1:
            break
    end_s = time.perf_counter()
    return prompt_tokens / (first_s - start_s), count / (end_s - first_s)
