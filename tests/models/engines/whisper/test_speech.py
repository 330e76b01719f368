"""Whisper on real speech, spoken commands, noise and odd inputs."""

from __future__ import annotations

import math
import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soundfile as sf
import soxr
from rapidfuzz.distance import Levenshtein
from ruamel.yaml import YAML

from models.engines.base import Audio
from models.engines.tts.espeak import SAMPLE_RATE_HZ, EspeakVoice, EspeakWorker
from models.engines.whisper.decoder import Step
from models.engines.whisper.encoder import context_rows
from models.engines.whisper.engine import WhisperEngine, split_windows
from models.engines.whisper.guards import believable, repeats
from models.engines.whisper.hotwords import INSIDE_BOOST, START_BOOST, HotwordTree
from models.engines.whisper.numbers import confusable, margin_of
from models.errors import InputError, ModelMissing
from pipeline.nlu.lexicon import hotwords
from tests.support.dispatchers import EveryOther
from tests.support.paths import AUDIO

RATE_HZ = 16_000
BOTH = ("en", "zh")
WORDS = (*hotwords("en"), *hotwords("zh"))
RNG = np.random.default_rng(7)


@pytest.fixture(scope="module")
def engine(model_dir: Callable[[str], Path]) -> WhisperEngine:
    made = WhisperEngine.load(model_dir("whisper-base"))
    made.warm_up()
    return made


@pytest.fixture(scope="module")
def espeak(model_dir: Callable[[str], Path]) -> Iterator[EspeakWorker]:
    worker = EspeakWorker.load(model_dir("espeak-ng"))
    yield worker
    worker.close()


@pytest.fixture(scope="module")
def exact(model_dir: Callable[[str], Path]) -> WhisperEngine:
    return WhisperEngine.load(model_dir("whisper-base-f32"))


@pytest.fixture(scope="module")
def commands() -> dict[str, tuple[Audio, str, int]]:
    """id -> audio, text, last sample of speech."""
    entries = YAML(typ="safe").load((AUDIO / "manifest.yaml").read_text(encoding="utf-8"))
    return {e["id"]: (_wav(AUDIO / e["file"]), e["text"], e["last_speech_sample"]) for e in entries}


def _wav(path: Path) -> Audio:
    samples, rate_hz = sf.read(path, dtype="float32", always_2d=True)
    return np.asarray(soxr.resample(samples.mean(axis=1), rate_hz, RATE_HZ), dtype=np.float32)


def _words(text: str) -> list[str]:
    return re.findall(r"[a-z']+", text.lower())


def _road(size: int) -> Audio:
    """Noise falling 6 dB per octave above 20 Hz, like a road heard inside a car; RMS 1."""
    spectrum = np.fft.rfft(RNG.standard_normal(size)) / np.maximum(np.fft.rfftfreq(size, 1 / RATE_HZ), 20.0)
    noise = np.fft.irfft(spectrum, size)
    return np.asarray(noise / noise.std(), dtype=np.float32)


def test_real_speech(engine: WhisperEngine, model_dir: Callable[[str], Path]) -> None:
    heard = engine.transcribe(_wav(model_dir("test-audio") / "beckett.wav"), languages=BOTH)
    expected = _words("Ever tried. Ever failed. No matter. Try again. Fail again. Fail better.")
    assert heard.language == "en"
    assert Levenshtein.distance(_words(heard.text), expected) <= 2


def test_speech_longer_than_one_window(engine: WhisperEngine, model_dir: Callable[[str], Path]) -> None:
    samples = _wav(model_dir("test-audio") / "two_cities.wav")
    assert samples.size > 30 * RATE_HZ
    heard = engine.transcribe(samples, languages=("en",)).text
    for phrase in ("best of times", "season of light", "winter of despair", "direct the other way", "comparison only"):
        assert phrase in heard
    assert 110 <= len(_words(heard)) <= 125, "a cut between windows must neither lose nor repeat words"


