"""One Wyoming server for all tests of this folder: the real recogniser and voices, and a chain without a microphone."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import pytest

from cockpit.api.grants import Grants
from cockpit.api.speech import SpeechService
from cockpit.runtime import Runtime
from cockpit.scheduling.engine_turns import EngineTurns
from cockpit.wyoming.connection import WyomingServices
from cockpit.wyoming.info import Loaded
from cockpit.wyoming.server import WyomingServer
from models.engines.tts.espeak import EspeakVoice, EspeakWorker
from models.engines.tts.piper import PiperVoice
from models.engines.whisper.engine import WhisperEngine
from models.store.registry import load_registry
from pipeline.turns import TurnIds
from tests.support.fake_chain import RecordingSink, fake_parts


@pytest.fixture(scope="session")
def served(model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`server` (socket and port, three clients at most), `runtime` behind it, `sink` that keeps what the car says."""
    espeak = EspeakWorker.load(model_dir("espeak-ng"))
    speech = SpeechService(
        WhisperEngine.load(model_dir("whisper-base")),
        {"en": PiperVoice.load(model_dir("piper-en-joe"), phonemizer=espeak), "zh": EspeakVoice(espeak, "cmn")},
        ("en", "zh"),
        EngineTurns(),
        EngineTurns(),
    )
    sink, turn_ids = RecordingSink(), TurnIds()
    runtime = Runtime(fake_parts(sink), live=True)
    runtime.start()
    voices: Any = {"en": "piper-en-joe", "zh": "espeak-ng"}
    loaded = Loaded(load_registry(), "whisper-base", ("en", "zh"), voices, "qwen2.5-coder-0.5b-instruct")
    services = WyomingServices(
        loaded,
        speech,
        Grants({"dialogue_task": 5}, {"*": ["dialogue_task"]}),
        lambda text, language, act: runtime.ask_for_text(text, language, turn_ids.next(), act=act),
        handle=True,
    )
    path = tmp_path_factory.mktemp("wyoming") / "wyoming.sock"
    server = WyomingServer.open(services, path, port=0, connections=3)
    server.start()
    yield SimpleNamespace(server=server, services=services, runtime=runtime, sink=sink)
    server.stop()
    runtime.stop()
    espeak.close()
