"""One API server for all tests of this folder, on a real socket and the real default models."""

from __future__ import annotations

from collections.abc import Callable, Iterator
from pathlib import Path
from types import SimpleNamespace
from typing import Any

import httpx2 as httpx
import pytest

from cockpit.api.app import Services
from cockpit.api.grants import Grants
from cockpit.api.server import ApiServer
from cockpit.api.speech import SpeechService
from cockpit.api.text import TextService
from cockpit.scheduling.engine_turns import EngineTurns
from models.engines.llm.causal_lm import CausalLM
from models.engines.tts.espeak import EspeakVoice, EspeakWorker
from models.engines.tts.piper import PiperVoice
from models.engines.whisper.engine import WhisperEngine

TASKS = {"navigation_task": 9, "dialogue_task": 5, "background_task": 2}
TOKEN = "a-token-of-the-tests"


@pytest.fixture(scope="session")
def served(model_dir: Callable[[str], Path], tmp_path_factory: pytest.TempPathFactory) -> Iterator[Any]:
    """`path`, `port`, `text`, `speech`: the running server and the services behind it."""
    folder = tmp_path_factory.mktemp("api")
    lm = CausalLM.load(model_dir("qwen2.5-coder-0.5b-instruct"), context_tokens=1024)
    text = TextService(lm, most_running=2, most_waiting=2)
    espeak = EspeakWorker.load(model_dir("espeak-ng"))
    speech = SpeechService(
        WhisperEngine.load(model_dir("whisper-base")),
        {"en": PiperVoice.load(model_dir("piper-en-joe"), phonemizer=espeak), "zh": EspeakVoice(espeak, "cmn")},
        ("en", "zh"),
        EngineTurns(),
        EngineTurns(),
    )
    grants = Grants(TASKS, {"*": ["dialogue_task", "background_task"]})
    services = Services({"qwen": text}, speech, grants, dict)
    server = ApiServer.open(services, folder / "api.sock", port=0, token=TOKEN)
    server.start()
    yield SimpleNamespace(path=server.path, port=server.port, token=TOKEN, text=text, speech=speech)
    server.stop()
    text.close()
    espeak.close()


@pytest.fixture
def client(served: Any) -> Iterator[httpx.Client]:
    """Raw HTTP over the socket."""
    transport = httpx.HTTPTransport(uds=str(served.path))
    with httpx.Client(transport=transport, base_url="http://cockpit", timeout=120) as made:
        yield made
