"""Voice activity detection and recognition of samples, as the voice chain does them, without threads."""

from __future__ import annotations

from models.engines.base import Audio
from models.engines.vad.silero import SileroVad
from models.engines.vad.webrtc_gate import WebRtcGate
from models.engines.whisper.engine import WhisperEngine
from pipeline.endpointing.endpointer import EndpointConfig, Endpointer
from pipeline.frames import AudioFrame, Language
from pipeline.nlu.lexicon import hotwords
from pipeline.turns import Generations, TurnIds

LANGUAGES: tuple[Language, ...] = ("en", "zh")
FRAME_SAMPLES = 320
RATE_HZ = 16_000


class FrontEnd:
    """Samples to text."""

    def __init__(self, engine: WhisperEngine, vad: SileroVad) -> None:
        self._engine = engine
        self._vad = vad

    def recognise(self, samples: Audio, *, biased: bool) -> tuple[str, Language, float]:
        """The text of everything said, its language and the lowest mean log-probability; empty when the endpointer
        found no speech.
        """
        texts: list[str] = []
        language: Language = "en"
        logprob = 0.0
        for utterance in self._turns(samples):
            result = self._engine.transcribe(
                utterance,
                languages=LANGUAGES,
                hotwords=[w for lang in LANGUAGES for w in hotwords(lang)] if biased else (),
            )
            if result.text:
                texts.append(result.text)
                language = "zh" if result.language == "zh" else "en"
                logprob = min(logprob, result.avg_logprob)
        return " ".join(texts), language, logprob

    def _turns(self, samples: Audio) -> list[Audio]:
        self._vad.reset()
        endpointer = Endpointer(EndpointConfig(), WebRtcGate.load(), self._vad, Generations(), TurnIds())
        finals = {}
        for start in range(0, len(samples), FRAME_SAMPLES):
            part = samples[start : start + FRAME_SAMPLES]
            last = start + FRAME_SAMPLES >= len(samples)
            captured_ns = (start + len(part)) * 1_000_000_000 // RATE_HZ
            for utterance in endpointer.push(AudioFrame(part, start, captured_ns, last)):
                if utterance.stage == "final":
                    finals[utterance.turn_id] = utterance.samples
        return list(finals.values())
