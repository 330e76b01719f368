"""The English voice: chunks equal to one whole run, odd texts, cancellation, latency."""

from __future__ import annotations

import itertools
import statistics
import time
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest

from models.build.piper import build_piper
from models.engines.tts.espeak import EspeakWorker
from models.engines.tts.piper import (
    CHUNK_FRAMES,
    CONTEXT_FRAMES,
    CPU_CHUNKS,
    FIRST_CHUNK_FRAMES,
    SAMPLES_PER_FRAME,
    PiperVoice,
)
from models.errors import ConfigError, ModelMissing
from tests.support.dispatchers import EveryOther

ModelDir = Callable[[str], Path]
QUIET = {"noise_scale": 0.0, "noise_w": 0.0}
TEXT = "The temperature is set to twenty-one degrees, and the fan runs at level three for the next ten minutes."


@pytest.fixture(scope="module")
def worker(model_dir: ModelDir) -> Iterator[EspeakWorker]:
    started = EspeakWorker.load(model_dir("espeak-ng"))
    yield started
    started.close()


@pytest.fixture(scope="module")
def voice(model_dir: ModelDir, worker: EspeakWorker) -> PiperVoice:
    loaded = PiperVoice.load(model_dir("piper-en-joe"), phonemizer=worker)
    loaded.warm_up()
    return loaded


@pytest.fixture(scope="module")
def quiet_voice(model_dir: ModelDir, worker: EspeakWorker) -> PiperVoice:
    return PiperVoice.load(model_dir("piper-en-joe"), phonemizer=worker, scales=QUIET)


