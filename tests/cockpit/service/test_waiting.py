"""What may come is waited for, what cannot is not; and what is said about it, once."""

from __future__ import annotations

import pytest

from cockpit.service.devices import DeviceNotices
from cockpit.service.notify import Notifier
from cockpit.service.retry import until_there
from cockpit.service.state import ServiceState
from models.errors import BrokerAbsent, DeviceAbsent, GpuAbsent, InputError, ModelMissing
from pipeline.backoff import Backoff
from pipeline.frames import GuidancePrompt
from pipeline.nlg.device_notices import MICROPHONE_BACK, MICROPHONE_LOST


def test_a_gpu_or_broker_that_is_late_is_waited_for_in_ever_longer_intervals() -> None:
    absent = [GpuAbsent("no GPU yet"), GpuAbsent("no GPU yet"), BrokerAbsent("no broker yet")]
    told: list[DeviceAbsent] = []
    slept: list[float] = []

    def make() -> str:
        if absent:
            raise absent.pop(0)
        return "assembled"

    made = until_there(make, told.append, backoff=Backoff(0.5, 15.0, chance=lambda: 0.0), sleep=slept.append)
    assert made == "assembled"
    assert [type(error) for error in told] == [GpuAbsent, GpuAbsent, BrokerAbsent]
    assert slept == [0.5, 1.0, 2.0]


def test_what_no_waiting_mends_is_raised_at_once() -> None:
    def make() -> str:
        raise ModelMissing("whisper-base is not built")

    with pytest.raises(ModelMissing):
        until_there(make, lambda error: pytest.fail(str(error)), sleep=lambda seconds: pytest.fail("it waits"))


def test_the_driver_is_told_once_that_nobody_hears_him_and_once_that_somebody_does() -> None:
    state = ServiceState(Notifier())
    shown: list[str] = []
    said: list[str] = []
    notices = DeviceNotices(state, "en", shown.append)
    notices.microphone.lost("no input device")  # at boot, before there is a voice
    assert not said
    notices.speak_through(lambda prompt: said.append(prompt.text))
    notices.microphone.lost("no input device")
    notices.microphone.lost("cannot open it")
    assert said == [MICROPHONE_LOST["en"]]
    assert state.status().modes == {"no_microphone": "cannot open it"}
    notices.microphone.back("headset")
    assert said == [MICROPHONE_LOST["en"], MICROPHONE_BACK["en"]]
    assert shown == ["headset"]
    assert not state.status().modes
    notices.microphone.back("headset")
    notices.speaker.lost("no output device")
    assert len(said) == 2, "a speaker that is gone cannot say so"
    assert "no_speaker" in state.status().modes
    notices.speaker.back("headset")
    assert not state.status().modes


def test_a_notice_that_cannot_be_spoken_harms_nothing(caplog: pytest.LogCaptureFixture) -> None:
    state = ServiceState(Notifier())

    def refuse(_prompt: GuidancePrompt) -> None:
        raise InputError("guidance has no voice here")

    notices = DeviceNotices(state, "zh", lambda name: None)
    notices.speak_through(refuse)
    notices.microphone.lost("no input device")
    assert "cannot be said" in caplog.text
