"""Shared fixtures. Built models are made once per machine and kept in the cache (`COCKPIT_CACHE`)."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path

import pytest

from models.store.store import Store


@pytest.fixture(scope="session")
def model_store() -> Store:
    """The machine's own model store."""
    return Store.open()


@pytest.fixture(scope="session")
def model_dir(model_store: Store) -> Callable[[str], Path]:
    """`model_dir("whisper-base")`: its folder as an engine loads it, fetched and built on first use."""
    return model_store.ensure
