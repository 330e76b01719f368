"""The page's server over a chain that hears and says nothing by itself."""

from __future__ import annotations

from collections.abc import Iterator

import pytest

from tests.support.fake_chain import RecordingSink
from tests.support.headunit.followed_chain import Chain
from tests.support.headunit.panel import ServedPanel
from tests.support.paths import short_folder


@pytest.fixture(scope="module")
def served() -> Iterator[ServedPanel]:
    with short_folder() as folder:
        made = ServedPanel(Chain(RecordingSink()), folder)
        yield made
        made.close()
        made.chain.close()
