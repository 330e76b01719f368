"""Dispatchers over the configuration of `arbiter_config`, and a switch that ends runs by count."""

from __future__ import annotations

from copy import deepcopy
from typing import Any

import onnxruntime as ort

from cockpit.arbiter.arbiter import Arbiter
from cockpit.profile.orchestration import parse
from cockpit.scheduling.dispatcher import Dispatcher
from models.engines.preemption import RunSwitch
from tests.support.arbiter_config import GOOD


def dispatcher_of(**dialogue: Any) -> Dispatcher:
    mapping = deepcopy(GOOD)
    mapping["tasks"]["dialogue_task"].update(dialogue)
    config = parse(mapping).config
    assert config is not None
    return Dispatcher(Arbiter(config, 100 << 20))


class EveryOther(RunSwitch):
    """Ends the first, third, fifth... run of the threads inside `over_runs`, before its first node."""

    def __init__(self) -> None:
        super().__init__()
        self.runs = 0

    def began(self, options: ort.RunOptions) -> None:
        super().began(options)
        self.runs += 1
        options.terminate = self.runs % 2 == 1
