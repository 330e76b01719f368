"""transformers' reading of GGUF files, without what it does over and over."""

from __future__ import annotations

from collections.abc import Iterator
from contextlib import contextmanager
from functools import cache
from unittest import mock

import gguf


@contextmanager
def read_once() -> Iterator[None]:
    """transformers parses a file's fields twice, and makes its table of tensor names once for each module."""
    with (
        mock.patch.object(gguf, "GGUFReader", cache(gguf.GGUFReader)),
        mock.patch.object(gguf, "get_tensor_name_map", cache(gguf.get_tensor_name_map)),
    ):
        yield
