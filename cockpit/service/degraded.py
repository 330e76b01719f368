"""`cockpit degraded`: what stands in when the voice runtime cannot run. It loads no model."""

from __future__ import annotations

import logging
import time
from contextlib import ExitStack

import numpy as np

from cockpit.assemble import vehicle_of
from cockpit.cli.serve import LOOK_S
from cockpit.cli.talk import LogOption, ProfileName, device_name
from cockpit.profile.load import load_profile
from cockpit.profile.sections import Profile
from cockpit.scheduling.control_socket import ControlServer, default_socket
from cockpit.service import notify
from cockpit.service.limited import LimitedAnswers
from cockpit.service.state import ServiceState
from cockpit.service.watchdog import Watchdog, Watched
from cockpit.telemetry.logs import LogLevel, configure
from models.engines.tts.espeak import MODEL, EspeakVoice, EspeakWorker
from models.errors import CockpitError
from models.store.store import Store
from pipeline.audio.lasting import DeviceEvents, LastingSpeaker
from pipeline.dialogue.manager import DialogueManager
from pipeline.frames import Language, PromptFrame
from pipeline.nlg.device_notices import VOICE_LIMITED

log = logging.getLogger("cockpit.cli")

_VOICES: dict[Language, str] = {"en": "en-us", "zh": "cmn"}


def degraded(profile: ProfileName = "cpu", log_level: LogOption = LogLevel.info) -> None:
    """Say once that voice is limited, by espeak-ng, and answer `o3ctl ask` by rules, until a signal ends it.

    It hears nothing: recognition needs a model. cockpit-degraded.service runs it when cockpit.service has failed.
    """
    configure(log_level)
    state = ServiceState(notify.process())
    state.starting("what needs no model")
    loaded = load_profile(profile).profile
    language = loaded.asr.languages[0]
    with ExitStack() as opened:
        dialogue = DialogueManager.create(vehicle_of(loaded), default_language=language, confirm=loaded.vehicle.confirm)
        opened.callback(dialogue.close)
        path = loaded.control.path(default_socket())
        assert path is not None
        server = ControlServer(path, LimitedAnswers(state, dialogue), loaded.control.group)
        opened.callback(server.stop)
        server.start()
        speaker = _speaker(loaded, state)
        if speaker is not None:
            opened.callback(speaker.close)
        looks = 0
        if state.notifier.watchdog_s is not None:
            watchdog = Watchdog(state, [Watched("main", lambda: looks)], state.notifier.watchdog_s)
            opened.callback(watchdog.stop)
            watchdog.start()
        state.ready(f"without models: typed commands on {path}")
        said = speaker is None
        while True:
            if not said and speaker is not None and speaker.name:
                said = True
                _say(speaker, VOICE_LIMITED[language], language)
            looks += 1
            time.sleep(LOOK_S)


def _speaker(profile: Profile, state: ServiceState) -> LastingSpeaker | None:
    """None where there is nothing to speak through, now and later: it is logged, and commands are answered."""
    events = DeviceEvents(lambda reason: state.begin("no_speaker", reason), lambda name: state.end("no_speaker", name))
    speaker = LastingSpeaker(device_name(profile.audio.output_device), events)
    try:
        speaker.start()
    except CockpitError as error:
        state.begin("no_speaker", str(error))
        return None
    return speaker


def _say(speaker: LastingSpeaker, text: str, language: Language) -> None:
    """By espeak-ng, which is no model. Where it is not here, that is logged."""
    store = Store.open()
    fault = store.fault(MODEL)
    if fault is not None:
        log.warning("it cannot be said that voice is limited: %s", fault)
        return
    worker = EspeakWorker.load(store.built(MODEL))
    try:
        voice = EspeakVoice(worker, _VOICES[language])
        for samples in voice.synthesise(text):
            speaker.prompt(PromptFrame(1, samples, voice.sample_rate_hz, "queue"))
        speaker.prompt(PromptFrame(1, np.zeros(0, np.float32), voice.sample_rate_hz, "queue", last=True))
        log.info("it is said that voice is limited")
    except CockpitError as error:
        log.warning("it cannot be said that voice is limited: %s", error)
    finally:
        worker.close()
