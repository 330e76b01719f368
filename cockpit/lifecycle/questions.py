"""What each kind of model is asked when it is validated, and how its answer becomes a line of text.

| kind | asked | answer |
|---|---|---|
| llm | a text | the ids of the likeliest tokens after it |
| asr | a recording of hil/audio | its transcript, letters and digits only |
| tts | a sentence | the audio's fingerprint: seconds, and dB in bands of frequency |
| vad | a recording, or `silence` | speech or silence |
| parser | a sentence | what it is, and the tools that it calls |
| encoder | `sentence \\| text \\| text` | the text whose meaning is nearest |
| phonemes | a text | its phonemes |
| wakeword | a recording, or `silence` | the words heard, or none |
"""

from __future__ import annotations

import os
from collections.abc import Callable, Iterator, Mapping
from contextlib import AbstractContextManager, contextmanager, suppress
from importlib.resources import files
from itertools import pairwise
from pathlib import Path

import numpy as np

from models.engines import factory
from models.engines.base import Audio
from models.engines.placement import CpuPlacement, Placement
from models.errors import ConfigError, ModelDamaged, ModelUnusable, StartupError
from models.store.registry import Device, Kind, ModelEntry
from pipeline.frames import SAMPLE_RATE_HZ

Ask = Callable[[str], str]
"""One question to a loaded model."""

ASKED: Mapping[Kind, str] = {
    "llm": "One, two, three, four, five, six,",
    "asr": "en05.wav",
    "tts": "The window is open.",
    "vad": "en05.wav",
    "parser": "open the driver window",
    "encoder": "How do I change a flat tyre? | Fitting the spare wheel | Pairing a phone",
    "phonemes": "The window is open.",
    "wakeword": "silence",
}
"""What is asked of a model for which the registry knows no answer: that it loads, runs and answers the same twice."""

TOKENS = 8
THREADS = min(2, os.cpu_count() or 1)
BAND_EDGES_HZ = (80, 160, 320, 640, 1280, 2560, 5120, 8000)
FLOOR_DB = -60
"""Bands this far below the loudest are not compared."""
LIKE_DB, LIKE_SHARE = 4.0, 0.06
"""Two recordings of one sentence by one voice: no band further apart than this, no length by a larger share."""


@contextmanager
def opened(entry: ModelEntry, folder: Path, phonemes: Path, device: Device) -> Iterator[Ask]:
    """Load a model on `device` and ask it. phonemes: the folder of espeak-ng, which a voice needs.

    Raises what the engine's `load` raises, DeviceUnavailable without the GPU, and StartupError for a voice where
    espeak-ng is not built: both say nothing about the model.
    """
    with _place(device) as place:
        opener = _OPENERS.get(entry.kind)
        if opener is None:
            raise ConfigError(f"nothing is known that could be asked of {entry.name}")
        with opener(entry, folder, phonemes, place) as ask:
            yield ask


def same(kind: Kind, expected: str, got: str) -> bool:
    """Whether an answer is the expected one: letter by letter; of a language model as far as is expected (kernels of
    other processors may decide a close choice differently later on); of audio within LIKE_DB and LIKE_SHARE.
    """
    if kind == "tts":
        return alike(expected, got)
    return f"{got} ".startswith(f"{expected} ") if kind == "llm" else expected == got


@contextmanager
def _place(device: Device) -> Iterator[Placement]:
    if device == "cpu":
        yield CpuPlacement(THREADS)
        return
    from cockpit.device.base import LaneSpec
    from cockpit.device.cuda.device import open_cuda
    from cockpit.device.cuda.driver import BoundDriver
    from cockpit.device.cuda.placement import CudaEngines

    driver = BoundDriver()
    unit = driver.open(0).unit_sms
    whole, _, _ = driver.split()
    gpu = open_cuda({"all": len(whole) * unit}, [LaneSpec("validation", ("all",), priority=5)], driver)
    engines = CudaEngines(gpu)
    try:
        yield engines.placement("validation")
    finally:
        engines.close()
        gpu.close()


@contextmanager
def _llm(_entry: ModelEntry, folder: Path, _phonemes: Path, place: Placement) -> Iterator[Ask]:
    from models.engines.llm.causal_lm import CausalLM

    placements = None if isinstance(place, CpuPlacement) else {"validation": place}
    model = CausalLM.load(folder, threads=THREADS, context_tokens=256, slots=1, placements=placements)
    if placements is not None:
        model.warm_up(longest_chunk=64)

    def ask(text: str) -> str:
        session = model.open_session()
        try:
            session.set_tokens(model.tokenizer.encode(text, add_special=True))
            return " ".join(map(str, session.generate(max_new_tokens=TOKENS)))
        finally:
            session.close()

    yield ask


@contextmanager
def _asr(entry: ModelEntry, folder: Path, _phonemes: Path, place: Placement) -> Iterator[Ask]:
    engine = factory.engine_of(factory.RECOGNIZERS, entry.engine, entry.name)(folder, place)

    def ask(recording: str) -> str:
        heard = engine.transcribe(_recording(recording), languages=("en", "zh"))
        return " ".join("".join(sign if sign.isalnum() else " " for sign in heard.text.lower()).split())

    yield ask