@pytest.mark.parametrize(
    ("name", "part"), [("en03", "nearest charging station"), ("en24", "far to the hotel"), ("zh04", "我要去火车站")]
)
@pytest.mark.parametrize("snr_db", [None, 20, 10, 5])
def test_commands_in_noise(
    engine: WhisperEngine, commands: dict[str, tuple[Audio, str, int]], name: str, part: str, snr_db: int | None
) -> None:
    samples, _, last = commands[name]
    if snr_db is not None:
        speech_rms = float(np.sqrt((samples[4_800:last] ** 2).mean()))
        samples = samples + _road(samples.size) * np.float32(speech_rms * 10 ** (-snr_db / 20))
    heard = engine.transcribe(samples, languages=BOTH)
    assert part in heard.text
    assert heard.language == name[:2]


def test_runs_that_are_ended_and_done_again_change_nothing(
    engine: WhisperEngine, commands: dict[str, tuple[Audio, str, int]]
) -> None:
    samples = commands["en03"][0]
    expected = engine.transcribe(samples, languages=BOTH)
    asked: list[int] = []

    def wanted() -> bool:
        asked.append(1)
        return False

    switch = EveryOther()
    with switch.over_runs():
        heard = engine.transcribe(samples, languages=BOTH, cancelled=wanted)
        assert heard == expected
        assert switch.ended == len(expected.tokens) + 3  # the encoder, the language, the prompt and each token
        assert len(asked) >= 2 * len(expected.tokens)
        given_up = engine.transcribe(samples, languages=BOTH, cancelled=lambda: True)
    assert given_up.text == ""


def test_chinese_is_simplified(engine: WhisperEngine, commands: dict[str, tuple[Audio, str, int]]) -> None:
    assert "车窗" in engine.transcribe(commands["zh06"][0], languages=BOTH).text


@pytest.mark.parametrize("name", ["en06", "en12", "zh04"])
def test_cut_at_the_last_sample_of_speech(
    engine: WhisperEngine, commands: dict[str, tuple[Audio, str, int]], name: str
) -> None:
    samples, text, last = commands[name]
    heard = engine.transcribe(samples[:last], languages=BOTH).text
    assert re.sub(r"\W", "", heard.lower()) == re.sub(r"\W", "", text.lower())


@pytest.mark.parametrize("size", [0, 1, 159, 160, 161, 319, 321, 1_599, 1_600, 1_601])
@pytest.mark.parametrize("level", [0.0, 0.3])
def test_odd_lengths_hold_nothing(engine: WhisperEngine, size: int, level: float) -> None:
    samples = (RNG.standard_normal(size) * level).astype(np.float32)
    assert engine.transcribe(samples, languages=BOTH, hotwords=WORDS).text == ""


def _clicks(size: int) -> Audio:
    samples = np.zeros(size, np.float32)
    for at in RNG.integers(0, size - 100, 6):
        samples[at : at + 100] = RNG.standard_normal(100) * np.exp(-np.arange(100) / 20.0)
    return samples * np.float32(0.5)


def _chords(size: int) -> Audio:
    time_s = np.arange(size) / RATE_HZ
    tones = [np.sin(2 * np.pi * hz * time_s) for hz in (220.0, 277.2, 329.6)]
    return np.asarray(sum(tones) * (0.5 + 0.5 * np.sin(2 * np.pi * 2 * time_s)) * 0.1, dtype=np.float32)


@pytest.mark.parametrize("words", [(), WORDS], ids=["plain", "biased"])
@pytest.mark.parametrize("seconds", [0.5, 2.0, 6.0])
def test_no_word_comes_out_of_silence_or_noise(engine: WhisperEngine, seconds: float, words: tuple[str, ...]) -> None:
    size = int(seconds * RATE_HZ)
    sounds = {
        "silence": np.zeros(size, np.float32),
        "hiss": (RNG.standard_normal(size) * 0.02).astype(np.float32),
        "loud hiss": (RNG.standard_normal(size) * 0.2).astype(np.float32),
        "road": _road(size) * np.float32(0.05),
        "hum": np.sin(np.arange(size) * 2 * np.pi * 50 / RATE_HZ).astype(np.float32) * np.float32(0.3),
        "clicks": _clicks(size),
        "chords": _chords(size),
    }
    heard = {name: engine.transcribe(sound, languages=BOTH, hotwords=words) for name, sound in sounds.items()}
    assert {name: (found.text, found.unclear) for name, found in heard.items()} == dict.fromkeys(sounds, ("", False))


