"""What tests of the assembled process share."""

from __future__ import annotations

from collections.abc import Iterator
from dataclasses import replace
from pathlib import Path

import pytest

from cockpit.assemble import Assembly
from cockpit.runtime import NullSink, Runtime
from tests.support.paths import short_folder


@pytest.fixture
def folder() -> Iterator[Path]:
    """An empty folder whose path is short enough for a socket."""
    with short_folder() as made:
        yield made


@pytest.fixture
def runtime(assembly: Assembly) -> Iterator[Runtime]:
    """A started chain without a speaker, on the stages of the module's own `assembly`."""
    made = Runtime(replace(assembly.parts, sink=NullSink()))
    made.start()
    yield made
    made.stop()