@contextmanager
def _tts(entry: ModelEntry, folder: Path, phonemes: Path, place: Placement) -> Iterator[Ask]:
    from models.engines.tts.espeak import EspeakWorker

    language = "en" if "voice-en" in entry.roles else "zh"
    try:
        worker = EspeakWorker.load(phonemes)
    except ModelUnusable as error:
        raise StartupError(f"a voice cannot be tried without phonemes: {error}") from error
    try:
        options = factory.VoiceOptions(language, place, worker)
        voice = factory.engine_of(factory.VOICES, entry.engine, entry.name)(folder, options)
        yield lambda text: audio_fingerprint(np.concatenate(list(voice.synthesise(text))), voice.sample_rate_hz)
    finally:
        worker.close()


@contextmanager
def _phonemes(_entry: ModelEntry, folder: Path, _espeak: Path, _place: Placement) -> Iterator[Ask]:
    from models.engines.tts.espeak import EspeakWorker

    worker = EspeakWorker.load(folder)
    try:
        yield lambda text: worker.phonemes(text, "en-us")
    finally:
        worker.close()


@contextmanager
def _vad(entry: ModelEntry, folder: Path, _phonemes: Path, _place: Placement) -> Iterator[Ask]:
    from models.engines.vad.silero import WINDOW_SAMPLES

    model = factory.engine_of(factory.VADS, entry.engine, entry.name)(folder, None)

    def ask(recording: str) -> str:
        model.reset()
        sure = [model.probability(window) > 0.5 for window in _windows(_recording(recording), WINDOW_SAMPLES)]
        return "speech" if sum(sure) >= len(sure) // 4 else "silence"

    yield ask


@contextmanager
def _parser(entry: ModelEntry, folder: Path, _phonemes: Path, _place: Placement) -> Iterator[Ask]:
    from pipeline.nlu.lexicon import build_lexicon
    from pipeline.nlu.parser.reader import ParserReader
    from pipeline.vehicle.places import load_places

    model = factory.engine_of(factory.PARSERS, entry.engine, entry.name)(folder, None)
    reader = ParserReader(model, build_lexicon(load_places(), by_sound=False))

    def ask(sentence: str) -> str:
        program = reader.read(sentence)
        return "nothing" if program is None else " ".join((program.reason, *(read.call.name for read in program.calls)))

    yield ask


@contextmanager
def _encoder(entry: ModelEntry, folder: Path, _phonemes: Path, _place: Placement) -> Iterator[Ask]:
    model = factory.engine_of(factory.ENCODERS, entry.engine, entry.name)(folder, None)

    def ask(line: str) -> str:
        sentence, *texts = (text.strip() for text in line.split("|"))
        likeness = model.embed(texts, "passage") @ model.embed([sentence])[0]
        return texts[int(likeness.argmax())]

    yield ask


@contextmanager
def _wakeword(entry: ModelEntry, folder: Path, _phonemes: Path, _place: Placement) -> Iterator[Ask]:
    from cockpit.profile.runnable import wake_words_among

    open_word = factory.engine_of(factory.WAKE_WORDS, entry.engine, entry.name)
    detectors = {word: open_word(folder, word) for word in wake_words_among(path.name for path in folder.iterdir())}
    if not detectors:
        raise ModelDamaged(f"{folder} holds no wake word")

    def ask(recording: str) -> str:
        samples = _recording(recording)
        heard = [
            word
            for word, detector in detectors.items()
            if max(map(detector.probability, _windows(samples, detector.chunk_samples)), default=0.0) > 0.5
        ]
        return " ".join(heard) or "none"

    yield ask


_OPENERS: Mapping[Kind, Callable[[ModelEntry, Path, Path, Placement], AbstractContextManager[Ask]]] = {
    "llm": _llm,
    "asr": _asr,
    "tts": _tts,
    "phonemes": _phonemes,
    "vad": _vad,
    "parser": _parser,
    "encoder": _encoder,
    "wakeword": _wakeword,
}


# --- sound ---------------------------------------------------------------------------------------------------------
def _recording(name: str) -> Audio:
    """float32 (n,) at 16 kHz of a recording that ships with the rig; `silence`: one second of it."""
    from pipeline.audio.wav import read_wav

    if name == "silence":
        return np.zeros(SAMPLE_RATE_HZ, np.float32)
    return read_wav(Path(str(files("hil"))) / "audio" / name)


def _windows(samples: Audio, size: int) -> Iterator[Audio]:
    return (samples[start : start + size] for start in range(0, len(samples) - size + 1, size))


def audio_fingerprint(samples: Audio, rate_hz: int) -> str:
    """Seconds and the energy in each band between BAND_EDGES_HZ, dB below the loudest band: `1.16 -3 0 -8 ...`."""
    power = np.abs(np.fft.rfft(samples.astype(np.float64))) ** 2
    edges = [round(hz * len(samples) / rate_hz) for hz in BAND_EDGES_HZ]
    bands = np.array([power[low:high].sum() for low, high in pairwise(edges)]) + 1e-12
    levels = np.maximum(10 * np.log10(bands / bands.max()), FLOOR_DB)
    return " ".join([f"{len(samples) / rate_hz:.2f}", *(f"{level:.0f}" for level in levels)])


def alike(expected: str, got: str) -> bool:
    """Whether two fingerprints are of the same sentence by the same voice."""
    with suppress(ValueError):
        (length, *levels), (other, *others) = ([float(part) for part in text.split()] for text in (expected, got))
        near = [abs(a - b) <= LIKE_DB for a, b in zip(levels, others, strict=True) if max(a, b) > FLOOR_DB + LIKE_DB]
        return all(near) and abs(length - other) <= LIKE_SHARE * length
    return False