@pytest.mark.parametrize(("voice", "word"), [("en-us", "warmer"), ("cmn", "停"), ("cmn", "空调")])
def test_a_word_that_is_not_believed_is_unclear_and_no_silence(
    engine: WhisperEngine, espeak: EspeakWorker, voice: str, word: str
) -> None:
    spoken = np.concatenate(list(EspeakVoice(espeak, voice).synthesise(word)))
    sound = np.asarray(soxr.resample(spoken, SAMPLE_RATE_HZ, RATE_HZ), dtype=np.float32)
    heard = engine.transcribe(np.pad(sound, 4_000), languages=BOTH)
    assert (heard.text, heard.unclear) == ("", True)


def test_hot_words_mend_a_homophone_and_leave_other_speech_alone(
    engine: WhisperEngine, commands: dict[str, tuple[Audio, str, int]], model_dir: Callable[[str], Path]
) -> None:
    assert "主驾" not in engine.transcribe(commands["zh05"][0], languages=BOTH).text
    assert "主驾车窗" in engine.transcribe(commands["zh05"][0], languages=BOTH, hotwords=WORDS).text
    speech = _wav(model_dir("test-audio") / "beckett.wav")
    plain = engine.transcribe(speech, languages=BOTH).text
    assert _words(engine.transcribe(speech, languages=BOTH, hotwords=WORDS).text) == _words(plain)


def test_hot_word_tree() -> None:
    tree = HotwordTree.of([[1, 2, 3], [1, 4], []])
    bias = np.array([0, 0, 0, 0, -np.inf], np.float32)
    assert tree.boost(bias, frozenset()).tolist() == [0, START_BOOST, 0, 0, -np.inf]
    opened = tree.advance(frozenset(), 1)
    assert tree.boost(bias, opened).tolist() == [0, START_BOOST, INSIDE_BOOST, 0, -np.inf]
    assert tree.advance(opened, 4) == frozenset(), "a finished phrase is closed"
    assert tree.advance(opened, 9) == frozenset()
    assert bias.tolist() == [0, 0, 0, 0, -np.inf], "the mask itself is not written"


def test_only_the_given_languages(engine: WhisperEngine, commands: dict[str, tuple[Audio, str, int]]) -> None:
    assert engine.transcribe(commands["zh04"][0], languages=("en",)).language == "en"
    with pytest.raises(InputError, match="unknown languages"):
        engine.transcribe(commands["zh04"][0], languages=("en", "tlh"))


def test_cancelled_between_steps(engine: WhisperEngine, commands: dict[str, tuple[Audio, str, int]]) -> None:
    asked: list[int] = []

    def third_time() -> bool:
        asked.append(1)
        return len(asked) >= 3

    assert engine.transcribe(commands["en03"][0], languages=BOTH, cancelled=third_time).text == ""
    assert len(asked) == 3


def test_encoder_cost_follows_the_speech(engine: WhisperEngine) -> None:
    noise = (RNG.standard_normal(8 * RATE_HZ) * 0.05).astype(np.float32)
    rows = []
    for seconds in (1, 2, 4, 8):
        engine.transcribe(noise[: seconds * RATE_HZ], languages=BOTH)
        rows.append(engine.encoder_rows)
    assert rows == [50 * (seconds + 2) for seconds in (1, 2, 4, 8)], "50 rows a second and 2 s that stand for silence"


@pytest.mark.parametrize("samples", [1, 16_000, 29 * 16_000, 30 * 16_000])
def test_context_rows_are_ascending_and_fit_the_table(samples: int) -> None:
    rows, log_count = context_rows(samples, 1_500)
    assert rows.size == log_count.size <= 1_500
    assert np.all(np.diff(rows) > 0)
    assert rows[-1] == 1_499


