"""Below its promise, each shipped profile pauses background work and nothing else, and takes it up again."""

from __future__ import annotations

import threading
import time

import pytest

from cockpit.arbiter.arbiter import Arbiter
from cockpit.arbiter.config import BACKGROUND, DIALOGUE
from cockpit.profile.load import load_profile
from cockpit.scheduling.dispatcher import Dispatcher
from tests.support.waiting import LONG_S, until

SECOND_NS = 1_000_000_000


@pytest.mark.parametrize("profile", ["cpu", "h200"])
def test_background_waits_while_the_promise_is_broken_and_goes_on_after(profile: str) -> None:
    config = load_profile(profile).arbiter
    assert config is not None
    promised = round(config.limits.min_token_per_second)
    dispatcher = Dispatcher(Arbiter(config, 1 << 30))
    arbiter, now_ns = dispatcher.arbiter, time.monotonic_ns()
    talking, background = arbiter.task_index[DIALOGUE], arbiter.task_index[BACKGROUND]
    for second in range(6):
        arbiter.floor.generated(talking, promised // 4, SECOND_NS, now_ns + second * SECOND_NS)
    assert dispatcher.status(verbose=False).degraded.paused == (BACKGROUND,)
    done = threading.Event()

    def work() -> None:
        with dispatcher.lease(BACKGROUND):
            done.set()

    thread = threading.Thread(target=work, daemon=True)
    thread.start()
    until(lambda: arbiter.queues.high_water[background] > 0)
    with dispatcher.lease(DIALOGUE):
        assert not done.is_set()
    assert not done.wait(0.6), "the dialogue's end does not free it either"
    for second in range(6, 40):
        arbiter.floor.generated(talking, promised * 3, SECOND_NS, now_ns + second * SECOND_NS)
    assert done.wait(LONG_S)
    thread.join(LONG_S)
    assert not dispatcher.status(verbose=False).degraded.active
