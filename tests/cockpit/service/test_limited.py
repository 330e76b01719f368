"""Without a model: one plain command is done, everything else is refused; and the program that stands in so."""

from __future__ import annotations

import json
import signal
from collections.abc import Callable, Iterator
from pathlib import Path

import pytest

from cockpit.scheduling.control_socket import ControlClient
from cockpit.service.limited import LimitedAnswers
from cockpit.service.notify import Notifier
from cockpit.service.state import ServiceState
from models.errors import InputError
from pipeline.dialogue.manager import DialogueManager
from pipeline.nlg.device_notices import ONLY_PLAIN
from pipeline.vehicle.signals import EmbeddedTree
from tests.support.paths import short_folder
from tests.support.service.processes import START_S, FakeManager, ServedProcess
from tests.support.waiting import until

DEFROSTER = "Vehicle.Cabin.HVAC.IsRearDefrosterActive"


@pytest.fixture(scope="module")
def car() -> EmbeddedTree:
    return EmbeddedTree()


@pytest.fixture(scope="module")
def answers(car: EmbeddedTree) -> LimitedAnswers:
    return LimitedAnswers(ServiceState(Notifier()), DialogueManager.create(car, by_sound=False))


def asked(answers: LimitedAnswers, text: str, language: str = "en") -> dict[str, object]:
    reply = json.loads(answers.answer(json.dumps({"op": "ask", "text": text, "language": language}).encode()))
    assert reply.pop("ok")
    return dict(reply)


def test_a_plain_command_is_done_and_read_back(answers: LimitedAnswers, car: EmbeddedTree) -> None:
    assert car.read(DEFROSTER) is False
    assert asked(answers, "Turn on the rear defroster.") == {"reply": "The rear defroster is on.", "acted": True}
    assert car.read(DEFROSTER) is True
    assert asked(answers, "关闭后窗除霜", "zh")["acted"]
    assert car.read(DEFROSTER) is False


@pytest.mark.parametrize(
    "text",
    [
        "Why is the sky blue?",
        "I read that you turn on the rear defroster in winter and then open the sunroof.",
        "Turn on the rear defroster and open the sunroof.",
        "banana",
    ],
)
def test_what_needs_a_model_is_refused(answers: LimitedAnswers, car: EmbeddedTree, text: str) -> None:
    assert asked(answers, text) == {"reply": ONLY_PLAIN["en"], "acted": False}
    assert car.read(DEFROSTER) is False


@pytest.mark.parametrize(
    ("line", "error"),
    [
        (b"{", "not a JSON line"),
        (b"[]", "unknown op None"),
        (b'{"op": "evict"}', "without models there are: status, ask"),
        (b'{"op": "ask", "text": " ", "language": "en"}', "nothing to do"),
        (b'{"op": "ask", "text": "hello", "language": "fr"}', "known: en, zh"),
    ],
)
def test_wrong_requests_are_answered(answers: LimitedAnswers, line: bytes, error: str) -> None:
    reply = json.loads(answers.answer(line))
    assert not reply["ok"]
    assert error in reply["error"]


@pytest.fixture
def folder(model_dir: Callable[[str], Path]) -> Iterator[Path]:
    model_dir("espeak-ng")
    with short_folder() as made:
        yield made


def test_the_program_says_it_once_and_answers(folder: Path) -> None:
    manager = FakeManager(folder)
    child = ServedProcess(folder, "degraded", manager=manager, watchdog_s=9.0)
    try:
        (child.audio / "no-output").touch()
        until(lambda: child.alive() and manager.count("READY"), within_s=START_S)
        until(lambda: any("no_speaker" in status for status in manager.statuses()))
        client = ControlClient(child.control)
        assert client.ask("ask", text="Turn on the rear defroster.", language="en")["acted"]
        assert "no_speaker" in client.ask("status")["service"]["text"]
        with pytest.raises(InputError, match="without models"):
            client.ask("evict", session="x")
        client.close()
        (child.audio / "no-output").unlink()
        until(lambda: child.alive() and "no_speaker" not in manager.statuses()[-1])
        until(lambda: child.alive() and "voice is limited" in child.log)
        assert "cannot be said" not in child.log
        until(lambda: child.alive() and manager.count("WATCHDOG") > 1)
    finally:
        code = child.end()
        manager.close()
    assert code == 128 + signal.SIGTERM
    assert not child.control.exists()
