"""A label space and a feature reader with a small tokenizer: nothing here is trained or loaded."""

from __future__ import annotations

import pytest

from pipeline.nlu.lexicon import build_lexicon
from pipeline.nlu.parser.features import FeatureReader, tag_names
from pipeline.nlu.parser.labels import Space
from pipeline.vehicle.places import load_places
from tests.support.nlu.parser_scores import SmallTokenizer


@pytest.fixture(scope="session")
def space() -> Space:
    return Space.of([0.0, 100.0, -10.0, 50.0])


@pytest.fixture(scope="session")
def features(space: Space) -> FeatureReader:
    return FeatureReader(SmallTokenizer(), tag_names(), space.tools[1:], build_lexicon(load_places(), by_sound=False))