def test_windows_keep_every_sample() -> None:
    samples = (RNG.standard_normal(70 * RATE_HZ)).astype(np.float32)
    samples[25 * RATE_HZ : 26 * RATE_HZ] = 0.0
    parts = split_windows(samples)
    assert 25 * RATE_HZ <= parts[0].size <= 26 * RATE_HZ, "cut in the silence"
    assert all(part.size <= 29 * RATE_HZ for part in parts)
    np.testing.assert_array_equal(np.concatenate(parts), samples)


def test_cached_decoding_equals_decoding_from_scratch(
    exact: WhisperEngine, commands: dict[str, tuple[Audio, str, int]]
) -> None:
    heard = exact.transcribe(commands["en03"][0], languages=("en",))
    special, languages = exact.config.tokens, exact.config.languages
    tokens = [special["start"], languages["en"], special["transcribe"], special["no_timestamps"], *heard.tokens]
    bias = exact.text_bias()
    exact.decoder.rewind(0)
    cached = [exact.decoder.step([token], bias) for token in tokens]
    for count in range(4, len(tokens) + 1):
        exact.decoder.rewind(0)
        scratch = exact.decoder.step(tokens[:count], bias)
        assert scratch.ids[0] == cached[count - 1].ids[0]
        np.testing.assert_allclose(scratch.values, cached[count - 1].values, atol=2e-3)
        assert scratch.log_sum_exp == pytest.approx(cached[count - 1].log_sum_exp, abs=2e-3)
    assert len(heard.tokens) > 5


def test_served_build_agrees_with_the_exact_one(
    engine: WhisperEngine, exact: WhisperEngine, commands: dict[str, tuple[Audio, str, int]]
) -> None:
    names = ("en01", "en04", "en12", "en21", "zh04", "zh12", "zh20", "zh21")
    same = [
        engine.transcribe(commands[n][0], languages=BOTH).text == exact.transcribe(commands[n][0], languages=BOTH).text
        for n in names
    ]
    assert sum(same) >= len(names) - 1


def test_a_number_has_its_margin_over_the_one_that_sounds_like_it(
    engine: WhisperEngine, commands: dict[str, tuple[Audio, str, int]]
) -> None:
    (sixty,) = [samples for samples, text, _ in commands.values() if text == "Turn the volume up to sixty percent."]
    assert 0 < engine.transcribe(sixty, languages=("en",)).number_margin < math.inf
    assert engine.transcribe(commands["zh06"][0], languages=BOTH).number_margin == math.inf  # no number is said
    (fifteen,), (fifty,) = (engine._tokenizer.encode(text, add_special_tokens=False).ids for text in (" 15", " 50"))
    step = Step(np.array([fifteen, 1, fifty]), np.array([9.0, 8.0, 6.5], np.float32), 0.0, 0.0)
    assert margin_of(step, fifteen, confusable(engine._tokenizer)) == pytest.approx(2.5)


def test_guards() -> None:
    assert believable("Thank you.", -0.1, 0.02)
    assert not believable("Thank you.", -0.9, 0.3)
    assert not believable(" . . .", -0.1, 0.0)
    assert not believable("Open the window.", -1.2, 0.0)
    assert not believable("one two one two " * 12, -0.1, 0.0)
    assert repeats([5, 1, 2, 1, 2, 1, 2], 3)
    assert not repeats([1, 2, 1, 2, 1, 3], 3)


def test_missing_model(tmp_path: Path) -> None:
    with pytest.raises(ModelMissing, match="cockpit models fetch --build"):
        WhisperEngine.load(tmp_path)


def test_token_budget_is_refused_not_overrun(engine: WhisperEngine) -> None:
    engine.decoder.rewind(0)
    with pytest.raises(InputError, match="448 tokens"):
        engine.decoder.step([1] * 449, engine.text_bias())
