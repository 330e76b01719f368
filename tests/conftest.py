"""Shared fixtures. Built models are made once per machine and kept in the cache (`COCKPIT_CACHE`)."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from typing import Any

import pytest

from models.engines.llm.tokenizer import TextTokenizer
from models.store.store import Store


@pytest.fixture(scope="session")
def model_store() -> Store:
    """The machine's own model store."""
    return Store.open()


@pytest.fixture(scope="session")
def model_dir(model_store: Store) -> Callable[[str], Path]:
    """`model_dir("whisper-base")`: its folder as an engine loads it, fetched and built on first use."""
    return model_store.ensure


@pytest.fixture(scope="session", autouse=True)
def vocabularies_read_once() -> Iterator[None]:
    """Forty tests load a language model: its vocabulary, which never changes, takes one to five seconds to read."""
    kept: dict[object, TextTokenizer] = {}
    load = TextTokenizer.load

    def load_once(model_dir: Path, **ids: Any) -> TextTokenizer:
        path = model_dir / "tokenizer.json"
        if not path.is_file():
            return load(model_dir, **ids)
        stat = path.stat()
        key = (path, stat.st_ino, stat.st_size, stat.st_mtime_ns, tuple(sorted(ids.items(), key=str)))
        if key not in kept:
            kept[key] = load(model_dir, **ids)
        return kept[key]

    with pytest.MonkeyPatch.context() as patch:
        patch.setattr(TextTokenizer, "load", load_once)
        yield
