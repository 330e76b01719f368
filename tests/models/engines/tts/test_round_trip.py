"""Understood as said: the English voice through our own recogniser, numbers and units included."""

from __future__ import annotations

import re
from collections.abc import Callable, Iterator
from pathlib import Path

import numpy as np
import pytest
import soxr

from models.engines.tts.espeak import EspeakWorker
from models.engines.tts.piper import PiperVoice
from models.engines.whisper.engine import WhisperEngine
from pipeline.frames import SAMPLE_RATE_HZ
from pipeline.tts.normalise import spoken

ModelDir = Callable[[str], Path]
SENTENCES = [
    "I set the temperature to 21.5 °C.",
    "Turn left in 200 m, then take the 3rd exit.",
    "You will arrive at 10:45 AM.",
    "The battery is at 64%.",
    "Dr. Smith lives at 1600 Main St.",
    "The next charging station is 12 km ahead.",
    "Tomorrow, March 5, it will be between 3 and 7 degrees.",
    "That costs $3.50.",
    "**Okay**, I opened the window by 1/2. 🙂",
    "I could not find that place, do you want to try again?",
]


@pytest.fixture(scope="module")
def voice(model_dir: ModelDir) -> Iterator[PiperVoice]:
    worker = EspeakWorker.load(model_dir("espeak-ng"))
    yield PiperVoice.load(model_dir("piper-en-joe"), phonemizer=worker)
    worker.close()


@pytest.fixture(scope="module")
def recogniser(model_dir: ModelDir) -> WhisperEngine:
    return WhisperEngine.load(model_dir("whisper-base"))


def words(text: str) -> list[str]:
    """Words of the spoken form: the recogniser writes digits and signs where the voice was given words."""
    plain = spoken(text, "en").lower().replace("-", " ").replace("eigh", "a")
    return re.findall(r"[a-z']+", plain)


def errors(said: list[str], heard: list[str]) -> int:
    """Word edit distance."""
    row = list(range(len(heard) + 1))
    for i, word in enumerate(said, 1):
        before, row[0] = row[0], i
        for j, other in enumerate(heard, 1):
            before, row[j] = row[j], min(before + (word != other), row[j] + 1, row[j - 1] + 1)
    return row[-1]


def test_the_recogniser_understands_the_voice(voice: PiperVoice, recogniser: WhisperEngine) -> None:
    wrong, total, report = 0, 0, []
    for sentence in SENTENCES:
        samples = np.concatenate(list(voice.synthesise(spoken(sentence, "en"))))
        heard = recogniser.transcribe(soxr.resample(samples, voice.sample_rate_hz, SAMPLE_RATE_HZ), languages=["en"])
        said = words(sentence)
        missed = errors(said, words(heard.text))
        wrong, total = wrong + missed, total + len(said)
        report.append((missed, sentence, heard.text))
    assert wrong <= 0.1 * total, report
