"""What a service manager is told: over both kinds of socket, and by stages that go on or hang."""

from __future__ import annotations

import os
import threading
import time
from collections.abc import Iterator

import pytest

from cockpit.runtime import NullSink, Runtime
from cockpit.service.notify import Notifier
from cockpit.service.stages import chain
from cockpit.service.state import ServiceState
from cockpit.service.watchdog import Watchdog, Watched
from tests.support.fake_chain import fake_parts, utterance
from tests.support.paths import short_folder
from tests.support.service.processes import FakeManager
from tests.support.waiting import until


@pytest.fixture(params=[False, True], ids=["path", "abstract"])
def manager(request: pytest.FixtureRequest) -> Iterator[FakeManager]:
    with short_folder() as folder:
        made = FakeManager(folder, abstract=request.param)
        yield made
        made.close()


def test_each_message_has_the_fields_of_the_protocol(manager: FakeManager, monkeypatch: pytest.MonkeyPatch) -> None:
    monkeypatch.setenv("NOTIFY_SOCKET", manager.address)
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setenv("WATCHDOG_PID", str(os.getpid()))
    notifier = Notifier.from_environment()
    assert notifier.watchdog_s == 3.0
    assert not {"NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"} & set(os.environ), "they would reach child processes"
    before_usec = time.monotonic_ns() // 1000
    state = ServiceState(notifier)
    state.starting("loading llm")
    state.ready("listening")
    state.begin("no_microphone", "no input\ndevice")
    state.reloading("profile cpu")
    state.stopping("stopped by SIGTERM")
    notifier.alive()
    lacking = "[no_microphone: no input device]"
    until(lambda: len(manager.received()) == 6)
    loading, ready, mode, reload, stopping, alive = manager.received()
    assert loading == {"STATUS": "starting: loading llm", "EXTEND_TIMEOUT_USEC": "120000000"}
    assert ready == {"READY": "1", "STATUS": "ready: listening"}
    assert mode == {"STATUS": f"ready: listening {lacking}"}
    assert before_usec <= int(reload.pop("MONOTONIC_USEC")) <= time.monotonic_ns() // 1000
    assert reload == {"RELOADING": "1", "STATUS": f"reloading: profile cpu {lacking}"}
    assert stopping == {"STOPPING": "1", "STATUS": f"stopping: stopped by SIGTERM {lacking}"}
    assert alive == {"WATCHDOG": "1"}


def test_without_a_manager_or_for_another_process_nothing_is_sent(
    monkeypatch: pytest.MonkeyPatch, capsys: pytest.CaptureFixture[str]
) -> None:
    for name in ("NOTIFY_SOCKET", "WATCHDOG_USEC", "WATCHDOG_PID"):
        monkeypatch.delenv(name, raising=False)
    assert not Notifier.from_environment().present
    monkeypatch.setenv("NOTIFY_SOCKET", "vsock:2:1234")
    assert not Notifier.from_environment().present
    assert "is not used" in capsys.readouterr().err
    monkeypatch.setenv("NOTIFY_SOCKET", "/nonexistent/notify")
    monkeypatch.setenv("WATCHDOG_USEC", "3000000")
    monkeypatch.setenv("WATCHDOG_PID", "1")
    notifier = Notifier.from_environment()
    assert notifier.watchdog_s is None, "another process is watched"
    notifier.ready("listening")
    assert "was not told READY=1" in capsys.readouterr().err


def silent() -> ServiceState:
    return ServiceState(Notifier())


def test_a_stage_that_hangs_ends_the_feeding_and_one_that_goes_on_brings_it_back(manager: FakeManager) -> None:
    steps = {"asr": 0, "tts": 0}
    state = ServiceState(Notifier(manager.address))
    stages = [Watched("asr", lambda: steps["asr"]), Watched("tts", lambda: steps["tts"], waits=lambda: waits)]
    waits = False
    watchdog = Watchdog(state, stages, 12.0)  # a look a second; six without a step are too many
    for _ in range(20):
        steps["asr"] += 1
        steps["tts"] += 1
        assert watchdog.look()
    for look in range(20):
        steps["asr"] += 1
        assert watchdog.look() == (look < 5)
    until(lambda: manager.count("WATCHDOG") == 25)
    assert "no step for 6.0 s in tts" in state.status().modes["stalled"]
    waits = True
    steps["asr"] += 1
    assert watchdog.look(), "it waits for another stage: no step is due"
    assert not state.status().modes
    for _ in range(6):
        watchdog.look()
    assert state.status().modes["stalled"], "the other stage hangs"


def test_a_hanging_engine_is_found_in_the_running_chain() -> None:
    """The recogniser blocks: every other stage goes on looking for work, and the process is not fed all the same."""
    going = threading.Event()
    going.set()

    def hear(_samples: object) -> str:
        assert going.wait(60.0)
        return "Turn on the rear defroster."

    runtime = Runtime(fake_parts(NullSink(), hear))
    state = silent()
    watchdog = Watchdog(state, list(chain(runtime, None, state)), 1e9)
    watchdog._most_looks = 4  # looks are taken below, each after every other stage has made a step
    runtime.start()
    try:
        others = ("endpoint", "understand", "speak", "play", "guidance")

        def look() -> bool:
            before = {name: runtime.steps(name) for name in others}
            until(lambda: all(runtime.steps(name) > before[name] for name in others))
            return watchdog.look()

        assert all(look() for _ in range(6)), "an idle chain makes steps"
        going.clear()
        runtime.listen(utterance())
        until(lambda: runtime.edges.utterances.counts.got > 0)
        assert [look() for _ in range(6)][-1] is False
        assert "recognise (" in state.status().modes["stalled"], "it says where"
        assert "test_notify.py" in state.status().modes["stalled"] or "threading.py" in state.status().modes["stalled"]
        going.set()
        assert runtime.wait_idle()
        assert look()
        assert not state.status().modes
    finally:
        going.set()
        runtime.abort()


def test_the_watchdog_feeds_often_enough_to_outlive_a_stop_of_two_thirds_of_its_interval() -> None:
    for interval_s in (1.0, 9.0, 30.0, 600.0):
        watchdog = Watchdog(silent(), [], interval_s)
        assert watchdog._look_s + interval_s * 2 / 3 < interval_s
        stall_s = watchdog._look_s * watchdog._most_looks
        assert stall_s <= interval_s * 0.75
