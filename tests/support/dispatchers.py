"""Dispatchers over the configuration of `arbiter_config`."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

from cockpit.arbiter.arbiter import Arbiter
from cockpit.profile.orchestration import parse
from cockpit.scheduling.dispatcher import Dispatcher
from tests.support.arbiter_config import GOOD


def dispatcher_of(**dialogue: Any) -> Dispatcher:
    mapping = deepcopy(GOOD)
    mapping["tasks"]["dialogue_task"].update(dialogue)
    config = parse(mapping).config
    assert config is not None
    return Dispatcher(Arbiter(config, 100 << 20))
