"""The real `cockpit serve` under a fake service manager: from the first status to the last."""

from __future__ import annotations

import os
import re
import signal
import subprocess
import sys
import time
from collections.abc import Iterator
from pathlib import Path

import pytest

from cockpit.client import Cockpit
from tests.support.paths import AUDIO, ROOT, short_folder
from tests.support.service.processes import START_S, FakeManager, ServedProcess
from tests.support.waiting import until

WATCHDOG_S = 9.0
"""Of the unit it is 30 s: every time below is shorter by the same share."""
FREEZE_S = 6.0
BEHIND_LOSS_S = 8.0
"""Speech right behind lost sound is asked for again, since its beginning may be missing, and over the words that tell
of it the microphone is not heard, since the canceller learns the echo anew: so commands come later."""


@pytest.fixture(scope="module")
def folder(served_models: None) -> Iterator[Path]:
    with short_folder() as made:
        yield made


@pytest.fixture(scope="module")
def manager(folder: Path) -> Iterator[FakeManager]:
    made = FakeManager(folder)
    yield made
    made.close()


@pytest.fixture(scope="module")
def profile(folder: Path) -> Path:
    path = folder / "car.yaml"
    path.write_text("extends: cpu\n")
    return path


@pytest.fixture(scope="module")
def served(folder: Path, manager: FakeManager, profile: Path) -> Iterator[ServedProcess]:
    """One process for all tests of this module, in their order."""
    made = ServedProcess(folder, "serve", "--profile", profile, manager=manager, watchdog_s=WATCHDOG_S)
    yield made
    made.end()


def test_it_is_ready_when_it_is_warm_and_not_before(served: ServedProcess, manager: FakeManager) -> None:
    until(lambda: served.alive() and manager.count("READY"), within_s=START_S)
    messages = manager.received()
    ready = next(number for number, message in enumerate(messages) if "READY" in message)
    phases = [message["STATUS"].partition("loading ")[2] for message in messages[:ready]]
    assert phases[0] == "the program"
    for earlier, later in (("lanes", "asr"), ("asr", "llm"), ("llm", "tts"), ("tts", "prefix")):
        assert phases.index(earlier) < phases.index(later)
    assert all("EXTEND_TIMEOUT_USEC" in message for message in messages[:ready])
    assert not any("WATCHDOG" in message for message in messages[:ready])
    assert messages[ready]["STATUS"] == "ready: listening on fake"
    assert served.control.exists()
    assert served.api.exists(), "requests are taken"
    asked = subprocess.run(
        [sys.executable, "-m", "cockpit.cli.o3ctl", "status", "--socket", str(served.control)],
        capture_output=True, text=True, cwd=ROOT, check=True, env={**os.environ, "PYTHONPATH": str(ROOT)},
    )  # fmt: skip
    assert "ready: listening on fake" in asked.stdout
    assert "echo is" in asked.stdout


def test_a_head_unit_handles_the_real_devices_and_reads_what_they_do(served: ServedProcess) -> None:
    client = Cockpit(str(served.api))
    assert client.control("volume", volume=0.5)["volume"] == 0.5
    assert client.control("language", language="en")["language"] == "en"
    assert client.control("language", language="auto")["language"] == "auto"
    state = next(client.events("state"))
    assert (state["state"], state["muted"], state["talking"], state["volume"]) == ("idle", False, False, 0.5)
    status = client.ask("GET", "/v1/status")
    assert {task["name"] for task in status["arbiter"]["tasks"]} >= {"dialogue_task", "navigation_task"}
    assert status["profile"]["values"]["vehicle"]["backend"] == "embedded"
    with client._send("GET", "/metrics", None) as answer:
        metrics = answer.read().decode()
    for series in ('cockpit_audio_xruns_total{device="microphone"}', 'cockpit_task_sla_seconds{task="dialogue"}'):
        assert series in metrics
    client.control("volume", volume=1.0)


def test_the_watchdog_is_fed_while_it_idles(served: ServedProcess, manager: FakeManager) -> None:
    before = manager.count("WATCHDOG")
    until(lambda: served.alive() and manager.count("WATCHDOG") > before + 2)


def acted(served: ServedProcess) -> int:
    return sum("calls done" in line for line in served.turns())


def test_a_frozen_process_answers_every_command_once(served: ServedProcess, manager: FakeManager) -> None:
    """Stopped right behind a command, for two thirds of the watchdog's interval; then another command."""
    served.say(AUDIO / "en01.wav")
    until(lambda: served.alive() and served.heard())
    served.send(signal.SIGSTOP)
    fed = manager.count("WATCHDOG")
    time.sleep(FREEZE_S)
    assert manager.count("WATCHDOG") == fed, "nothing moves in a stopped process"
    served.send(signal.SIGCONT)
    until(lambda: served.alive() and acted(served) == 1, within_s=START_S)
    time.sleep(BEHIND_LOSS_S)
    served.say(AUDIO / "en05.wav")
    until(lambda: served.alive() and acted(served) == 2, within_s=START_S)
    until(lambda: served.alive() and manager.count("WATCHDOG") > fed + 3)
    assert acted(served) == 2, served.log
    assert not any("stalled" in status for status in manager.statuses())
    assert "halfway" not in served.log, "nothing of what was heard is in the journal"


def test_a_microphone_that_goes_and_comes_back_is_told_and_heard_again(
    served: ServedProcess, manager: FakeManager
) -> None:
    before = acted(served)
    (served.audio / "no-input").touch()
    until(lambda: served.alive() and "no_microphone: " in manager.statuses()[-1], within_s=START_S)
    (served.audio / "no-input").unlink()
    until(lambda: served.alive() and "no_microphone" not in manager.statuses()[-1], within_s=START_S)
    time.sleep(BEHIND_LOSS_S)
    served.say(AUDIO / "en02.wav")
    until(lambda: served.alive() and acted(served) == before + 1, within_s=START_S)


def test_a_hangup_reads_the_profile_again(served: ServedProcess, manager: FakeManager, profile: Path) -> None:
    def reloaded() -> str:
        """What the newest reload came to, once it is over."""
        before = manager.count("RELOADING"), manager.count("READY")
        served.send(signal.SIGHUP)
        until(lambda: served.alive() and manager.count("READY") > before[1])
        assert manager.count("RELOADING") == before[0] + 1
        reload = next(message for message in reversed(manager.received()) if "RELOADING" in message)
        assert int(reload["MONOTONIC_USEC"]) <= time.monotonic_ns() // 1000
        told = next(message for message in reversed(manager.received()) if "READY" in message)
        return told["STATUS"].partition("; reload: ")[2]

    assert reloaded() == "nothing has changed"
    profile.write_text("extends: cpu\ntts: {speed: 1.2}\n")
    assert reloaded() == "after a restart only: tts.speed"
    profile.write_text("extends: cpu\nspeed: fast\n")
    assert re.match(r"the profile is wrong, the one in force stays: .*car.yaml:2", reloaded())


def test_its_end_is_told_first(served: ServedProcess, manager: FakeManager) -> None:
    assert served.end() == 128 + signal.SIGTERM
    last = [message for message in manager.received() if "WATCHDOG" not in message][-1]
    assert last == {"STOPPING": "1", "STATUS": last["STATUS"]}
    assert last["STATUS"].startswith("stopping: stopped by SIGTERM")
    assert not served.control.exists()
    assert not served.api.exists()