def test_chunks_equal_one_whole_run(voice: PiperVoice, worker: EspeakWorker) -> None:
    latent = voice.latent(worker.phonemes(TEXT, "en-us"))
    frames = latent.shape()[2]
    whole = voice.vocode(latent, 0, frames)
    assert whole.shape == (frames * SAMPLES_PER_FRAME,)
    edges = [0, 1, 2, FIRST_CHUNK_FRAMES, FIRST_CHUNK_FRAMES + CHUNK_FRAMES, frames // 2 + 30, frames - 1, frames]
    for start, stop in itertools.pairwise(edges):
        part = voice.vocode(latent, start, stop)
        np.testing.assert_allclose(part, whole[start * SAMPLES_PER_FRAME : stop * SAMPLES_PER_FRAME], atol=1e-4)


def test_runs_that_are_ended_leave_the_sound_whole(quiet_voice: PiperVoice) -> None:
    expected = np.concatenate(list(quiet_voice.synthesise("Turn left now.")))
    switch = EveryOther()
    with switch.over_runs():
        chunks = list(quiet_voice.synthesise("Turn left now."))
    assert sum(chunk.size == 0 for chunk in chunks) == switch.ended >= 3  # the encoder and two chunks
    np.testing.assert_array_equal(np.concatenate(chunks), expected)


def test_the_two_graphs_equal_the_published_one(
    model_store: object, quiet_voice: PiperVoice, worker: EspeakWorker
) -> None:
    import onnxruntime as ort

    from models.store.store import Store

    assert isinstance(model_store, Store)
    published = ort.InferenceSession(
        str(model_store.source("piper-en-joe", "en_US-joe-medium.onnx")), providers=["CPUExecutionProvider"]
    )
    ids = quiet_voice.config.ids(worker.phonemes(TEXT, "en-us"))
    feeds = {"input": ids, "input_lengths": np.array([ids.shape[1]]), "scales": np.array([0, 1, 0], dtype=np.float32)}
    expected = published.run(None, feeds)[0].reshape(-1)
    samples = np.concatenate(list(quiet_voice.synthesise(TEXT)))
    np.testing.assert_allclose(samples, expected, atol=1e-4)


def test_the_same_text_sounds_the_same_without_noise(quiet_voice: PiperVoice) -> None:
    first, second = (np.concatenate(list(quiet_voice.synthesise(TEXT))) for _ in range(2))
    np.testing.assert_array_equal(first, second)


def test_rate_and_range(voice: PiperVoice) -> None:
    samples = np.concatenate(list(voice.synthesise(TEXT)))
    assert voice.sample_rate_hz == 22_050
    assert samples.dtype == np.float32
    assert 0.2 < np.abs(samples).max() <= 1.0
    assert 4.0 < samples.size / voice.sample_rate_hz < 9.0


@pytest.mark.parametrize("text", ["", " ", "...", "?!", "🙂", "，。", "\x00"])
def test_texts_without_sound(voice: PiperVoice, text: str) -> None:
    assert list(voice.synthesise(text)) == []


@pytest.mark.parametrize(
    "text", ["a", "I", "中山路", "naïve café", "🙂 yes", "A. B, C; D: E! F?", "ʒ", "x" * 40, "one two " * 62]
)
def test_odd_texts_are_finite_and_in_range(voice: PiperVoice, text: str) -> None:
    chunks = list(voice.synthesise(text))
    samples = np.concatenate(chunks)
    assert samples.size % SAMPLES_PER_FRAME == 0
    assert samples.size > 0
    assert np.isfinite(samples).all()
    assert np.abs(samples).max() <= 1.0
    assert chunks[0].size <= CPU_CHUNKS[0] * SAMPLES_PER_FRAME
    assert max(chunk.size for chunk in chunks) <= CHUNK_FRAMES * SAMPLES_PER_FRAME


def test_a_chunk_sounds_longer_than_the_next_one_is_made(voice: PiperVoice) -> None:
    frames = [chunk.size // SAMPLES_PER_FRAME for chunk in voice.synthesise(TEXT)]
    assert frames[: len(CPU_CHUNKS) + 1] == [*CPU_CHUNKS, CHUNK_FRAMES]
    for size, following in itertools.pairwise(frames[:-1]):
        assert following + 2 * CONTEXT_FRAMES <= 4 * size, "at four times real time it is just in time"


def test_stopping_in_the_middle_leaves_the_voice_usable(quiet_voice: PiperVoice) -> None:
    expected = np.concatenate(list(quiet_voice.synthesise("Yes.")))
    speech = quiet_voice.synthesise(TEXT)
    next(speech)
    speech.close()  # type: ignore[attr-defined]
    np.testing.assert_array_equal(np.concatenate(list(quiet_voice.synthesise("Yes."))), expected)


def test_the_first_sound_comes_soon_and_does_not_wait_for_the_end(voice: PiperVoice) -> None:
    """In seconds of computing, whatever else the machine does. Two cores need 50 ms, and 60 ms per second of speech."""
    first_s, whole_s, spoken_s = [], [], []
    for _ in range(5):
        start_s = time.process_time()
        speech = voice.synthesise("Okay, turning left now.")
        samples = next(speech).size
        first_s.append(time.process_time() - start_s)
        samples += sum(chunk.size for chunk in speech)
        whole_s.append(time.process_time() - start_s)
        spoken_s.append(samples / voice.sample_rate_hz)
    assert statistics.median(first_s) < 0.4
    assert statistics.median(first_s) < 0.9 * statistics.median(whole_s)
    assert statistics.median(whole_s) < 0.6 * statistics.median(spoken_s)


def test_missing_and_foreign_models(tmp_path: Path, worker: EspeakWorker) -> None:
    with pytest.raises(ModelMissing, match="cockpit models fetch --build"):
        PiperVoice.load(tmp_path, phonemizer=worker)
    config = tmp_path / "voice.onnx.json"
    config.write_text('{"num_speakers": 4}', encoding="utf-8")
    with pytest.raises(ConfigError, match="single-speaker"):
        build_piper(tmp_path / "voice.onnx", config, tmp_path / "out")


def test_speed_makes_speech_shorter_and_longer(
    model_dir: ModelDir, worker: EspeakWorker, quiet_voice: PiperVoice
) -> None:
    def seconds(voice: PiperVoice) -> float:
        return sum(map(len, voice.synthesise(TEXT))) / voice.sample_rate_hz

    fast, slow = (
        PiperVoice.load(model_dir("piper-en-joe"), phonemizer=worker, scales=QUIET, speed=speed)
        for speed in (1.5, 0.75)
    )
    usual = seconds(quiet_voice)
    assert 0.6 < seconds(fast) / usual < 0.8
    assert 1.1 < seconds(slow) / usual < 1.45
