"""Engine name -> what loads it, one small table for each role. The names are those of the model registry (`engine`).

A new engine is one function here and one row; its module is imported when a profile first names it.
"""

from __future__ import annotations

from collections.abc import Callable, Mapping, Sequence
from dataclasses import dataclass
from pathlib import Path
from typing import TYPE_CHECKING, TypeVar

from models.engines.base import SpeechRecognizer, Voice
from models.engines.placement import CpuPlacement, Placement
from models.errors import ConfigError, DeviceUnavailable
from models.store.registry import Device, Role
from models.store.store import Store

if TYPE_CHECKING:
    from models.engines.llm.causal_lm import CausalLM
    from models.engines.parser import ParserEngine
    from models.engines.sentence_encoder import SentenceEncoder
    from models.engines.tts.espeak import EspeakWorker
    from models.engines.vad.silero import SileroVad
    from models.engines.wake.microwakeword import MicroWakeWordDetector
    from models.engines.wake.openwakeword import OpenWakeWordDetector

T = TypeVar("T")
EngineT = TypeVar("EngineT")


def width_of(texts: int) -> int:
    """The power of two that holds so many texts: `LlmOptions.width`."""
    return 1 << max(0, texts - 1).bit_length()


@dataclass(frozen=True, slots=True)
class LlmOptions:
    """placements: one per lane that may be chosen; None: the CPU with `threads`. See CausalLM.load for the rest."""

    threads: int
    context_tokens: int
    slots: int
    batch: int = 0
    width: int = 1
    drafts: Sequence[int] = ()
    kv_keep_ratio: float = 1.0
    placements: Mapping[str, Placement] | None = None


@dataclass(frozen=True, slots=True)
class VoiceOptions:
    """language: en or zh. phonemizer: the process's espeak-ng worker, shared by every voice. speed: speaking rate, 1 is
    the voice's own.
    """

    language: str
    placement: Placement
    phonemizer: EspeakWorker
    speed: float = 1.0


def _whisper(folder: Path, placement: Placement) -> SpeechRecognizer:
    from models.engines.whisper.engine import WhisperEngine

    return WhisperEngine.load(folder, placement=placement)


def _causal_lm(folder: Path, options: LlmOptions) -> CausalLM:
    from models.engines.llm.causal_lm import CausalLM
    from models.engines.llm.kv.gate import KvGate

    return CausalLM.load(
        folder,
        threads=options.threads,
        context_tokens=options.context_tokens,
        placements=options.placements,
        slots=options.slots,
        batch=options.batch,
        width=options.width,
        drafts=options.drafts,
        gate=KvGate(options.kv_keep_ratio) if options.kv_keep_ratio < 1 else None,
    )


def _piper(folder: Path, options: VoiceOptions) -> Voice:
    from models.engines.tts.piper import PiperVoice

    return PiperVoice.load(folder, placement=options.placement, phonemizer=options.phonemizer, speed=options.speed)


def _zh_voice(folder: Path, options: VoiceOptions) -> Voice:
    from models.engines.tts.zh_voice import ZhVoice

    if not isinstance(options.placement, CpuPlacement):
        raise DeviceUnavailable(f"{folder.name} runs on the CPU only: name another voice, or device cpu")
    return ZhVoice.load(folder, threads=options.placement.threads, speed=options.speed)


def _espeak(_folder: Path, options: VoiceOptions) -> Voice:
    from models.engines.tts.espeak import EspeakVoice

    return EspeakVoice(options.phonemizer, {"en": "en-us", "zh": "cmn"}[options.language], options.speed)


def _espeak_worker(folder: Path, _options: None) -> EspeakWorker:
    from models.engines.tts.espeak import EspeakWorker

    return EspeakWorker.load(folder)


def _silero(folder: Path, _options: None) -> SileroVad:
    from models.engines.vad.silero import SileroVad

    return SileroVad.load(folder)


def _parser(folder: Path, _options: None) -> ParserEngine:
    from models.engines.parser import ParserEngine

    return ParserEngine.load(folder)


def _sentence_encoder(folder: Path, _options: None) -> SentenceEncoder:
    from models.engines.sentence_encoder import SentenceEncoder

    return SentenceEncoder.load(folder)


def _openwakeword(folder: Path, word: str) -> OpenWakeWordDetector:
    from models.engines.wake.openwakeword import OpenWakeWordDetector

    return OpenWakeWordDetector.load(folder, word)


def _microwakeword(folder: Path, word: str) -> MicroWakeWordDetector:
    from models.engines.wake.microwakeword import MicroWakeWordDetector

    return MicroWakeWordDetector.load(folder, word)


RECOGNIZERS: Mapping[str, Callable[[Path, Placement], SpeechRecognizer]] = {"whisper": _whisper}
LANGUAGE_MODELS: Mapping[str, Callable[[Path, LlmOptions], CausalLM]] = {"causal-lm": _causal_lm}
VOICES: Mapping[str, Callable[[Path, VoiceOptions], Voice]] = {
    "piper": _piper,
    "zh-voice": _zh_voice,
    "espeak-ng": _espeak,
}
PHONEMIZERS: Mapping[str, Callable[[Path, None], EspeakWorker]] = {"espeak-ng": _espeak_worker}
VADS: Mapping[str, Callable[[Path, None], SileroVad]] = {"silero": _silero}
PARSERS: Mapping[str, Callable[[Path, None], ParserEngine]] = {"parser": _parser}
ENCODERS: Mapping[str, Callable[[Path, None], SentenceEncoder]] = {"sentence-encoder": _sentence_encoder}
WAKE_WORDS: Mapping[str, Callable[[Path, str], OpenWakeWordDetector | MicroWakeWordDetector]] = {
    "openwakeword": _openwakeword,
    "microwakeword": _microwakeword,
}
BY_ROLE: Mapping[Role, Mapping[str, object]] = {
    "asr": RECOGNIZERS,
    "llm": LANGUAGE_MODELS,
    "voice-en": VOICES,
    "voice-zh": VOICES,
    "phonemes": PHONEMIZERS,
    "vad": VADS,
    "parser": PARSERS,
    "encoder": ENCODERS,
    "wake": WAKE_WORDS,
}
"""Which engines the stage that loads a model in this role can open."""


def engine_of(table: Mapping[str, T], engine: str | None, model: str) -> T:
    """The row of `table` that loads `model`. Raises ConfigError naming the known engines."""
    if engine is None or engine not in table:
        raise ConfigError(f"{model} is loaded by {engine or 'no engine'}; this stage knows {', '.join(table)}")
    return table[engine]


def loadable(store: Store, model: str, role: Role, device: Device) -> str:
    """Why the stage that names `model` could not load it in `role` on `device`; empty when it could.

    Looks at the registry and at the tables here; no file is opened.
    """
    try:
        entry = store.registry.loadable(model, role, device)
        engine_of(BY_ROLE[role], entry.engine, model)
    except ConfigError as error:
        return str(error)
    return ""


def load_engine(
    table: Mapping[str, Callable[[Path, T], EngineT]], store: Store, model: str, folder: Path, options: T
) -> EngineT:
    """Load `model` from its built `folder` with the row of `table` that the registry names.

    Raises ConfigError for a model of another stage, and what the engine's `load` raises.
    """
    return engine_of(table, store.registry.get(model).engine, model)(folder, options)
